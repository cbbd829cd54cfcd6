"""What an audit says: findings, and the report that holds them (spec/v1/08-reading.md)."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from snapfmt.errors import (
    CorruptError,
    NotFoundError,
    SnapfmtError,
    StorageError,
    UnsupportedFeature,
    UnsupportedVersion,
)

Severity = Literal["damage", "extra", "unknown", "leftover"]
"""`damage` and `extra` are damage; `unknown` could not be judged; `leftover` does no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way in which a repository breaks the spec."""

    rule: str
    """Stable name: missing, truncated, digest, format, unreadable, misplaced, extra, unsupported,
    unreached, leftover."""
    severity: Severity
    path: str
    message: str
    snapshots: tuple[int, ...] = ()
    """Snapshots that it harms."""


@dataclass(slots=True)
class VerifyReport:
    """What was checked and what was found."""

    deep: bool
    decoded: bool
    snapshots: list[int] = field(default_factory=list)
    objects: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def damage(self) -> list[Finding]:
        """Findings that something is broken, or is there that nobody wrote."""
        return [item for item in self.findings if item.severity in ("damage", "extra")]

    @property
    def unknown(self) -> list[Finding]:
        """Findings about what this library cannot read, so that it cannot tell."""
        return [item for item in self.findings if item.severity == "unknown"]

    @property
    def ok(self) -> bool:
        """Whether nothing but leftovers was found."""
        return not self.damage and not self.unknown

    def as_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "ok": self.ok,
            "deep": self.deep,
            "decoded": self.decoded,
            "snapshots": self.snapshots,
            "objects": self.objects,
            "bytes": self.bytes,
            "findings": [asdict(item) for item in self.findings],
        }


def rule_of(error: SnapfmtError) -> tuple[str, Severity]:
    """The rule that an error says is broken, and how bad that is."""
    if isinstance(error, (UnsupportedFeature, UnsupportedVersion)):
        return "unsupported", "unknown"
    if isinstance(error, NotFoundError):
        return "missing", "damage"
    if isinstance(error, StorageError):
        return "unreadable", "damage"
    if isinstance(error, CorruptError) and error.code == "CorruptObject":
        return ("truncated" if "truncated" in error.message else "digest"), "damage"
    return "format", "damage"
