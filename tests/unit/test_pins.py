"""A pin keeps a snapshot from being retired, from the moment that it is given out."""

from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository
from snapfmt.errors import ConflictError, InputError, NoMatch, NotPublished, RefusedError
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.client_faults import patient
from snapfmt.testing.samples import contents, save


@pytest.fixture(params=["disk", "bucket"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """Three snapshots, in each kind of place."""
    if request.param == "disk":
        repository = Repository.create(tmp_path / "run")
    else:
        repository = Repository.open(ObjectStore(MemoryClient(), retry=patient()), create=True)
    for value in range(1, 4):
        save(repository, value=value)
    return repository


@pytest.mark.req("K-2", "K-10")
def test_what_is_pinned_stays_until_it_is_unpinned(repository: Repository) -> None:
    assert repository.pins() == {}
    pin = repository.pin("best", 1)
    assert (pin.name, pin.number, pin.schema_version) == ("best", 1, 1)
    repository.pin("also-best", 1)
    assert repository.pins() == {"also-best": 1, "best": 1}
    assert repository.surplus(1) == [2]
    assert repository.keep_latest(1) == [2]
    with pytest.raises(RefusedError, match="pinned"):
        repository.retire(1)
    assert repository.collect().totals(removed=True) == {}
    assert contents(repository.snapshot(1))
    repository.unpin("best")
    with pytest.raises(RefusedError, match="pinned"):
        repository.retire(1)
    repository.unpin("also-best")
    repository.retire(1)
    assert repository.numbers() == [3]
    with pytest.raises(NoMatch):
        repository.unpin("best")


def test_a_name_pins_one_snapshot(repository: Repository) -> None:
    repository.pin("x", 1)
    assert repository.pin("x", 1).number == 1
    with pytest.raises(ConflictError, match="another snapshot"):
        repository.pin("x", 2)
    assert repository.pins() == {"x": 1}


@pytest.mark.parametrize("name", ["", ".x", "a/b", "../x", "a b", "x" * 201, "-x", "é"])
def test_names_are_one_plain_step(repository: Repository, name: str) -> None:
    with pytest.raises(InputError):
        repository.pin(name, 1)
    with pytest.raises(NoMatch):
        repository.unpin(name)
    assert repository.pins() == {}


@pytest.mark.parametrize("number", [True, "1", 1.0, None])
def test_a_number_is_a_whole_number(repository: Repository, number: Any) -> None:
    with pytest.raises(InputError):
        repository.pin("x", number)


def test_only_what_is_published_is_pinned(repository: Repository) -> None:
    repository.retire(1)
    for number in (1, 7):
        with pytest.raises(NotPublished):
            repository.pin("x", number)
    assert repository.pins() == {}


@pytest.mark.req("K-2")
def test_a_pin_by_hand_counts_and_one_without_a_number_is_refused(
    repository: Repository,
) -> None:
    repository.store.create("pins/hand.json", b'{"number": 2, "by": "somebody"}')
    assert repository.pins() == {"hand": 2}
    assert repository.surplus(1) == [1]
    repository.store.create("pins/what.json", b"{}")
    with pytest.raises(RefusedError):
        repository.pins()
    repository.unpin("what")
    assert repository.pins() == {"hand": 2}


@pytest.mark.req("K-2")
def test_a_pin_that_is_refused_takes_no_other_one_away(repository: Repository) -> None:
    """Somebody pinned by hand what is not there yet, or not any more."""
    repository.store.create("pins/hand.json", b'{"number": 7}')
    with pytest.raises(NotPublished):
        repository.pin("hand", 7)
    assert repository.pins() == {"hand": 7}
