"""Arguments of the right type and of no use are refused with a typed error."""

from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.errors import InputError, SnapfmtError
from snapfmt.testing.samples import save


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e300, "60", None, True])
def test_a_lease_is_renewed_for_some_seconds(repository: Repository, seconds: object) -> None:
    attempt = repository.begin()
    (before,) = repository.leases()
    with pytest.raises(InputError, match="seconds"):
        attempt.renew(seconds)  # type: ignore[arg-type]
    assert repository.leases() == [before]
    attempt.renew(60)
    attempt.publish([])


@pytest.mark.parametrize("place", ["a\0b", "\ud800"])
def test_a_path_that_no_file_system_has(tmp_path: Path, place: str) -> None:
    for location in (str(tmp_path / place), f"file://{tmp_path}/{place}"):
        for create in (False, True):
            with pytest.raises(SnapfmtError):
                Repository.open(location, create=create)
    assert list(tmp_path.iterdir()) == []


def test_a_ticket_of_no_text() -> None:
    with pytest.raises(InputError, match="ticket"):
        Repository.join("\ud800")


@pytest.mark.parametrize("base", [-1, 2**63])
def test_a_base_that_is_no_number(repository: Repository, base: int) -> None:
    save(repository, value=1)
    with pytest.raises(InputError):
        repository.begin(base=base)
    assert repository.leases() == []


def test_what_a_part_is_told(repository: Repository) -> None:
    with repository.begin() as attempt:
        for workers in (0, -1, "2"):
            with pytest.raises(InputError, match="workers"):
                attempt.part("a", workers=workers)  # type: ignore[arg-type]
        part = attempt.part("b")
        for schema in ("\ud800", None, 1):
            with pytest.raises(InputError, match="schema"):
                part.table("t", schema_id=schema)  # type: ignore[arg-type]
        with part.table("t", schema_id="x") as table:
            table.append(["k"], {"c": [1]})
        attempt.publish([part.seal()])
    assert repository.snapshot().table("t").row("k") == {"c": 1}


@pytest.mark.parametrize("given", ["text", 5])
def test_what_a_publication_is_told(repository: Repository, given: object) -> None:
    attempt = repository.begin()
    with pytest.raises(InputError):
        attempt.publish([], user_metadata=given)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        attempt.publish([], fingerprints=given)  # type: ignore[arg-type]
    attempt.publish([], user_metadata={"a": 1})
