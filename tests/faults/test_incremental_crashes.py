"""A save on a base that dies anywhere leaves the base, or both, whole; and no base, no save."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.errors import AttemptClosed, CorruptError, NotFoundError, SnapfmtError
from snapfmt.format import layout
from snapfmt.testing.crashes import InjectedCrash, SystemCalls
from snapfmt.testing.samples import columns, everything
from snapfmt.writing import lease as lease_module

ROWS = 40


def save(repository: Repository, base: int | None, value: int = 0) -> None:
    """Rows, an entry and records; on a base: most of them carried, some rewritten, some new."""
    with repository.begin(base=base) as attempt:
        part = attempt.part("p")
        if base is None:
            part.stage("note", b"note" * 100)
            part.records("lines", [b'{"id":"%d"}' % i for i in range(9)], key="id")
        else:
            part.carry("note")
            part.carry("lines")
        with part.table("stays") as table:
            table.carry_all([f"k{value}"])
            names = [f"k{value}"] if base is not None else [f"k{i}" for i in range(ROWS)]
            table.append(names, columns(len(names), value))
        with part.table("few") as table:
            for number, segment in enumerate(table.base_segments()):
                table.carry(number, np.arange(segment.rows) < 5)
            if base is None:
                table.append([f"k{i}" for i in range(ROWS)], columns(ROWS, value))
        attempt.publish([part.seal()])


def comparable(repository: Repository) -> dict[str, Any]:
    found = everything(repository)
    return {name: data for name, data in found.items() if not name.endswith("/manifest")}


@pytest.fixture
def origin(fast_path: Path) -> Path:
    """One snapshot."""
    save(Repository.create(fast_path / "origin"), None)
    return fast_path / "origin"


@pytest.fixture
def fresh(origin: Path) -> Callable[[str], Path]:
    """Copies of it."""
    return lambda name: Path(shutil.copytree(origin, origin.parent / name))


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_system_call_keeps_the_base(
    origin: Path, fresh: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    old = comparable(Repository.open(origin))
    root = fresh("new")
    with pytest.MonkeyPatch.context() as patch:
        names = SystemCalls(root).install(patch)
        save(Repository.open(root), 1, 3)
    new = comparable(Repository.open(root))
    assert len(new) > len(old)
    steps = [at for at, name in enumerate(names.names(), 1) if not torn or name == "write"]
    monkeypatch.setattr(lease_module, "is_dead", lambda _: True)
    outcomes = []
    for step in steps:
        root = fresh(f"crash{step}")
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(root, crash_at=step, torn=torn).install(patch)
            try:
                save(Repository.open(root), 1, 3)
            except (InjectedCrash, AttemptClosed):
                assert calls.dead
        repository = Repository.open(root)
        is_new = 2 in repository.numbers()
        outcomes.append(is_new)
        assert comparable(repository) == (new if is_new else old), step
        assert repository.verify().ok, step
        # The next save builds on what is there; then everything older may go.
        save(repository, repository.numbers()[-1], 4)
        repository.keep_latest(1)
        found = repository.verify().findings
        assert [item for item in found if not item.path.endswith(".tmp")] == [], step
        assert sum(name.split("/")[1].startswith("stays[") for name in comparable(repository)) == 40
        shutil.rmtree(root)
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]


def delete(root: Path, key: str) -> None:
    (root / key).unlink()


def damage(root: Path, key: str) -> None:
    path = root / key
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[100:-100] = bytes(len(data) - 200)
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [delete, damage])
@pytest.mark.parametrize("what", ["pack", "index"])
def test_a_base_that_is_not_whole_gives_no_snapshot(
    origin: Path, harm: Callable[[Path, str], None], what: str
) -> None:
    repository = Repository.open(origin)
    part = repository.snapshot().part("p")
    pack = part.index.tables[0].segments[0].data.pack
    harm(origin, layout.object_key(pack if what == "pack" else part.receipt.index_digest))
    with pytest.raises((NotFoundError, CorruptError)):
        save(Repository.open(origin), 1, 3)
    assert repository.numbers() == [1]
    assert repository.leases() == []


def test_a_rewrite_never_carries_damage_on(origin: Path) -> None:
    """Values that are read to be rewritten are verified; what is only referenced is not read."""
    repository = Repository.open(origin)
    segment = repository.snapshot().part("p").segments("few")[0]
    place = segment.document.data
    path = origin / layout.object_key(place.pack)
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    first = segment.index.place(0).chunks[1].offset
    data[place.offset + first + 9] ^= 1
    path.write_bytes(data)
    with pytest.raises(SnapfmtError, match="digest"):
        save(Repository.open(origin), 1, 3)
    assert repository.numbers() == [1]
