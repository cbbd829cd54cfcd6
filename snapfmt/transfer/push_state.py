"""Where a background push stands, as it tells its run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PushState:
    """Where a background push stands."""

    running: bool
    """Whether its thread lives."""
    copying: int | None
    """Number that is being copied just now."""
    pushed: tuple[int, ...]
    """Numbers that are known to be at the target, ascending."""
    behind: tuple[int, ...]
    """Numbers that are not there yet, newest first; after `close`, what stayed behind."""
    skipped: tuple[tuple[int, str], ...]
    """Numbers that were given up, and why."""
    failures: int
    """Tries that failed since the last success."""
    last_error: str
    """What the last failure said; empty after a success."""
    lag_seconds: float
    """Since when the longest waiting of `behind` waits; 0 when nothing does."""
    bytes_sent: int
    given_up: str = ""
    """Why nothing is tried any more, as when the target is another run's; empty otherwise."""
