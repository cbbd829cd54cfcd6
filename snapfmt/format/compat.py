"""May this library read, write or collect it? (spec/v1/08-reading.md, Features)"""

from typing import Any, Literal, TypeVar

from snapfmt.errors import FormatError, RefusedError, UnsupportedFeature
from snapfmt.format import canonical
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt_schemas.manifest import Features, Manifest, RepositoryDocument

D = TypeVar("D", Manifest, RepositoryDocument)

SALVAGE = "salvage"
"""The feature of what was saved out of damaged snapshots: pieces, none of them a whole."""
KNOWN: dict[str, frozenset[str]] = {
    "read": frozenset({SALVAGE}),
    "write": frozenset(),
    "collect": frozenset(),
}
"""Features that this library has, per operation."""


def require(
    features: Features, operation: Literal["read", "write", "collect"], *, what: str
) -> None:
    """Refuse a document that needs a feature this library lacks.

    Raises:
        UnsupportedFeature: Naming the feature.
        RefusedError: If it holds pieces, which are only read.
    """
    needed = getattr(features, operation)
    unknown = sorted(set(needed) - KNOWN[operation])
    if unknown == [SALVAGE]:
        refuse_salvage(features, what=what)
    if unknown:
        raise UnsupportedFeature(
            f"to {operation} it, this library lacks the feature {unknown[0]!r}",
            what=what,
            hint="upgrade snapfmt to the version that wrote it",
        )


def refuse_salvage(features: Features, *, what: str) -> None:
    """Refuse pieces of damaged snapshots where a whole one is expected (spec/v1/15-repair.md).

    Raises:
        RefusedError: If the document is a salvage's.
    """
    if SALVAGE in features.read:
        raise RefusedError(
            "this holds pieces of damaged snapshots, none of them whole",
            what=what,
            hint="open it with salvage=True to look at the pieces; nothing is restored from it",
        )


def decode_root(
    data: bytes, model: type[D], *, what: str, size_limit: int, limits: Limits = DEFAULT_LIMITS
) -> D:
    """A manifest or a repository document from its bytes.

    Raises:
        UnsupportedFeature: Naming the feature, even where the document's shape is unknown too.
        UnsupportedVersion: If it is of another format version.
        FormatError: If it does not follow its schema or was changed.
        LimitExceeded: If a bound is passed.
    """
    value = canonical.parse(data, what=what, size_limit=size_limit, limits=limits)
    features = value.get("features") if isinstance(value, dict) else None
    needed: Any = features.get("read") if isinstance(features, dict) else None
    if isinstance(needed, list) and all(isinstance(name, str) for name in needed):
        require(Features.model_construct(read=tuple(needed)), "read", what=what)
    document = canonical.decode(data, model, what=what, size_limit=size_limit, limits=limits)
    if document.checksum is None:
        raise FormatError(f"{model.__name__} has no checksum", what=what)
    return document
