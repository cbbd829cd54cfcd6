"""Whatever is saved, given up, retired, pinned and collected: what must stay is there, exactly."""

import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from snapfmt import Repository
from snapfmt.errors import LeaseExpired, NotFoundError, RefusedError, SnapshotBusy
from snapfmt.format import canonical, layout
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing import gc_world
from snapfmt.testing.client_faults import patient
from snapfmt.testing.s3_servers import S3Server
from snapfmt.writing import lease as lease_module
from snapfmt.writing import pins as pins_module
from snapfmt.writing.attempt import Attempt
from snapfmt.writing.base import open_base
from snapfmt.writing.keeping import reached
from snapfmt.writing.presence import Presence

Data = dict[str, bytes]
NUMBERS = st.integers(0, 7)


class Retention(RuleBasedStateMachine):
    """A repository beside a plain model of it. `make` gives an empty one."""

    make: Callable[[], Repository]
    open_saves = Bundle("open_saves")

    def __init__(self) -> None:
        super().__init__()
        self.repository = type(self).make()
        self.snapshots: dict[int, Data] = {}
        self.pins: dict[str, int] = {}
        self.running: dict[str, tuple[Attempt, int | None]] = {}
        self.numbers = 0
        self.opened: list[tuple[int, Any, Data]] = []

    def choose(self, place: int) -> int | None:
        """One of the published."""
        numbers = sorted(self.snapshots)
        return numbers[place % len(numbers)] if numbers else None

    def held(self) -> set[int]:
        bases = {base for _, base in self.running.values() if base is not None}
        return bases | set(self.pins.values())

    @rule(target=open_saves, place=NUMBERS, incremental=st.booleans())
    def begin(self, place: int, incremental: bool) -> Any:
        base = self.choose(place) if incremental else None
        # In a bucket a number is used up by a save that was cleaned up.
        self.numbers += 1
        attempt = self.repository.begin(base=base, number=self.numbers)
        self.running[attempt.id] = (attempt, base)
        return attempt.id

    @rule(save=open_saves)
    def write_more(self, save: str) -> None:
        if save in self.running:
            gc_world.write(self.repository.store, self.running[save][0], "spare")

    @rule(save=consumes(open_saves))
    def publish(self, save: str) -> None:
        attempt, base = self.running.pop(save)
        store = self.repository.store
        name = f"own{attempt.number}"
        receipts = [gc_world.write(store, attempt, name)]
        data = {f"{name}/note": f"what {name} of {attempt.id} holds".encode()}
        if base is not None:
            for part in open_base(store, attempt.ticket("carried")).parts():
                receipts.append(gc_world.seal(store, attempt, part.name, part.entries()))
                data[f"{part.name}/note"] = part.read("note")
        attempt.publish(receipts)
        self.snapshots[attempt.number] = data

    @rule(save=consumes(open_saves))
    def abandon(self, save: str) -> None:
        self.running.pop(save)[0].abandon()

    @rule(save=consumes(open_saves), after_writing=st.booleans(), all_lost=st.booleans())
    def crash(self, save: str, after_writing: bool, all_lost: bool) -> None:
        """The process is gone; `all_lost`: a power cut also took lease and workspace."""
        attempt, _ = self.running.pop(save)
        store = self.repository.store
        if after_writing:
            gc_world.write(store, attempt, "lost")
        if all_lost:
            store.drop_workspace(layout.workspace_key(attempt.id))
            store.delete(layout.lease_key(attempt.id))
        else:
            self.make_dead(attempt)

    def make_dead(self, owner: Attempt | Presence) -> None:
        over = owner._lease.model_copy(update={"expires_at_ns": 1})
        self.repository.store.replace(layout.lease_key(owner.id), canonical.encode(over))

    @rule(announced=st.booleans(), base=NUMBERS)
    def die_announced(self, announced: bool, base: int) -> None:
        """As a retirement that died before its first step, or who died before a pin was made."""
        if announced:
            dead = Presence(self.repository.store, layout.retire_key)
            self.make_dead(dead.__enter__())
            return
        lease = lease_module.new_lease(0, base=self.choose(base), seconds=-1.0)
        self.repository.store.create(layout.lease_key(lease.attempt_id), canonical.encode(lease))

    @precondition(lambda self: self.snapshots)
    @rule(place=NUMBERS)
    def retire(self, place: int) -> None:
        number = self.choose(place)
        assert number is not None
        if number in self.held():
            with pytest.raises(RefusedError):
                self.repository.retire(number)
            return
        self.repository.retire(number)
        del self.snapshots[number]

    @precondition(lambda self: self.snapshots)
    @rule(count=st.integers(1, 4))
    def keep_latest(self, count: int) -> None:
        expected = [n for n in sorted(self.snapshots)[:-count] if n not in self.held()]
        assert self.repository.surplus(count) == expected
        assert self.repository.keep_latest(count) == expected
        for number in expected:
            del self.snapshots[number]

    @precondition(lambda self: self.snapshots)
    @rule(place=NUMBERS)
    def retire_half(self, place: int) -> None:
        """As a retirement that died after its first step."""
        number = self.choose(place)
        assert number is not None
        if number not in self.held():
            folder = f"{layout.SNAPSHOTS}/{layout.snapshot_name(number)}"
            self.repository.store.unpublish(folder, layout.MANIFEST, layout.RETIRING)
            del self.snapshots[number]

    @precondition(lambda self: self.snapshots)
    @rule(name=st.sampled_from("abc"), place=NUMBERS)
    def pin(self, name: str, place: int) -> None:
        number = self.choose(place)
        assert number is not None
        if name not in self.pins:
            self.repository.pin(name, number)
            self.pins[name] = number

    @precondition(lambda self: self.snapshots)
    @rule(name=st.sampled_from("abc"), place=NUMBERS, died=st.booleans())
    def pin_beside_a_retirement(self, name: str, place: int, died: bool) -> None:
        """It is announced, and goes on; or it died and nobody has noticed yet."""
        number = self.choose(place)
        assert number is not None
        with Presence(self.repository.store, layout.retire_key) as seen:
            if not died:
                with pytest.raises(SnapshotBusy):
                    self.repository.pin(name, number)
                seen.check()
            elif name not in self.pins:
                self.make_dead(seen)
                self.repository.pin(name, number)
                self.pins[name] = number
                with pytest.raises(LeaseExpired):
                    seen.check()

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        name = min(self.pins)
        self.repository.unpin(name)
        del self.pins[name]

    @precondition(lambda self: self.snapshots)
    @rule(place=NUMBERS)
    def open_one(self, place: int) -> None:
        number = self.choose(place)
        assert number is not None
        self.opened.append((number, self.repository.snapshot(number), self.snapshots[number]))

    @rule()
    def read_opened(self) -> None:
        """One that was opened gives exact data, or says that it is gone."""
        for number, snapshot, data in self.opened:
            try:
                assert self.read(snapshot) == data
            except NotFoundError:
                assert number not in self.snapshots
        self.opened.clear()

    @rule()
    def collect(self) -> None:
        try:
            dry = self.repository.collect(dry_run=True)
        except RefusedError:
            # Nothing was published yet, and a journal is lost: see K-19.
            assert self.repository.store.names(layout.SNAPSHOTS) == []
            self.repository.clean_up()
            return
        real = self.repository.collect()
        assert dry.objects == real.objects
        assert (dry.attempts, dry.finished) == (real.attempts, real.finished)
        stored = {key for key, _ in self.repository.store.walk(layout.OBJECTS)}
        if not self.running:
            assert stored == self.needed()

    def needed(self) -> set[str]:
        return {
            key
            for number in self.snapshots
            for key in reached(
                self.repository.store, self.repository.snapshot(number).manifest, DEFAULT_LIMITS
            )
        }

    @invariant()
    def what_is_published_is_whole(self) -> None:
        assert self.repository.numbers() == sorted(self.snapshots)
        for number, data in self.snapshots.items():
            assert self.read(self.repository.snapshot(number)) == data
        assert self.repository.pins() == self.pins

    def read(self, snapshot: Any) -> Data:
        return {f"{part.name}/note": part.read("note") for part in snapshot.parts()}

    def teardown(self) -> None:
        for attempt, _ in self.running.values():
            attempt.abandon()
        self.running.clear()
        self.collect()
        assert self.repository.leases() == []


def run(make: Callable[[], Repository], *, examples: int, steps: int) -> None:
    machine = type("Machine", (Retention,), {"make": staticmethod(make)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps)
    )


@pytest.fixture(autouse=True)
def nobody_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Crashed saves of this living process are over by their lease. No wait lasts."""
    monkeypatch.setattr(lease_module, "is_dead", lambda _: False)
    monkeypatch.setattr(pins_module, "PAUSES_S", (0.0,))


def test_in_memory() -> None:
    run(
        lambda: Repository.open(ObjectStore(MemoryClient(), retry=patient()), create=True),
        examples=25,
        steps=30,
    )


def test_on_a_disk() -> None:
    with tempfile.TemporaryDirectory() as folder:
        count = iter(range(10_000))
        run(
            lambda: Repository.create(f"{folder}/run{next(count)}"),
            examples=12,
            steps=25,
        )


def test_in_a_bucket(seaweedfs: S3Server, bucket_url: Callable[[], str]) -> None:
    run(
        lambda: Repository.open(bucket_url(), create=True, storage_options=seaweedfs.options),
        examples=3,
        steps=15,
    )
