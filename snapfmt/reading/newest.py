"""Which snapshot a run goes on from: the newest that is whole and fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from snapfmt.errors import FingerprintMismatch, NoMatch, SnapfmtError, StorageUnavailable
from snapfmt.reading.snapshot import Snapshot
from snapfmt.reading.verify import verify
from snapfmt.storage.base import Store
from snapfmt_schemas.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class Selection:
    """The newest snapshot that fits, and why newer ones were passed over."""

    snapshot: Snapshot
    passed_over: tuple[tuple[int, str], ...]


def newest(
    store: Store,
    numbers: Sequence[int],
    snapshot_of: Callable[[int], Snapshot],
    *,
    location: str,
    fingerprints: Sequence[Fingerprint],
    shallow: bool,
    deep: bool,
) -> Selection:
    """See `Repository.latest`; `numbers` are those of published snapshots, ascending."""
    passed: list[tuple[int, str]] = []
    differences: tuple[str, ...] = ()
    only_fingerprints = True
    for number in reversed(numbers):
        try:
            snapshot = snapshot_of(number)
            snapshot.require(fingerprints)
            if shallow or deep:
                report = verify(store, [snapshot], deep=deep)
                if damage := report.damage:
                    raise NoMatch(f"{len(damage)} damaged: {damage[0].path}: {damage[0].message}")
            return Selection(snapshot, tuple(passed))
        except FingerprintMismatch as error:
            differences = differences or error.differences
            passed.append((number, str(error)))
        except StorageUnavailable:
            # An outage must not make a run go back to an older snapshot.
            raise
        except SnapfmtError as error:
            only_fingerprints = False
            passed.append((number, str(error)))
    reasons = "; ".join(f"snapshot {number}: {reason}" for number, reason in passed)
    if passed and only_fingerprints:
        raise FingerprintMismatch(
            f"no snapshot fits this run: {reasons}",
            what=location,
            hint="restore with the run's old configuration, or start afresh",
            differences=differences,
        )
    raise NoMatch(
        f"no snapshot fits: {reasons or 'none was published'}",
        what=location,
        hint="run `snapfmt verify` on it" if passed else "save one first",
    )
