"""What the processes of a soak do, one turn at a time; see `tests/faults/soak.py`.

A turn ends with a typed error or without one. It asserts what must hold whatever the others do:
what is published reads as it was given, and what is pinned is there.
"""

import contextlib
import errno
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from snapfmt.errors import ConflictError, NoMatch, NotFoundError, NotPublished, SnapfmtError
from snapfmt.repository import Repository
from snapfmt.storage.base import Store
from snapfmt.testing import soak_model
from snapfmt.testing.crashes import Call, SystemCalls
from snapfmt.testing.crew import Member, Place, Turn
from snapfmt.transfer.copying import copy_snapshot, open_target

ERRNOS: Final = ("ENOSPC", "EDQUOT", "EIO", "EACCES", "EROFS", "EMFILE")
"""What a disk answers while it is broken."""
_LATEST_CALL: Final = 90
_FAULTY: Final = 0.12
"""Share of the saves on a disk that meet a fault."""
_BRIEF: Final = 0.03
"""Share of the saves whose lease is too short for them."""
_PATIENCE_S: Final = 60.0


@dataclass(slots=True)
class Soaked:
    """A repository that is opened at the first turn of a process, and kept."""

    place: Place
    repository: Repository | None = None

    def open(self) -> Repository:
        """The one of this process."""
        if self.repository is None:
            self.repository = self.place.open()
        return self.repository


def roles(source: Place, target: Place, through: Place) -> dict[str, Turn]:
    """Every role by its name; savers reach the source `through` a way that may be faulty."""
    return {
        "saver": _with(through, save),
        "reader": _with(source, read),
        "pinner": _with(source, pin_and_read),
        "restorer": _with(source, restore),
        "collector": _with(source, collect),
        "pusher": _with(source, lambda member, repository: push(member, repository, target)),
        "keeper": _with(target, collect),
    }


def _with(place: Place, action: Callable[[Member, Repository], None]) -> Turn:
    opened = Soaked(place)
    return lambda member: action(member, opened.open())


def save(member: Member, repository: Repository) -> None:
    """One save, mostly on the newest snapshot; on a disk it may meet a fault."""
    numbers = repository.numbers()
    base = None
    if numbers and member.random.random() < 0.8:
        base = member.random.choice(numbers[-3:] if member.random.random() < 0.2 else numbers[-1:])
    brief = member.random.random() < _BRIEF
    with _faults(member, repository.store):
        with repository.begin(base=base, lease_seconds=0.02 if brief else 600.0) as attempt:
            receipts = soak_model.save(repository, attempt)
            manifest = attempt.publish(receipts)
        # Told while the fault lasts: the snapshot is there.
        member.tell("saved", number=manifest.number, write_id=manifest.write_id, base=base)


@contextlib.contextmanager
def _faults(member: Member, store: Store) -> Iterator[None]:
    """A fault of the disk, in some of the saves."""
    if "://" in store.location or member.random.random() > _FAULTY:
        yield
    elif member.random.random() < 0.3:
        with _short_files(member):
            yield
    else:
        with _failing_calls(member, Path(store.location)):
            yield


@contextlib.contextmanager
def _short_files(member: Member) -> Iterator[None]:
    """The kernel lets no file grow past a few kilobytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = member.random.choice([0, 100, 1_000, 4_000, 10_000])
    member.tell("fault", name=f"files of at most {size} bytes")
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def _failing_calls(member: Member, root: Path) -> Iterator[None]:
    """One system call fails, or all from one on."""
    name = member.random.choice(ERRNOS)
    first = member.random.randrange(_LATEST_CALL)
    for_good = member.random.random() < 0.4
    seen = [0]

    def fail(call: Call) -> OSError | None:
        seen[0] += 1
        if seen[0] <= first or (seen[0] > first + 1 and not for_good):
            return None
        if seen[0] == first + 1:
            member.tell("fault", name=f"{name} of {call.name}")
        code = getattr(errno, name)
        return OSError(code, os.strerror(code), call.path)

    with pytest.MonkeyPatch.context() as patch:
        SystemCalls(root, fail=fail).install(patch)
        yield


def read(member: Member, repository: Repository) -> None:
    """Read a published snapshot whole, or have it verified; it may be retired meanwhile."""
    time.sleep(member.random.uniform(0.0, 0.6))
    numbers = repository.numbers()
    if not numbers:
        time.sleep(0.05)
        return
    number = member.random.choice(numbers)
    try:
        if member.random.random() < 0.3:
            report = repository.verify(number, deep=member.random.random() < 0.5)
            if report.ok or number not in repository.numbers():
                member.tell("verified", number=number)
                return
            raise AssertionError(f"snapshot {number}: {report.damage[:3]}")
        member.tell("read", number=number, bytes=soak_model.check(repository.snapshot(number)))
    except NotFoundError as error:
        _only_if_retired(repository, number, error)


def _only_if_retired(repository: Repository, number: int, error: SnapfmtError) -> None:
    if number in repository.numbers():
        raise AssertionError(f"snapshot {number} is published and lost: {error}") from error


def pin_and_read(member: Member, repository: Repository) -> None:
    """Read a snapshot under a pin, several times: nothing may fail."""
    numbers = repository.numbers()
    name = member.name.replace(" ", "-")
    if not numbers:
        time.sleep(0.05)
        return
    if name in repository.pins():
        # Of one that was killed under this name.
        member.tell("unpinning", name=name)
        repository.unpin(name)
    number = member.random.choice(numbers)
    try:
        repository.pin(name, number)
    except NotPublished:
        return
    # From here on it is promised.
    member.tell("pinned", name=name, number=number)
    for _ in range(3):
        try:
            found = soak_model.check(repository.snapshot(number))
        except SnapfmtError as error:
            raise AssertionError(f"the pinned snapshot {number} failed: {error}") from error
        member.tell("read", number=number, bytes=found)
        time.sleep(member.random.uniform(0.0, 0.6))
    member.tell("unpinning", name=name)
    repository.unpin(name)


def restore(member: Member, repository: Repository) -> None:
    """Find the newest good snapshot, as a restore does, and read every row of it."""
    time.sleep(member.random.uniform(0.0, 1.5))
    until = time.monotonic() + _PATIENCE_S
    while repository.numbers():
        # The newest may be retired, by then an old one, between any two looks.
        try:
            chosen = repository.latest(deep=member.random.random() < 0.3)
            found = soak_model.check(chosen.snapshot)
        except (NotFoundError, NoMatch) as error:
            if time.monotonic() > until:
                raise AssertionError(f"no snapshot can be restored: {error}") from error
            continue
        member.tell("restored", number=chosen.snapshot.number, bytes=found)
        return


def collect(member: Member, repository: Repository) -> None:
    """Retire, collect or clean up."""
    time.sleep(member.random.uniform(0.0, 0.8))
    choice = member.random.random()
    if choice < 0.5:
        repository.keep_latest(member.random.randrange(1, 6))
    elif choice < 0.65:
        numbers = repository.numbers()
        if numbers[:-1]:
            repository.retire(member.random.choice(numbers[:-1]))
    elif choice < 0.9:
        report = repository.collect()
        member.tell("collected", bytes=report.bytes(removed=True))
    elif choice < 0.95:
        repository.collect(dry_run=True)
    else:
        repository.clean_up()
    member.tell("kept")


def push(member: Member, repository: Repository, target: Place) -> None:
    """Copy a snapshot to the second repository, and read it there."""
    time.sleep(member.random.uniform(0.0, 1.5))
    numbers = repository.numbers()
    if not numbers:
        return
    copies = open_target(target.location, repository, storage_options=target.options)
    number = numbers[-1] if member.random.random() < 0.8 else member.random.choice(numbers)
    try:
        report = copy_snapshot(repository, copies, number, deep=member.random.random() < 0.1)
    except ConflictError as error:
        # The target may have retired it. Another snapshot of that number cannot be there.
        if "retired" in str(error):
            return
        raise AssertionError(str(error)) from error
    member.tell("pushed", number=number, new=report.published)
    try:
        member.tell("read", number=number, bytes=soak_model.check(copies.snapshot(number)))
    except NotFoundError as error:
        _only_if_retired(copies, number, error)
