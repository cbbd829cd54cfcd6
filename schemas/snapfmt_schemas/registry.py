"""Every record that is stored on its own, by schema id and version."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import AgentBoundaryRecord, BoundaryHead
from snapfmt_schemas.attempt import Lease, Receipt, Ticket
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.ledger import RecoveryLedger
from snapfmt_schemas.lineage import (
    ExternalStorageReference,
    GenerationCutRow,
    ModelFailureRow,
    ModelLineageRow,
)
from snapfmt_schemas.loader import LoaderPlace
from snapfmt_schemas.manifest import Manifest, RepositoryDocument
from snapfmt_schemas.part import PartIndex
from snapfmt_schemas.pin import Pin
from snapfmt_schemas.recipe import Recipe
from snapfmt_schemas.redacted import RedactedRun
from snapfmt_schemas.replay import ReplayIndex
from snapfmt_schemas.reserve import ReplacementReserve
from snapfmt_schemas.resources import ResourceSnapshot
from snapfmt_schemas.timeline import PhaseTimeline
from snapfmt_schemas.topology import Topology

_ALL: tuple[type[Record], ...] = (
    AgentBoundaryRecord,
    BoundaryHead,
    CompletionReceipt,
    Continuation,
    ExternalStorageReference,
    Fingerprint,
    GenerationCutRow,
    Lease,
    LoaderPlace,
    Manifest,
    ModelFailureRow,
    ModelLineageRow,
    PartIndex,
    PhaseTimeline,
    Pin,
    Receipt,
    Recipe,
    RecoveryLedger,
    RedactedRun,
    ReplacementReserve,
    ReplayIndex,
    RepositoryDocument,
    ResourceSnapshot,
    Ticket,
    Topology,
)

MODELS: Final[Mapping[tuple[str, int], type[Record]]] = MappingProxyType(
    {(model.SCHEMA, model.VERSION): model for model in _ALL}
)
"""Models by schema id and version, such as `("snapfmt.continuation", 1)`."""

_BY_MEDIA_TYPE = {model.document_type(): model for model in _ALL}


def find_model(schema_id: str, version: int) -> type[Record] | None:
    """The model of a schema, or None if this library does not have it."""
    return MODELS.get((schema_id, version))


def find_media_type(media_type: str) -> type[Record] | None:
    """The model of a media type, or None; parameters and case do not count."""
    return _BY_MEDIA_TYPE.get(media_type.partition(";")[0].strip().lower())


def versions(schema_id: str) -> tuple[int, ...]:
    """Versions of a schema that this library reads, ascending."""
    return tuple(sorted(version for known, version in MODELS if known == schema_id))
