"""Typed records of snapfmt: pydantic models, row schemas, published JSON Schemas.

Names are imported when they are first used, so that a program pays for what it reads.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapfmt_schemas._base import Record
    from snapfmt_schemas.agent import AgentBoundaryRecord, PendingModel
    from snapfmt_schemas.attempt import Lease, Receipt, Ticket
    from snapfmt_schemas.completion import CompletionReceipt
    from snapfmt_schemas.continuation import Continuation
    from snapfmt_schemas.fingerprint import Fingerprint
    from snapfmt_schemas.identity import capture_key
    from snapfmt_schemas.ledger import (
        LedgerGroup,
        PendingAcknowledgement,
        PromptRef,
        RecoveryLedger,
        RolloutAttempt,
        RolloutReceipt,
        Sibling,
    )
    from snapfmt_schemas.lineage import (
        ExternalStorageReference,
        GenerationCutRow,
        ModelFailureRow,
        ModelLineageRow,
    )
    from snapfmt_schemas.lines import from_line, to_line
    from snapfmt_schemas.loader import LoaderPlace
    from snapfmt_schemas.manifest import Manifest, RepositoryDocument, TrainerAnchor
    from snapfmt_schemas.part import PartIndex
    from snapfmt_schemas.recipe import Recipe
    from snapfmt_schemas.redacted import RedactedRun
    from snapfmt_schemas.redaction import redact, redact_record
    from snapfmt_schemas.registry import find_media_type, find_model
    from snapfmt_schemas.replay import KVBatchMeta, ReplayGroup, ReplayIndex
    from snapfmt_schemas.reserve import ReplacementReserve, ReservedPrompt
    from snapfmt_schemas.resources import ResourceSnapshot
    from snapfmt_schemas.rows import arrow_schema, check_capture_row
    from snapfmt_schemas.timeline import Phase, PhaseTimeline
    from snapfmt_schemas.topology import Topology, TopologyParticipant

_NAMES = {
    "_base": "Record",
    "agent": "AgentBoundaryRecord PendingModel",
    "attempt": "Lease Receipt Ticket",
    "completion": "CompletionReceipt",
    "continuation": "Continuation",
    "fingerprint": "Fingerprint",
    "identity": "capture_key",
    "ledger": (
        "LedgerGroup PendingAcknowledgement PromptRef RecoveryLedger RolloutAttempt "
        "RolloutReceipt Sibling"
    ),
    "lineage": "ExternalStorageReference GenerationCutRow ModelFailureRow ModelLineageRow",
    "lines": "from_line to_line",
    "loader": "LoaderPlace",
    "manifest": "Manifest RepositoryDocument TrainerAnchor",
    "part": "PartIndex",
    "recipe": "Recipe",
    "redacted": "RedactedRun",
    "redaction": "redact redact_record",
    "registry": "find_media_type find_model",
    "replay": "KVBatchMeta ReplayGroup ReplayIndex",
    "reserve": "ReplacementReserve ReservedPrompt",
    "resources": "ResourceSnapshot",
    "rows": "arrow_schema check_capture_row",
    "timeline": "Phase PhaseTimeline",
    "topology": "Topology TopologyParticipant",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AgentBoundaryRecord",
    "CompletionReceipt",
    "Continuation",
    "ExternalStorageReference",
    "Fingerprint",
    "GenerationCutRow",
    "KVBatchMeta",
    "Lease",
    "LedgerGroup",
    "LoaderPlace",
    "Manifest",
    "ModelFailureRow",
    "ModelLineageRow",
    "PartIndex",
    "PendingAcknowledgement",
    "PendingModel",
    "Phase",
    "PhaseTimeline",
    "PromptRef",
    "Receipt",
    "Recipe",
    "Record",
    "RecoveryLedger",
    "RedactedRun",
    "ReplacementReserve",
    "ReplayGroup",
    "ReplayIndex",
    "RepositoryDocument",
    "ReservedPrompt",
    "ResourceSnapshot",
    "RolloutAttempt",
    "RolloutReceipt",
    "Sibling",
    "Ticket",
    "Topology",
    "TopologyParticipant",
    "TrainerAnchor",
    "arrow_schema",
    "capture_key",
    "check_capture_row",
    "find_media_type",
    "find_model",
    "from_line",
    "redact",
    "redact_record",
    "to_line",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
