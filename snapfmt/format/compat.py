"""May this library read, write or collect it? (spec/v1/08-reading.md, Features)"""

from typing import Literal

from snapfmt.errors import UnsupportedFeature
from snapfmt_schemas.manifest import Features

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
