"""Every bound that a hostile snapshot cannot pass, in one place (spec/v1/11-limits.md)."""

from dataclasses import dataclass

from snapfmt.errors import LimitExceeded

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that a reader checks before it allocates; sizes in bytes, all overridable."""

    manifest_size: int = 16 * MIB
    part_index_size: int = 256 * MIB
    lease_size: int = 64 * KIB
    parts: int = 65_536
    entries: int = 1_000_000
    tables: int = 65_536
    segments: int = 1_000_000
    columns: int = 16_384
    json_depth: int = 64
    json_digits: int = 4_300
    record_line: int = 1024 * MIB
    entry_size: int = 1024 * 1024 * MIB
    frame_content: int = 1024 * MIB
    frame_window_log: int = 27
    batch_rows: int = 16_777_216
    chunk_size: int = 4096 * MIB
    expansion: int = 100_000
    """Largest allowed ratio of decompressed to stored bytes of one buffer."""

    def check(self, name: str, value: int, *, what: str) -> None:
        """Compare a count with the limit of that name.

        Raises:
            LimitExceeded: If it is larger.
        """
        limit = getattr(self, name)
        if value > limit:
            raise LimitExceeded(f"{value} {name}, limit {limit}", what=what)


DEFAULT_LIMITS = Limits()
"""What a reader uses unless the caller says otherwise."""
