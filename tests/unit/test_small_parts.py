"""The small pieces: names, packs, dtypes, digests, errors, owners, probes."""

import copy
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapfmt import MISSING, errors
from snapfmt.errors import CorruptObject, FormatError, SnapfmtError, UnsupportedFeature
from snapfmt.format import compat, digest, dtypes, layout, pack, tagged
from snapfmt.format.columns import Column, Signature, concat, from_values
from snapfmt.storage import posix
from snapfmt.storage.client import ObjectInfo
from snapfmt.storage.faults import typed
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.testing.equality import same
from snapfmt.writing.owner import current_owner, is_dead
from snapfmt_schemas.manifest import Features


def test_names_of_snapshots() -> None:
    for number, name in [(0, "000000"), (42, "000042"), (999_999, "999999"), (10**7, "10000000")]:
        assert layout.snapshot_name(number) == f"snapshot_{name}"
        assert layout.snapshot_number(f"snapshot_{name}") == number
    for name in (
        *("snapshot_", "snapshot_1", "snapshot_00042", "snapshot_0000042", "Snapshot_000042"),
        *("snapshot_000042 ", "snapshot_000042\n", "snapshot_-00042", "snapshot_0x0042", "x"),
        *("snapshot_٠٠٠٠٤٢", "snapshot_000042.bak", ".snapshot_000042", "snapshot_1000000000000"),
    ):
        assert layout.snapshot_number(name) is None, name


def test_names_of_objects() -> None:
    name = "ab" + "0" * 62
    key = layout.object_key(f"sha256:{name}")
    assert key == f"objects/ab/{name}"
    assert layout.object_digest(key) == f"sha256:{name}"
    for bad in (
        f"objects/00/{name}",
        f"objects/ab/{name}0",
        f"objects/ab/{name[:-1]}",
        f"objects/ab/{name.upper()}",
        f"objects/ab/{name}\n",
        f"x/objects/ab/{name}",
        f"objects/{name}",
        "objects",
        "",
    ):
        assert layout.object_digest(bad) is None, bad
    assert layout.is_attempt_id("0123456789abcdef" * 2)
    for bad in ("0" * 31, "0" * 33, "g" * 32, "A" * 32, "0" * 32 + "\n", ""):
        assert not layout.is_attempt_id(bad), bad


def test_the_header_of_a_pack() -> None:
    header = pack.header("ab" * 16, "cd" * 16)
    assert len(header) == pack.HEADER_SIZE == 64
    assert header.startswith(b"SNAPPACK\x01\x00\x00\x00")
    assert pack.check_header(header, what="x") == "ab" * 16
    assert pack.header("ab" * 16, "ce" * 16) != header
    for bad in (header[:63], b"", b"X" + header[1:], header[:8] + b"\2" + header[9:]):
        with pytest.raises(FormatError):
            pack.check_header(bad, what="x")
    assert [pack.padding(size) for size in (0, 1, 63, 64, 65)] == [0, 63, 1, 0, 63]


def test_digests() -> None:
    empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest.digest_of(b"") == empty
    assert digest.raw_digest([b"a", b"", b"b"]) == digest.raw_digest([b"ab"])
    digest.check(b"", empty, what="x")
    with pytest.raises(CorruptObject) as caught:
        digest.check(b"x", empty, what="here")
    assert caught.value.expected == empty
    assert caught.value.got == digest.digest_of(b"x")
    assert "here" in str(caught.value)
    with pytest.raises(CorruptObject, match="expected 5 bytes, got 4 bytes"):
        digest.check_size(4, 5, what="x")


@pytest.mark.parametrize("logical", ["int64", "int32", "uint64"])
def test_narrowing_never_loses_a_bit(logical: str) -> None:
    info = np.iinfo(logical)
    edges = {0, 1, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, info.max, info.min, -1, -128}
    for edge in (value for value in edges if info.min <= value <= info.max):
        values = np.array([0, edge], logical)
        physical = dtypes.narrowest(values, logical, None)
        assert (values.astype(physical).astype(logical) == values).all()
        assert dtypes.fits(values, logical, physical)
        order = dtypes.widenings(logical)
        for narrower in order[: order.index(physical)]:
            assert not dtypes.fits(values, logical, narrower), (edge, narrower)
        for floor in order:
            chosen = dtypes.narrowest(values, logical, floor)
            assert order.index(chosen) == max(order.index(physical), order.index(floor))
    assert dtypes.narrowest(np.empty(0, logical), logical, None) == dtypes.widenings(logical)[0]


def test_floats_and_bits_are_never_narrowed() -> None:
    for logical, stored in dtypes.LOGICAL.items():
        if logical not in ("int64", "int32", "uint64"):
            assert dtypes.widenings(logical) == (stored,)
            values = np.zeros(3, stored)
            assert dtypes.narrowest(values, logical, None) == stored
        assert stored in dtypes.ARROW_TYPES


def test_columns_slice_take_and_join() -> None:
    values = [np.arange(n) for n in (3, 0, 2, 5)]
    cells: list[Any] = [values[0], MISSING, values[2], values[3]]
    column = from_values(Signature("ndarray", "int64", 1), cells)

    def back(part: Column) -> list[Any]:
        return [part.value(row) for row in range(part.rows)]

    assert same(back(column), cells)
    assert same(back(column.slice(1, 3)), cells[1:3])
    assert same(back(column.slice(2, 2)), [])
    assert same(back(column.take(np.array([3, 1, 3]))), [cells[3], MISSING, cells[3]])
    assert same(back(column.take(np.array([], np.int64))), [])
    other = from_values(Signature("ndarray", "int64", 1), [values[2]])
    assert same(back(concat([other, column, other])), [values[2], *cells, values[2]])
    whole = column.value(0)
    whole[:] = 9
    assert same(column.value(0), cells[0]), "a value is a copy"


def test_missing_is_one_thing() -> None:
    assert copy.copy(MISSING) is MISSING
    assert copy.deepcopy([MISSING])[0] is MISSING
    assert repr(MISSING) == "MISSING"
    assert MISSING.__class__() != MISSING


@pytest.mark.req("R-6")
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_tagged_json_in_another_encoding_is_refused(encoding: str) -> None:
    """The audit takes it for UTF-8, and no other reader would guess what it is."""
    with pytest.raises(FormatError, match="not tagged JSON"):
        tagged.decode('{"a":1}'.encode(encoding))


@pytest.mark.parametrize(
    "text",
    [
        *('{"$x":1}', '{"$tuple":1}', '{"$tuple":"ab"}', '{"$set":[[1]]}', '{"$dict":[[1]]}'),
        *('{"$dict":{"a":1}}', '{"$dict":["ab"]}', '{"$dict":[[[],1]]}', '{"$float":"00"}'),
        *('{"$float":1}', '{"$bytes":"?"}', '{"$bytes":1}', '{"$numpy":["int8","0001"]}'),
        *('{"$numpy":["int8",""]}', '{"$numpy":["object","00"]}', '{"$numpy":["int8"]}'),
        *('{"$text":"00"}', '{"$text":"zz"}', '{"$text":1}', '{"$frozenset":null}', "", "nul"),
        *("[" * 5000, '{"a":' * 5000, "1" * 5000, "[1]x", '{"$tuple":[1]'),
    ],
    ids=lambda text: text[:24],
)
def test_tagged_json_that_lies_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        tagged.decode(text)


def test_tags_are_tags_only_when_they_are_alone() -> None:
    assert tagged.decode('{"$tuple":[1],"x":2}') == {"$tuple": [1], "x": 2}
    assert tagged.decode(tagged.encode({"$tuple": [1], "x": 2})) == {"$tuple": [1], "x": 2}
    assert tagged.decode(tagged.encode({"$tuple": [1]})) == {"$tuple": [1]}
    assert tagged.encode({1, 2, 3}) == tagged.encode({3, 2, 1}), "sets have one form"


def all_errors() -> list[type[SnapfmtError]]:
    return [
        item
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, SnapfmtError)
    ]


def test_every_error_has_a_code_of_its_own() -> None:
    found = all_errors()
    assert len(found) > 25
    codes = [item.code for item in found]
    assert len(set(codes)) == len(codes)
    for item in found:
        assert item.__doc__
        assert item.__doc__.rstrip().endswith(".") or "code" in item.__doc__


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_errors_cross_process_borders_whole(kind: type[SnapfmtError]) -> None:
    error = kind("went wrong", what="a/b", hint="look there")
    assert str(error) == "went wrong: 'a/b' (look there)"
    # What pickling does, without pickle.
    made = copy.copy(error)
    assert type(made) is kind
    assert str(made) == str(error)
    assert (made.message, made.what, made.hint) == ("went wrong", "a/b", "look there")
    assert str(kind("short")) == "short"


def test_errors_with_details_keep_them() -> None:
    corrupt = CorruptObject("differs", what="x", expected="a", got="b")
    made = copy.copy(corrupt)
    assert (made.expected, made.got) == ("a", "b")
    assert str(made) == str(corrupt) == "differs, expected a, got b: 'x'"
    mismatch = errors.FingerprintMismatch("no", differences=("a: 1 != 2", "b"))
    assert copy.copy(mismatch).differences == ("a: 1 != 2", "b")
    assert "a: 1 != 2; b" in str(mismatch)


def test_errors_are_what_a_reader_of_python_expects() -> None:
    assert issubclass(errors.MissingObject, KeyError)
    assert issubclass(errors.UnsupportedValue, ValueError)
    assert issubclass(errors.StorageFull, OSError)
    assert issubclass(errors.DeadlineExceeded, TimeoutError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, errors.StorageFull),
        (errno.EDQUOT, errors.StorageFull),
        (errno.EFBIG, errors.StorageFull),
        (errno.EROFS, errors.StorageReadOnly),
        (errno.EACCES, errors.StorageDenied),
        (errno.EPERM, errors.StorageDenied),
        (errno.ENOENT, errors.MissingObject),
        (errno.ENOTDIR, errors.MissingObject),
        (errno.ELOOP, errors.StorageError),
        (errno.EIO, errors.StorageError),
        (errno.ESTALE, errors.StorageError),
        (errno.ENAMETOOLONG, errors.StorageError),
        (errno.EMFILE, errors.StorageError),
    ],
)
def test_errors_of_the_system_are_typed(code: int, kind: type[SnapfmtError]) -> None:
    error = typed(OSError(code, os.strerror(code)), "some/key")
    assert type(error) is kind
    assert "some/key" in str(error)


def test_features() -> None:
    compat.require(Features(), "read", what="x")
    for operation in ("read", "write", "collect"):
        features = Features(**{operation: ("b-feature", "a-feature")})
        with pytest.raises(UnsupportedFeature, match=f"{operation}.*'a-feature'"):
            compat.require(features, operation, what="x")  # type: ignore[arg-type]
        for other in {"read", "write", "collect"} - {operation}:
            compat.require(features, other, what="x")  # type: ignore[arg-type]


def test_an_owner_is_dead_only_when_that_is_certain() -> None:
    owner = current_owner("host")
    assert owner.pid == os.getpid()
    assert not is_dead(owner)
    # The same number, another process: the start time tells.
    space, _, started = owner.pid_started.rpartition(":")
    assert is_dead(owner.model_copy(update={"pid_started": f"{space}:{int(started) - 1}"}))
    for doubt in (
        {"boot_id": "another"},
        {"boot_id": ""},
        {"pid_started": ""},
        {"pid_started": f"pid:[1]:{started}"},
        {"host": "another"},
    ):
        assert not is_dead(owner.model_copy(update=doubt)), doubt
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    other = owner.model_copy(update={"pid": child.pid, "pid_started": f"{space}:{fields[19]}"})
    assert not is_dead(other)
    child.communicate(b"\n")
    assert is_dead(other)


def test_a_probe_leaves_nothing(tmp_path: Path) -> None:
    assert posix.probe(tmp_path) == {
        "exclusive_rename": True,
        "hard_link": True,
        "directory_fsync": True,
    }
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("S-8")
def test_probes_of_killed_processes_go_when_they_are_old(tmp_path: Path) -> None:
    for name in (".probe-0123456789abcdef", ".probe-fedcba9876543210", "mine"):
        (tmp_path / name / "old").mkdir(parents=True)
        (tmp_path / name / "old" / "file").write_text("old")
    long_ago = time.time() - 3700
    for name in (".probe-0123456789abcdef", "mine"):
        os.utime(tmp_path / name, (long_ago, long_ago))
    posix.probe(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".probe-fedcba9876543210", "mine"}


@pytest.mark.req("S-8")
def test_probes_of_killed_processes_go_from_a_bucket_too() -> None:
    class Aged(MemoryClient):
        """Where one of two probes and another object are two hours old."""

        def list(self, prefix: str, *, deep: bool) -> Iterator[ObjectInfo]:
            for info in super().list(prefix, deep=deep):
                age = 7_200_000_000_000 if "old" in info.key else 0
                yield replace(info, modified_ns=info.modified_ns - age)

    client = Aged()
    for name in (".probe-old", ".probe-new", "old"):
        client.put(name, b"first", exclusive=True, metadata={})
    ObjectStore(client).prepare()
    assert {info.key for info in client.list("", deep=True)} == {".probe-new", "old"}


def test_a_directory_sync_that_fails_is_never_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="input/output"):
        posix.fsync_directory(tmp_path)
