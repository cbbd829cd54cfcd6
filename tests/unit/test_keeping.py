"""One look at what keeps what, while others save, retire and damage between its steps."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.errors import RefusedError
from snapfmt.format import layout
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.storage.client import ObjectInfo
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.client_faults import patient
from snapfmt.testing.samples import save, save_on
from snapfmt.testing.stores import watching
from snapfmt.writing.keeping import Keeping, reached

FOLDER = "snapshots/snapshot_000001"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """One snapshot."""
    repository = Repository.create(tmp_path / "run")
    save(repository, value=1)
    return repository


def look(repository: Repository) -> Keeping:
    return Keeping(repository.store, repository_id=repository.id, limits=DEFAULT_LIMITS)


def needed(repository: Repository, number: int) -> set[str]:
    manifest = repository.snapshot(number).manifest
    return set(reached(repository.store, manifest, DEFAULT_LIMITS))


def take_out(repository: Repository) -> None:
    repository.store.unpublish(FOLDER, layout.MANIFEST, layout.RETIRING)


def path_of(repository: Repository, key: str) -> Path:
    return Path(repository.location) / key


@pytest.mark.req("K-6", "K-8")
def test_what_goes_out_after_the_first_step_stands(repository: Repository) -> None:
    """A save may have begun on it since, whose lease is not known."""
    before = needed(repository, 1)
    keeping = look(repository)
    leaving = keeping.leaving()
    keeping.held()
    take_out(repository)
    assert keeping.standing(leaving) == before
    assert look(repository).standing({1}) == set()


def test_what_goes_out_between_its_name_and_its_manifest_stands(repository: Repository) -> None:
    before = needed(repository, 1)
    other = watching(repository, "get", layout.MANIFEST, lambda: take_out(repository))
    assert look(other).standing({}) == before


@pytest.mark.req("K-8")
def test_a_save_that_ends_while_the_list_is_made_and_its_base_goes(repository: Repository) -> None:
    """The first list has neither of them."""

    def save_and_retire() -> None:
        save_on(repository, 1, value=2)
        repository.retire(1)

    other = watching(repository, "names", FOLDER, save_and_retire)
    assert look(other).standing({}) == needed(repository, 2) != set()


def index_of(repository: Repository) -> Path:
    receipt = repository.snapshot(1).manifest.parts[0]
    return path_of(repository, layout.object_key(receipt.index_digest))


DAMAGES: dict[str, Callable[[Repository], Path]] = {
    "retiring.json": lambda repository: path_of(
        repository, layout.snapshot_key(1, layout.RETIRING)
    ),
    "part index": index_of,
}


@pytest.mark.req("K-7")
@pytest.mark.parametrize("what", DAMAGES)
def test_what_went_out_since_and_cannot_be_read_stops_it(repository: Repository, what: str) -> None:
    """Nobody knows what it reached, and a save may build on it."""
    broken = DAMAGES[what](repository)
    take_out(repository)
    broken.write_bytes(broken.read_bytes()[:-2])
    with pytest.raises(RefusedError, match="cannot be read"):
        look(repository).standing({})


def test_what_went_out_since_and_is_half_removed_is_no_harm(repository: Repository) -> None:
    """Who removes it has seen that nothing holds it."""
    index = index_of(repository)
    before = needed(repository, 1)
    take_out(repository)
    index.unlink()
    assert look(repository).standing({}) < before


@pytest.mark.req("K-6")
def test_a_copy_of_its_name_that_was_made_first_takes_nothing_out(repository: Repository) -> None:
    """A bucket moves nothing; a retirement that died there may leave both."""
    manifest = path_of(repository, layout.manifest_key(1))
    manifest.with_name(layout.RETIRING).write_bytes(manifest.read_bytes())
    keeping = look(repository)
    assert keeping.numbers(layout.RETIRING) == []
    assert keeping.leaving() == {}
    assert keeping.standing({}) == needed(repository, 1)


class Rounding(MemoryClient):
    """Its listings tell the time to the second, as most do."""

    def list(self, prefix: str, *, deep: bool) -> Iterator[ObjectInfo]:
        """As the client, with times that are rounded down."""
        for info in super().list(prefix, deep=deep):
            yield replace(info, modified_ns=info.modified_ns // 10**9 * 10**9)


def test_a_listing_that_rounds_its_times_hides_no_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a save wrote in the second in which it began is found, and goes with it."""
    repository = Repository.open(ObjectStore(Rounding(), retry=patient()), create=True)
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_900_000_000)
    attempt = repository.begin()
    part = attempt.part("p")
    part.stage("note", b"lost")
    part.seal()
    assert len(look(repository).held().objects) == 2
    attempt.abandon()
    assert list(repository.store.walk(layout.OBJECTS)) == []
