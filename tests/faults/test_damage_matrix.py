"""A sample of the damages; all of them: `python tests/faults/damages.py`."""

from pathlib import Path

import pytest

from snapfmt.reading.source import Source
from snapfmt.reading.verify import _Audit
from snapfmt.testing.damage_matrix import KINDS, damages, run_all, run_share, small, summary

STRIDES = {"bit": 3023, "cut": 701}
"""Of the kinds with very many damages; of the others one in six."""


def test_a_sample_of_every_kind_is_found(fast_path: Path) -> None:
    tallies = [
        item
        for kind in KINDS
        for item in run_all([kind], str(fast_path), stride=STRIDES.get(kind, 6))
    ]
    found = summary(tallies)
    assert found["problems"] == 0, found["first_problems"]
    assert found["kinds"].keys() == set(KINDS)
    assert found["tried"] == found["found"]
    assert found["tried"] > 80
    assert found["kinds"]["bit"]["unread"] > found["kinds"]["bit"]["tried"] / 2


def test_every_bit_of_every_byte_is_flipped() -> None:
    flips = list(damages({"x": b"ab"}, "bit"))
    assert len({damage.files["x"] for damage in flips}) == 16
    assert [damage.files["x"] for damage in damages({"x": b"ab"}, "cut")] == [b"", b"a"]
    swapped = list(damages({"x": b"1", "y": b"2"}, "swapped"))
    assert [damage.files for damage in swapped] == [{"x": b"2", "y": b"1"}]


def test_the_small_repository_has_something_of_everything(fast_path: Path) -> None:
    repository = small(fast_path / "run")
    part = repository.snapshot(2).part("p")
    assert [entry.path for entry in part.entries()] == ["note", "lines", "lines.index"]
    assert any(item.document.live is not None for item in part.segments("t"))
    assert repository.verify().findings == []


def test_wrong_data_is_noticed(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "entry", lambda self, at, *_, **__: self.unchecked(at, 0, at.size))
    tally = run_share(("bit", 0), str(fast_path), shares=1, stride=1009)
    assert any("reads as what was not saved" in text for text in tally.problems)


def test_what_the_audit_does_not_tell_is_noticed(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Audit, "beside", lambda _: None)
    tally = run_share(("extra", 0), str(fast_path), shares=1, stride=18)
    assert any("does not tell of it" in text for text in tally.problems)
