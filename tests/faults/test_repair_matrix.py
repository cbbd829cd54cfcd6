"""A sample of the damages, repaired; all of them: `python tests/faults/damages.py --repair`.

And repairs that are killed, also where they write pieces and close a number.
"""

import shutil
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.errors import AttemptClosed
from snapfmt.format import layout
from snapfmt.reading.source import Source
from snapfmt.repair import repair
from snapfmt.repair.gathered import Gathered
from snapfmt.repair.survey import Survey
from snapfmt.testing.corruption import Tree, flip
from snapfmt.testing.crashes import InjectedCrash, SystemCalls
from snapfmt.testing.damage_matrix import KINDS, Damage, small
from snapfmt.testing.repair_matrix import Bench, Repairs, sample, summary, things
from snapfmt.testing.shapes import SHAPES, conditions

STRIDES = {
    "bit": 30_011, "cut": 6_007, "grown": 12, "gone": 3, "swapped": 8, "replaced": 14,
    "copied": 46, "extra": 46,
}  # fmt: skip
"""One in so many of each kind."""


@pytest.mark.req("M-2", "M-6", "M-8")
def test_a_sample_of_every_kind_is_repaired(fast_path: Path) -> None:
    found = summary(sample(fast_path, STRIDES))
    assert found["problems"] == 0, found["first_problems"]
    assert found["kinds"].keys() == set(KINDS)
    assert found["tried"] > 15
    assert min(found["whole"], found["partly"], found["lost"], found["beside"]) > 2


def test_wrong_data_among_the_pieces_is_noticed(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "entry", lambda self, at, *_, **__: self.unchecked(at, 0, at.size))
    bench, found = Bench(fast_path), Repairs("bit")
    place = Repository.open(fast_path / "run").snapshot(1).part("p").entry("note").location
    data = bytearray(bench.files[layout.object_key(place.pack)])
    data[place.offset] ^= 1
    damage = Damage("bit", "note", {layout.object_key(place.pack): bytes(data)})
    bench.judge(damage, found, beside=False)
    assert ["not what was saved" in text for text in found.problems] == [True], found


def test_a_loss_that_is_not_told_is_noticed(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Survey, "_part", lambda *_: None)
    (found,) = sample(fast_path, {"gone": 1})
    assert any("told" in text for text in found.problems)


def test_a_copy_that_is_not_used_is_noticed(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Gathered._find
    monkeypatch.setattr(
        Gathered,
        "_find",
        lambda self, key, mark: find(Gathered(self._stores[:1], self._documents), key, mark),
    )
    bench, found = Bench(fast_path), Repairs("gone")
    place = Repository.open(fast_path / "run").snapshot(1).part("p").entry("note").location
    damage = Damage("gone", "note", {layout.object_key(place.pack): None})
    bench.judge(damage, found, beside=True)
    assert ["does not make it whole" in text for text in found.problems] == [True], found


@pytest.mark.parametrize("version", [0, 3, 5, 9])
def test_a_flipped_version_is_told_as_one_that_is_not_known(fast_path: Path, version: int) -> None:
    bench, found = Bench(fast_path), Repairs("bit")
    key = layout.manifest_key(2)
    data = bench.files[key].replace(b'"format_version":1', b'"format_version":%d' % version)
    bench.judge(Damage("bit", key, {key: data}), found, beside=True)
    assert (found.problems, found.beside) == ([], 1)


@pytest.fixture
def damaged(fast_path: Path) -> Path:
    """Of two snapshots the newer one lost a note, and the older one nothing."""
    root = fast_path / "run"
    repository = small(root)
    with repository.begin(base=2) as attempt:
        part = attempt.part("p", workers=1)
        part.stage("late", b"late")
        part.stage("kept", b"kept")
        attempt.publish([part.seal()])
    place = repository.snapshot(3).part("p").entry("late").location
    flip(root / layout.object_key(place.pack), place.offset)
    return root


@pytest.mark.parametrize(("what", "steps"), [("new", (-90, -14, -4)), ("pieces", (-35, -5))])
def test_a_killed_repair_goes_on(
    damaged: Path, fast_path: Path, what: str, steps: tuple[int, ...]
) -> None:
    """In the middle, when a publication is done and not tidied up, when a number is closed."""
    before = Tree.take(damaged).files
    new, pieces = fast_path / "new", fast_path / "pieces"

    def run() -> None:
        report = repair(damaged, new, pieces=pieces, workers=1)
        assert (report.whole, report.numbers("pieces"), report.closed) == ([1, 2], [3], 4)

    with pytest.MonkeyPatch.context() as patch:
        calls = SystemCalls(fast_path / what).install(patch)
        run()
    for step in steps:
        shutil.rmtree(new)
        shutil.rmtree(pieces)
        # In the context the process that died, which is this one, counts as dead.
        with conditions(SHAPES[0]):
            with pytest.MonkeyPatch.context() as patch:
                SystemCalls(fast_path / what, crash_at=len(calls.calls) + step).install(patch)
                with pytest.raises((InjectedCrash, AttemptClosed)):
                    run()
            run()
        target = Repository.open(new)
        assert target.numbers() == [1, 2]
        assert not target.verify().damage
        assert not target.leases()
        found = Repository.open(pieces, salvage=True)
        assert [item for item in found.verify().findings if not item.path.endswith(".tmp")] == []
        assert things(found.snapshot(3)) == {("entry", "kept", ""): b"kept"}
        assert Tree.take(damaged).files == before
        assert target.begin().number == 5
