"""Which snapshot to restore: the newest that fits this run and whose parts fit together.

Everything is read and checked here, before a restore touches anything live.
"""

from dataclasses import dataclass
from typing import Final

from snapfmt import Repository, Snapshot
from snapfmt.errors import (
    FingerprintMismatch,
    FormatError,
    NoMatch,
    RestoreRefused,
    SnapfmtError,
    StorageError,
    StorageUnavailable,
)
from snapfmt_coordinator.gym.parts import GymParts
from snapfmt_coordinator.sequence import consistency, records
from snapfmt_coordinator.sequence.indexes import GymIndexes, read_indexes
from snapfmt_coordinator.sequence.ports import ControllerLoader, SavedController
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.manifest import TrainerAnchor

_GYM: Final = "gym/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a snapshot must be to fit this run."""

    fingerprints: tuple[Fingerprint, ...]
    anchor: TrainerAnchor | None
    """The trainer's place, where the trainer was restored first; None: any."""
    gym: bool
    deep: bool
    """Whether every stored byte is checked, not only that it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """A snapshot that fits, read as far as a restore needs it."""

    snapshot: Snapshot
    record: records.SaveRecord
    controller: SavedController
    indexes: GymIndexes
    """Empty when Gym took no part."""
    passed_over: tuple[tuple[int, str], ...]
    """Numbers of newer snapshots, and why each was passed over."""


def select(
    repository: Repository,
    loader: ControllerLoader,
    wanted: Wanted,
    *,
    number: int | None = None,
) -> Selected:
    """The newest snapshot that fits, or the one of that number; blocking.

    A newer one that is damaged, cannot be read, or was saved by a run that differs is passed
    over.

    Raises:
        RestoreRefused: If the newest one has Gym state and this run has no Gym, or the reverse.
        FingerprintMismatch: If fingerprints alone are the reason that none fits.
        StorageError: If none was found, and the storage failed for one of them at least.
        NoMatch: If none fits; says of each one why.
    """
    passed: list[tuple[int, str]] = []
    differences: tuple[str, ...] = ()
    mismatches = 0
    failure: StorageError | None = None
    for candidate in [number] if number is not None else reversed(repository.numbers()):
        try:
            return _read(repository, loader, wanted, candidate, tuple(passed))
        except (RestoreRefused, StorageUnavailable):
            # An outage must not make a run go back to an older snapshot.
            raise
        except FingerprintMismatch as error:
            mismatches += 1
            differences = differences or error.differences
            passed.append((candidate, str(error)))
        except SnapfmtError as error:
            if failure is None and isinstance(error, StorageError):
                failure = error
            passed.append((candidate, f"{error.code}: {error}"))
    reasons = "; ".join(f"snapshot {candidate}: {reason}" for candidate, reason in passed)
    if failure is not None:
        # Whether it fits is not known, and to begin afresh would give its work up.
        raise type(failure)(
            f"no snapshot can be restored: {reasons}",
            what=repository.location,
            hint="mend the storage and try again",
        ) from failure
    if passed and mismatches == len(passed):
        raise FingerprintMismatch(
            f"no snapshot fits this run: {reasons}",
            what=repository.location,
            hint="restore with the run's old configuration and servers, or start afresh",
            differences=differences,
        )
    raise NoMatch(
        f"no snapshot can be restored: {reasons or 'none was published'}",
        what=repository.location,
        hint="run `snapfmt verify` on it" if passed else "save one first",
    )


def _read(
    repository: Repository,
    loader: ControllerLoader,
    wanted: Wanted,
    number: int,
    passed: tuple[tuple[int, str], ...],
) -> Selected:
    snapshot = repository.snapshot(number)
    record, gym = records.of_snapshot(snapshot), records.gym_of_snapshot(snapshot)
    # First: a snapshot without Gym has no topology, and would be refused for that.
    _require_gym(snapshot, record, gym, live=wanted.gym)
    snapshot.require(wanted.fingerprints)
    _require_anchor(snapshot, wanted.anchor)
    if damage := repository.verify(number, deep=wanted.deep).damage:
        raise FormatError(
            f"{len(damage)} damaged: {damage[0].path}: {damage[0].message}", what=snapshot.name
        )
    controller = loader.read(snapshot)
    indexes = None if gym is None else read_indexes(snapshot.part, gym)
    rows = frozenset[str]()
    table = f"rows/{record.capture_partition}"
    if table in snapshot.table_names():
        rows = frozenset(snapshot.table(table).keys())
    found = consistency.problems(indexes, controller, rows)
    if indexes is not None:
        found += consistency.given_up(indexes, controller)
        found += consistency.lost_sessions(indexes)
    if found:
        raise FormatError(f"its parts do not fit together: {'; '.join(found)}", what=snapshot.name)
    return Selected(
        snapshot=snapshot,
        record=record,
        controller=controller,
        indexes=indexes or GymIndexes((), ()),
        passed_over=passed,
    )


def _require_anchor(snapshot: Snapshot, anchor: TrainerAnchor | None) -> None:
    stored = snapshot.manifest.anchor
    if anchor is None or stored == anchor:
        return
    raise NoMatch(f"it stands on {stored}, the trainer on {anchor}", what=snapshot.name)


def _require_gym(
    snapshot: Snapshot, record: records.SaveRecord, gym: GymParts | None, *, live: bool
) -> None:
    """Refuses in both directions: neither half of the state may be left out unnoticed."""
    saved = [name for name in snapshot.part_names() if name.startswith(_GYM)]
    if record.gym != (gym is not None) or (saved and gym is None):
        raise FormatError("manifest and record differ on whether Gym took part", what=snapshot.name)
    if record.gym and not live:
        raise RestoreRefused(
            "the snapshot holds state of Gym servers, and this run restores none",
            what=snapshot.name,
            hint="restore it with Gym taking part",
        )
    if live and not record.gym:
        raise RestoreRefused(
            "the snapshot was saved without Gym, and this run restores Gym servers",
            what=snapshot.name,
            hint="restore it without Gym, or choose another snapshot",
        )
    if gym is not None and gym.checkpoint_id != record.checkpoint_id:
        raise FormatError("its Gym parts are of another checkpoint", what=snapshot.name)
