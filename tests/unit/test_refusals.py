"""What a caller does wrong is refused, typed, before anything is published."""

import gc
import os
import threading
import time

import numpy as np
import pytest

from snapfmt import Repository
from snapfmt.errors import AttemptClosed, InputError, InvalidRecord, LimitExceeded, SnapfmtError
from snapfmt.writing.pack import QUEUE_BYTES
from snapfmt_schemas.fingerprint import Fingerprint


class _Failed(Exception):
    pass


@pytest.fixture
def repository(tmp_path):
    return Repository.open(tmp_path / "run", create=True)


def test_batches_of_python_values_are_bounded_by_their_true_size(repository):
    """A list counts with the bytes of its text, or a batch would grow to thousands of rows."""
    attempt = repository.begin()
    part = attempt.part("p")
    value = ["x" * 400_000]
    with part.table("t") as table:
        for start in range(0, 60, 20):
            table.append([f"k{row}" for row in range(start, start + 20)], {"m": [value] * 20})
    attempt.publish([part.seal()])
    (segment,) = repository.snapshot().table("t").segments()
    assert len(segment.index) >= 20, "three rows are more than a batch may hold"
    assert repository.snapshot().table("t").row("k59") == {"m": value}


def test_what_passes_a_readers_limit_is_not_published(repository):
    attempt = repository.begin()
    part = attempt.part("p")
    with part.table("t") as table:
        table.append(["k"], {f"c{number}": [1] for number in range(16_385)})
    with pytest.raises(LimitExceeded, match="columns"):
        part.seal()
    attempt.abandon()
    assert repository.numbers() == []


@pytest.mark.parametrize("moment", ["queue", "room"])
def test_an_interrupt_leaves_a_part_that_cannot_be_sealed(repository, monkeypatch, moment):
    attempt = repository.begin()
    part = attempt.part("p")
    part.stage("first", b"1")
    packs = part._packs
    target = packs._queue if moment == "queue" else packs._room
    name = "put" if moment == "queue" else "acquire"
    real = getattr(target, name)

    def interrupted(*args, **kwargs):
        real(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(target, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        part.stage("second", b"2" * 100)
    monkeypatch.setattr(target, name, real)
    started = time.monotonic()
    with pytest.raises(AttemptClosed, match="KeyboardInterrupt"):
        part.stage("third", bytes(QUEUE_BYTES))
    with pytest.raises(AttemptClosed):
        part.seal()
    assert time.monotonic() - started < 60, "it hung"
    attempt.abandon()
    assert repository.numbers() == []


def test_a_repeated_key_among_many_is_found_at_once(repository):
    table = repository.begin().part("p").table("t")
    keys = [f"k{row}" for row in range(200_000)]
    keys[-1] = keys[0]
    started = time.monotonic()
    with pytest.raises(InputError, match="k0"):
        table.append(keys, {"x": np.arange(200_000)})
    assert time.monotonic() - started < 60, "comparing each with each takes minutes"


@pytest.mark.parametrize(
    "line",
    [
        b'{"api_key": "SECRET", "api_key": ""}',
        b'{"score": 1e999}',
        b'{"a": {"b": 1, "b": 2}}',
    ],
)
def test_lines_that_readers_would_see_otherwise_are_refused(repository, line):
    part = repository.begin().part("p")
    with pytest.raises(InvalidRecord):
        part.records("x.jsonl", [line])


@pytest.mark.parametrize(
    "metadata",
    [{"\ud800": 1}, {"a": b"x"}, {"a": (1, 2)}, {1: 2}, {"a": float("inf")}, {"a": {"b": {3}}}],
)
def test_metadata_that_json_would_change_is_refused(repository, metadata):
    attempt = repository.begin()
    with pytest.raises(InputError, match="user_metadata"):
        attempt.publish([], user_metadata=metadata)
    assert repository.numbers() == []
    attempt.publish([], user_metadata={"a": [1, 2.5, None, True, "é"]})


def test_a_fingerprint_with_a_secret_is_refused(repository):
    attempt = repository.begin()
    secret = Fingerprint.of("recipe", {"policy": {"api_key": "SECRET"}})
    with pytest.raises(InputError, match=r"recipe\.policy\.api_key"):
        attempt.publish([], fingerprints=[secret])


def test_failed_saves_leave_no_thread_and_no_open_file(repository):
    def fail() -> None:
        with repository.begin() as attempt:
            part = attempt.part("p")
            part.stage("x", os.urandom(1 << 16))
            with part.table("t") as table:
                table.append(["a"], {"x": np.arange(1)})
            raise _Failed

    def count() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    for _ in range(2):
        with pytest.raises(_Failed):
            fail()
    before = count()
    for _ in range(10):
        with pytest.raises(_Failed):
            fail()
    assert count() <= before


def test_a_forked_child_that_unwinds_does_not_end_the_save(repository):
    with repository.begin() as attempt:
        part = attempt.part("p")
        part.stage("x", b"1")
        child = os.fork()
        if child == 0:
            attempt.__exit__(None, None, None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        attempt.publish([part.seal()])
    assert repository.snapshot().part("p").read("x") == b"1"


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.begin(number="3"),
        lambda r: r.begin(number=True),
        lambda r: r.begin(number=1.5),
        lambda r: r.begin(base="1"),
        lambda r: r.begin(attempt_id="x"),
        lambda r: r.begin(lease_seconds=float("nan")),
        lambda r: r.begin(lease_seconds=float("inf")),
        lambda r: r.begin(lease_seconds="x"),
        lambda r: r.snapshot("x"),
        lambda r: r.begin().part("p").table(5),
        lambda r: r.begin().part("p").stage("s", 5),
        lambda r: r.begin().part("p").stage("s", "text"),
        lambda r: r.begin().part("p").records("r", 5),
        lambda r: r.begin().part("p").table("t").append(None, {}),
        lambda r: r.begin().part("p").table("t").append("abc", {}),
        lambda r: r.begin().part("p").table("t").append(["k"], [1]),
        lambda r: r.begin().publish(None),
        lambda r: r.begin().publish(["x"]),
        lambda r: Repository.join(None),
        lambda r: Repository.open(b"x"),
    ],
)
def test_wrong_arguments_are_typed_errors(repository, call):
    with pytest.raises(SnapfmtError):
        call(repository)


def test_a_file_in_the_way_is_said(tmp_path):
    (tmp_path / "file.txt").write_text("x")
    for path in ("file.txt", "file.txt/sub"):
        with pytest.raises(SnapfmtError, match="a file stands where"):
            Repository.open(tmp_path / path, create=True)
    with pytest.raises(SnapfmtError, match="a file stands where"):
        Repository.open(tmp_path / "file.txt")
