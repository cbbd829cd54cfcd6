"""Safeguards behind other safeguards: each holds by itself, also where another one fails first."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snapfmt import Repository
from snapfmt.errors import CorruptObject, FormatError, InputError, LeaseExpired, MissingObject
from snapfmt.format import arrow_stream, batch_index, jsonl, layout
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.reading import checks
from snapfmt.reading.snapshot import Part
from snapfmt.reading.source import Source
from snapfmt.storage.local import LocalStore
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.forgery import forge
from snapfmt.testing.samples import save
from snapfmt.testing.stores import CountingStore
from snapfmt.transfer.claim import Claim
from snapfmt.writing.attempt import Attempt
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.part import Location


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """One with a document."""
    store = LocalStore(tmp_path, create=True)
    store.create("pins/a.json", b"0123456789")
    return store


@pytest.mark.req("S-7")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_not_there_to_a_reader(
    store: LocalStore, tmp_path: Path, make: object
) -> None:
    make(tmp_path / "pins/b.json")  # type: ignore[operator]
    with pytest.raises(MissingObject):
        store.get("pins/b.json", limit=100)
    with pytest.raises(MissingObject):
        store.get_range("pins/b.json", 0, 0)


def test_a_file_that_shrinks_while_it_is_read_is_damage(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda at, size, offset: real(at, min(size, 4), 0)[offset:])
    with pytest.raises(CorruptObject, match="truncated"):
        store.get("pins/a.json", limit=100)
    with pytest.raises(CorruptObject, match="truncated"):
        store.get_range("pins/a.json", 0, 8)


@pytest.mark.req("S-14")
def test_a_workspace_of_a_bucket_publishes_what_its_marker_names_and_nothing_else() -> None:
    store = ObjectStore(MemoryClient())
    store.open_workspace("attempts/a", publishes="snapshots/one/manifest.json")
    with pytest.raises(InputError, match="something else"):
        store.publish("attempts/a", "snapshots/two", "manifest.json", b"{}")
    assert store.names("snapshots") == []
    store.publish("attempts/a", "snapshots/one", "manifest.json", b"{}")


def sealed(attempt: Attempt, name: str = "p") -> Receipt:
    part = attempt.part(name)
    part.stage("x", b"data")
    return part.seal()


def test_who_was_taken_over_is_refused_before_a_part_is_read(repository: Repository) -> None:
    store = CountingStore(repository.store)
    attempt = Repository.open(store).begin()
    receipt = sealed(attempt)
    repository.store.fence_workspace(layout.workspace_key(attempt.id))
    store.reads.clear()
    with pytest.raises(LeaseExpired):
        attempt.publish([receipt])
    assert store.reads == []


def test_receipts_are_looked_at_before_what_they_point_at(repository: Repository) -> None:
    foreign = sealed(repository.begin(number=9))
    attempt = repository.begin()
    own = sealed(attempt)
    with pytest.raises(InputError, match="belongs to another attempt"):
        attempt.publish([foreign])
    with pytest.raises(InputError, match="a part comes twice"):
        attempt.publish([own, own])
    attempt.publish([own])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gives_up_no_part_of_its_parent(repository: Repository) -> None:
    with repository.begin() as attempt:
        part = attempt.part("p")
        part.stage("x", b"1")
        child = os.fork()
        if child == 0:
            part.abandon()
            # What it discards is gone for its parent as well.
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        attempt.publish([part.seal()])
    assert repository.snapshot().part("p").read("x") == b"1"


def test_each_renewal_of_a_lease_has_a_generation_of_its_own(repository: Repository) -> None:
    with repository.begin() as attempt:
        for generation in (1, 2):
            attempt.renew(100)
            (lease,) = repository.leases()
            assert lease.generation == generation


def test_a_base_that_was_taken_out_is_the_one_that_the_lease_names(repository: Repository) -> None:
    for value in (1, 2):
        save(repository, value=value)
    folder = Path(repository.location) / "snapshots"
    with repository.begin(base=1) as attempt, Repository.join(attempt.ticket("p")) as part:
        (folder / "snapshot_000001/manifest.json").unlink()
        other = (folder / "snapshot_000002/manifest.json").read_bytes()
        (folder / "snapshot_000001/retiring.json").write_bytes(other)
        with pytest.raises(FormatError, match="not the manifest of this snapshot"):
            _ = part.base


def test_the_base_is_read_from_ones_own_lease(repository: Repository) -> None:
    save(repository, value=1)
    leases = Path(repository.location) / "attempts"
    with repository.begin() as other, repository.begin(base=1) as attempt:
        foreign = (leases / f"{other.id}.json").read_bytes()
        (leases / f"{attempt.id}.json").write_bytes(foreign)
        part = Repository.join(attempt.ticket("p"))
        with part, pytest.raises(FormatError, match="another attempt's"):
            _ = part.base


def test_arrow_metadata_that_its_writer_got_wrong_is_found(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every digest fits: only readers that know nothing but Arrow would see other rows."""
    real = arrow_stream.batch_header

    def wrong(*args: Any) -> bytes:
        header = bytearray(real(*args))
        header[-12] ^= 1
        return bytes(header)

    with monkeypatch.context() as patch:
        patch.setattr(arrow_stream, "batch_header", wrong)
        save(repository, value=1)
    assert repository.snapshot().table("rows/train").num_rows == 3
    assert any("Arrow metadata" in item.message for item in repository.verify().damage)


def test_a_range_never_leaves_its_entry(repository: Repository) -> None:
    """Also where the pack goes on behind it: those bytes are another entry's."""
    with repository.begin() as attempt:
        attempt.publish([sealed(attempt)])
    place = repository.snapshot().part("p").entry("x").location
    source = Source(repository.store, DEFAULT_LIMITS)
    inner = Location(pack=place.pack, offset=place.offset, size=2)
    assert source.unchecked(inner, 0, 2) == b"da"
    for offset, size in ((0, 3), (1, 2), (-1, 2), (3, 0)):
        with pytest.raises(CorruptObject, match="leaves its entry"):
            source.unchecked(inner, offset, size)


@pytest.mark.parametrize("keys", [["k2", "k1", "k0"], ["k", "0k1", "k2"], ["k0", "k1", "k"]])
def test_keys_of_the_rows_that_differ_from_the_list_of_keys_are_found(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, keys: list[str]
) -> None:
    """Also those that are the same text, or as long."""
    save(repository, value=1)
    assert repository.verify().findings == []
    wrong = batch_index.keys_to_bytes([pa.array(keys)])
    with monkeypatch.context() as patch:
        patch.setattr(batch_index, "keys_to_bytes", lambda _: wrong)
        save(repository, value=2)
    assert any("keys of the rows differ" in item.message for item in repository.verify().damage)


def test_bytes_behind_the_last_frame_of_a_record_file_are_damage(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = jsonl.LinesEncoder.flush
    with monkeypatch.context() as patch, repository.begin() as attempt:
        patch.setattr(jsonl.LinesEncoder, "flush", lambda self: real(self) + b"more")
        part = attempt.part("p")
        part.records("lines", [b'{"id":"1"}'], key="id")
        attempt.publish([part.seal()])
    with pytest.raises(FormatError, match="do not cover the entry"):
        repository.snapshot().part("p").read("lines")
    assert repository.verify().damage


def test_a_copy_whose_lease_ran_out_does_not_publish(repository: Repository) -> None:
    claim = Claim(repository.store, 1, lease_seconds=-1)
    with pytest.raises(LeaseExpired, match="ran out"):
        claim.check()
    claim.close()
    Claim(repository.store, 1, lease_seconds=100).check()


def records(repository: Repository) -> Part:
    with repository.begin() as attempt:
        part = attempt.part("p")
        part.records("lines", [b'{"id":"1"}', b'{"id":"2"}'], key="id")
        attempt.publish([part.seal()])
    return repository.snapshot().part("p")


def test_a_record_file_holds_as_many_records_as_its_entry_says(repository: Repository) -> None:
    assert records(repository).read("lines").count(b"\n") == 2

    def more(index: dict[str, Any], _: dict[str, bytearray]) -> None:
        for entry in index["entries"]:
            if entry["path"] == "lines":
                entry["records"] = 3

    forge(Path(repository.location), 1, "p", more)
    with pytest.raises(FormatError, match="2 records, not 3"):
        repository.snapshot().part("p").read("lines")


def test_an_index_that_points_beside_the_lines_is_found(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = records(repository)
    checks.check_records(part, "lines")
    beside = [
        replace(place, line_size=place.line_size - 1)
        for place in part.line_places(part.entry("lines"))
    ]
    monkeypatch.setattr(Part, "line_places", lambda *_: beside)
    with pytest.raises(FormatError, match="does not point at the lines"):
        checks.check_records(part, "lines")
