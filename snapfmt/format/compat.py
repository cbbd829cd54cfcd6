"""May this library read, write or collect it? (spec/v1/08-reading.md, Features)"""

from typing import Any, Literal, TypeVar

from snapfmt.errors import FormatError, UnsupportedFeature
from snapfmt.format import canonical
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt_schemas.manifest import Features, Manifest, RepositoryDocument

D = TypeVar("D", Manifest, RepositoryDocument)

KNOWN: dict[str, frozenset[str]] = {
    "read": frozenset(),
    "write": frozenset(),
    "collect": frozenset(),
}
"""Features that this library has, per operation. Format version 1 starts with none."""


def require(
    features: Features, operation: Literal["read", "write", "collect"], *, what: str
) -> None:
    """Refuse a document that needs a feature this library lacks.

    Raises:
        UnsupportedFeature: Naming the feature.
    """
    needed = getattr(features, operation)
    unknown = sorted(set(needed) - KNOWN[operation])
    if unknown:
        raise UnsupportedFeature(
            f"to {operation} it, this library lacks the feature {unknown[0]!r}",
            what=what,
            hint="upgrade snapfmt to the version that wrote it",
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
