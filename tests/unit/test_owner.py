"""Start times of processes say nothing where /proc shows those of another namespace."""

import os
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.errors import NotPublished
from snapfmt.writing.owner import current_owner, is_dead

STRANGE = {
    # `unshare --pid` without a /proc of its own: numbers there are other processes'.
    "another PID namespace": {"/proc/self": "4242"},
    "another time namespace": {"/proc/self/ns/time": "time:[4026532177]"},
}


def see(monkeypatch: pytest.MonkeyPatch, links: dict[str, str]) -> None:
    read = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: links.get(str(path)) or read(path))


@pytest.fixture(params=STRANGE)
def strange_proc(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, STRANGE[request.param])


@pytest.mark.req("W-12")
@pytest.mark.parametrize("kind", STRANGE)
def test_who_looks_through_a_strange_proc_calls_nobody_dead(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = current_owner("host")
    space, _, started = known.pid_started.rpartition(":")
    later = known.model_copy(update={"pid_started": f"{space}:{int(started) + 1}"})
    assert is_dead(later)
    see(monkeypatch, STRANGE[kind])
    assert not is_dead(later)
    assert not is_dead(later.model_copy(update={"pid": 2**22 - 1}))


@pytest.mark.req("W-12")
@pytest.mark.usefixtures("strange_proc")
def test_who_saves_beside_a_strange_proc_is_called_dead_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = current_owner("host")
    assert mine.pid_started == ""
    monkeypatch.undo()
    assert not is_dead(mine)


@pytest.mark.req("W-12")
@pytest.mark.usefixtures("strange_proc")
def test_a_save_there_is_not_taken_away(repository: Repository) -> None:
    attempt = repository.begin()
    with attempt.part("a") as part:
        part.stage("x", b"1")
        assert Repository.open(Path(repository.location)).clean_up() == []
        with pytest.raises(NotPublished):
            repository.snapshot()
        attempt.publish([part.seal()])
    assert repository.numbers() == [1]


def test_a_kernel_without_time_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.readlink

    def without(path: str) -> str:
        if path == "/proc/self/ns/time":
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(os, "readlink", without)
    mine = current_owner("host")
    assert mine.pid_started
    assert not is_dead(mine)
    assert is_dead(mine.model_copy(update={"pid": 2**22 - 1}))
