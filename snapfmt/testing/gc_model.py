"""A small model of saving, pinning, retiring and collecting, and all of its interleavings.

Each process is a generator: it yields one step on the shared state and gets what the step saw. A
process is what it has seen so far, so that two schedules which lead to the same shared state and
to the same sights go on alike, and are followed once. All schedules are covered, without a bound.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

PUBLISHED, RETIRING, CLOSED = "published", "retiring", "closed"


@dataclass(frozen=True, slots=True)
class Shared:
    """What lies in the repository."""

    objects: frozenset[str]
    snapshots: tuple[tuple[int, str, frozenset[str]], ...]
    """Number, state, and the objects that it reaches."""
    leases: frozenset[tuple[str, int]] = frozenset()
    """Owner and base; 0 is no base."""
    announced: frozenset[str] = frozenset()
    """Retirements that are announced."""
    pins: frozenset[int] = frozenset()
    promised: frozenset[int] = frozenset()
    """Numbers of pins that were reported as made."""

    def wrong(self) -> bool:
        """A published snapshot lacks an object, or a pinned one is not published."""
        return not all(
            reach <= self.objects for _, state, reach in self.snapshots if state == PUBLISHED
        ) or any(self.state(number) != PUBLISHED for number in self.promised)

    def holds(self, number: int) -> bool:
        """Whether a lease has it as its base."""
        return any(base == number for _, base in self.leases)

    def state(self, number: int) -> str:
        """Of a snapshot; empty where there is none."""
        return next((state for known, state, _ in self.snapshots if known == number), "")

    def reach(self, number: int) -> frozenset[str]:
        """Of a snapshot."""
        return next(reach for known, _, reach in self.snapshots if known == number)

    def without(self, key: str) -> "Shared":
        """With one object less."""
        return replace(self, objects=self.objects - {key})

    def change(self, number: int, state: str) -> "Shared":
        """With the snapshot in another state."""
        return replace(
            self,
            snapshots=tuple(
                (known, state if known == number else old, reach)
                for known, old, reach in self.snapshots
            ),
        )


Step = Callable[[Shared], tuple[Shared, Any]]
Process = Callable[[], Generator[Step, Any, None]]


@dataclass(frozen=True, slots=True)
class Rules:
    """Which of the rules are followed."""

    objects_first: bool = True
    leases_before_snapshots: bool = True
    keeps_what_goes_out: bool = True
    lists_until_stable: bool = True
    base_after_lease: bool = True
    lease_outlives_publication: bool = True
    announces: bool = True
    looks_again_when_announced: bool = True
    looks_before_its_step: bool = True
    leases_before_pins: bool = True
    lease_before_the_look: bool = True
    waits: bool = True
    lease_outlives_pinning: bool = True
    never_takes_a_pin_back: bool = True


def look(read: Callable[[Shared], Any]) -> Step:
    """A step that changes nothing."""
    return lambda shared: (shared, read(shared))


def do(change: Callable[[Shared], Shared]) -> Step:
    """A step that tells nothing."""
    return lambda shared: (change(shared), None)


def put(where: str, item: Any) -> Step:
    """A step that adds to one of the sets."""
    return do(lambda shared: replace(shared, **{where: getattr(shared, where) | {item}}))


def drop(where: str, item: Any) -> Step:
    """A step that takes from one of the sets."""
    return do(lambda shared: replace(shared, **{where: getattr(shared, where) - {item}}))


def saver(name: str, number: int, base: int, rules: Rules) -> Process:
    """A save on a base, which carries all that the base reaches."""
    mine = frozenset({name})

    lease = (name, base)

    def base_there(shared: Shared) -> bool:
        return not base or shared.state(base) == PUBLISHED

    def run() -> Generator[Step, Any, None]:
        if not rules.base_after_lease and not (yield look(base_there)):
            return
        yield put("leases", lease)
        if rules.base_after_lease and not (yield look(base_there)):
            yield drop("leases", lease)
            return
        yield do(lambda shared: replace(shared, objects=shared.objects | mine))
        if not rules.lease_outlives_publication:
            yield drop("leases", lease)
        carried = (yield look(lambda shared: shared.reach(base))) if base else frozenset()
        new = (number, PUBLISHED, mine | carried)
        if (yield look(lambda shared: new[2] <= shared.objects)):
            yield do(lambda shared: replace(shared, snapshots=(*shared.snapshots, new)))
        if rules.lease_outlives_publication:
            yield drop("leases", lease)

    return run


def removal(rules: Rules, *, sweep: bool) -> Generator[Step, Any, None]:
    """What a retirement does after its first step; `sweep`: what a collection does."""

    def numbers(shared: Shared, *states: str) -> frozenset[int]:
        return frozenset(number for number, state, _ in shared.snapshots if state in states)

    def list_objects(shared: Shared) -> frozenset[str]:
        return shared.objects

    listed: frozenset[str] = frozenset()
    if sweep and rules.objects_first:
        listed = yield look(list_objects)
    leaving = yield look(lambda shared: numbers(shared, RETIRING))
    held = (yield look(lambda shared: shared.leases)) if rules.leases_before_snapshots else None
    states = (PUBLISHED, RETIRING) if rules.keeps_what_goes_out else (PUBLISHED,)
    kept: dict[int, frozenset[str]] = {}
    before: frozenset[int] | None = None
    while True:
        # The names are one list; each is looked at later.
        names = yield look(lambda shared: numbers(shared, PUBLISHED, RETIRING, CLOSED))
        if names == before:
            break
        before = names
        for number in sorted(names - leaving - kept.keys()):
            state = yield look(partial(Shared.state, number=number))
            if state in states:
                kept[number] = yield look(partial(Shared.reach, number=number))
        if not rules.lists_until_stable:
            break
    if held is None:
        held = yield look(lambda shared: shared.leases)
    if sweep and not rules.objects_first:
        listed = yield look(list_objects)
    reach = {}
    for number in sorted(leaving):
        reach[number] = yield look(partial(Shared.reach, number=number))
    waiting = {number for number in leaving if any(base == number for _, base in held)}
    stay = set().union(*kept.values(), *(reach[number] for number in waiting))
    stay |= {owner for owner, _ in held}
    gone = listed.union(*reach.values())
    for key in sorted(gone - stay):
        yield do(partial(Shared.without, key=key))
    for number in sorted(leaving - waiting):
        yield do(partial(Shared.change, number=number, state=CLOSED))


def retirement(number: int, rules: Rules, name: str = "r") -> Process:
    """Takes one snapshot out."""

    def out(shared: Shared) -> Shared:
        """Its step. Only who still finds it published takes it out.

        It comes right after the look for what was announced, within half a lease.
        """
        fenced = rules.announces and name not in shared.announced
        if shared.state(number) != PUBLISHED or (rules.looks_before_its_step and fenced):
            return shared
        return shared.change(number, RETIRING)

    def is_held() -> Generator[Step, Any, bool]:
        looks = [look(lambda shared: shared.holds(number)), look(lambda s: number in s.pins)]
        for step in looks if rules.leases_before_pins else reversed(looks):
            if (yield step):
                return True
        return False

    def run() -> Generator[Step, Any, None]:
        if (yield from is_held()):
            return
        if (yield look(lambda shared: shared.state(number))) != PUBLISHED:
            return
        if rules.announces:
            yield put("announced", name)
            if rules.looks_again_when_announced and (yield from is_held()):
                yield drop("announced", name)
                return
        yield do(out)
        if rules.announces:
            yield drop("announced", name)
        yield from removal(rules, sweep=False)

    return run


def pinner(name: str, number: int, rules: Rules) -> Process:
    """Pins one snapshot. One that has no patience takes a retirement for dead."""
    lease = ("leases", (name, number))

    def retirements(shared: Shared) -> frozenset[str]:
        return shared.announced

    def run() -> Generator[Step, Any, None]:
        own = lease if rules.never_takes_a_pin_back else ("pins", number)
        if rules.lease_before_the_look:
            yield put(*own)
        seen = (yield look(retirements)) if rules.waits else frozenset()
        if not rules.lease_before_the_look:
            yield put(*own)
        if seen and name == "hasty":
            yield do(lambda shared: replace(shared, announced=frozenset()))
        elif seen and seen & (yield look(retirements)):
            yield drop(*own)
            return
        if (yield look(lambda shared: shared.state(number))) != PUBLISHED:
            yield drop(*own)
            return
        if not rules.lease_outlives_pinning:
            yield drop(*lease)
        yield put("pins", number)
        yield put("promised", number)
        yield drop(*lease)

    return run


def collection(rules: Rules) -> Process:
    """Sweeps."""
    return lambda: removal(rules, sweep=True)


def scenarios(rules: Rules) -> dict[str, list[Process]]:
    """Who runs beside whom."""
    on_2, on_its = saver("s", 3, 2, rules), saver("t", 4, 3, rules)
    pin = pinner("p", 2, rules)
    alone, collect = saver("t", 4, 0, rules), collection(rules)
    retire_1, retire_2 = retirement(1, rules, "r1"), retirement(2, rules)
    return {
        "a save on 2, retire 2, collect": [on_2, retire_2, collect],
        "a save on 2, retire 2, retire 1": [on_2, retire_2, retire_1],
        "a save on 2, another, collect": [on_2, alone, collect],
        "a save on 2, a save on that, collect": [on_2, on_its, collect],
        "a save on 2, collect, collect": [on_2, collect, collect],
        "pin 2, retire 2, collect": [pin, retire_2, collect],
        "pin 2, retire 2, retire 2": [pin, retire_2, retirement(2, rules, "q")],
        "pin 2, pin 2, retire 2": [pin, pinner("q", 2, rules), retire_2],
        "pin 2 without patience, retire 2": [pinner("hasty", 2, rules), retire_2],
        "a save on 2, pin 2, retire 2": [on_2, pin, retire_2],
    }


START: Final = Shared(
    objects=frozenset({"a", "b", "lost"}),
    snapshots=((1, PUBLISHED, frozenset({"a"})), (2, PUBLISHED, frozenset({"a", "b"}))),
)


@dataclass(slots=True)
class Outcome:
    """What following all interleavings found."""

    states: int = 0
    interleavings: int = 0
    lost: list[Shared] = field(default_factory=list)
    """States in which a published snapshot lacks an object, or a pin does not hold."""


Seen = tuple[tuple[Any, ...], ...]


def explore(processes: Sequence[Process], start: Shared = START, *, enough: int = 1) -> Outcome:
    """Follow every interleaving; ends early with so many losses."""
    found = Outcome()
    steps: dict[tuple[int, tuple[Any, ...]], Step | None] = {}
    ways: dict[tuple[Shared, Seen], int] = {}

    def step_of(process: int, seen: tuple[Any, ...]) -> Step | None:
        key = (process, seen)
        if key not in steps:
            running = processes[process]()
            try:
                step = next(running)
                for sight in seen:
                    step = running.send(sight)
                steps[key] = step
            except StopIteration:
                steps[key] = None
        return steps[key]

    todo = [(start, ((),) * len(processes))]
    while todo and len(found.lost) < enough:
        here = todo[-1]
        shared, seen = here
        nexts = []
        for process, sights in enumerate(seen):
            step = step_of(process, sights)
            if step is not None:
                after, sight = step(shared)
                nexts.append((after, (*seen[:process], (*sights, sight), *seen[process + 1 :])))
        missing = [item for item in nexts if item not in ways]
        if missing:
            todo += missing
            continue
        todo.pop()
        if here not in ways:
            ways[here] = sum(ways[item] for item in nexts) or 1
            if shared.wrong():
                found.lost.append(shared)
    found.states = len(ways)
    found.interleavings = ways.get((start, ((),) * len(processes)), 0)
    return found
