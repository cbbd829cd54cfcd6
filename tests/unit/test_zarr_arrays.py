"""Dense arrays: bit for bit through snapfmt and through zarr-python, and never a made-up value."""

import itertools
import json
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from snapfmt import Repository
from snapfmt.adapters import zarr_arrays, zarr_layout
from snapfmt.adapters.zarr_arrays import open_array, read_array, read_tensor, write_array
from snapfmt.errors import (
    CorruptError,
    CorruptObject,
    FormatError,
    InputError,
    LimitExceeded,
    MissingObject,
    NoMatch,
    StorageReadOnly,
    UnsupportedFeature,
    UnsupportedValue,
)
from snapfmt.format.dtypes import LOGICAL
from snapfmt.limits import Limits
from snapfmt.reading.snapshot import Part
from snapfmt.writing.part import PartWriter

Save = Callable[[Callable[[PartWriter], object]], Part]
NUMPY = [name for name, stored in LOGICAL.items() if name in ("bool", stored)]
TORCH = [name for name in LOGICAL if hasattr(torch, name)]
SHAPES = [(), (1,), (1000,), (0,), (3, 0, 2), (0, 7), (37, 5), (5, 6, 7), (2, 3, 4, 5), (1, 900)]
SMALL = {"chunk_bytes": 256, "shard_bytes": 1024}


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Publishes one part that `fill` wrote and gives it as a reader finds it."""
    numbers = itertools.count()

    def run(fill: Callable[[PartWriter], object]) -> Part:
        repo = Repository.open(str(tmp_path / f"repo{next(numbers)}"), create=True)
        attempt = repo.begin()
        with attempt.part("p") as part:
            fill(part)
            attempt.publish([part.seal()])
        return repo.snapshot().part("p")

    return run


def saved(save: Save, array: Any, **options: Any) -> Part:
    return save(lambda part: write_array(part, "a/x", array, **options))


def save_all(save: Save, arrays: list[Any]) -> Part:
    def fill(part: PartWriter) -> None:
        for number, array in enumerate(arrays):
            write_array(part, f"a/{number}", array, **SMALL)

    return save(fill)


def random_bits(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Every bit pattern, so NaN payloads and negative zeros too."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    stored = np.dtype(LOGICAL[dtype])
    size = int(np.prod(shape)) * stored.itemsize
    return rng.integers(0, 256, size, np.uint8).view(stored).reshape(shape)


def export(part: Part, to: Path) -> Path:
    """The entries as plain files, as `snapfmt export` would leave them."""
    for entry in part.entries():
        file = to / entry.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(part.read(entry.path))
    return to / "a"


def packs(part: Part, tmp_path: Path) -> list[Path]:
    names = {entry.location.pack.removeprefix("sha256:") for entry in part.entries()}
    return [path for path in tmp_path.rglob("*") if path.name in names]


def same(left: np.ndarray, right: np.ndarray) -> None:
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_arrays_round_trip_bit_for_bit(save: Save, tmp_path: Path, dtype: str) -> None:
    arrays = [random_bits(shape, dtype) for shape in SHAPES]
    part = save_all(save, arrays)
    exported = export(part, tmp_path)
    for number, array in enumerate(arrays):
        same(read_array(part, f"a/{number}"), array)
        same(np.asarray(open_array(part, f"a/{number}")[...]), array)
        outside = zarr.open_array(exported / str(number), mode="r")
        same(np.asarray(outside[...]), array)
        assert outside.attrs.asdict() == {}


@pytest.mark.req("T-20")
@pytest.mark.parametrize("dtype", TORCH)
def test_torch_tensors_round_trip_bit_for_bit(save: Save, tmp_path: Path, dtype: str) -> None:
    arrays = [random_bits(shape, dtype) for shape in SHAPES]
    plain = [torch.from_numpy(bits.view(f"i{bits.itemsize}").copy()) for bits in arrays]
    part = save_all(save, [tensor.view(getattr(torch, dtype)) for tensor in plain])
    exported = export(part, tmp_path)
    for number, array in enumerate(arrays):
        back = read_tensor(part, f"a/{number}")
        assert back.dtype == getattr(torch, dtype)
        same(back.view(plain[number].dtype).numpy(), plain[number].numpy())
        same(read_array(part, f"a/{number}"), array)
        outside = zarr.open_array(exported / str(number), mode="r")
        same(np.asarray(outside[...]), array)
        assert outside.attrs.asdict() == ({} if dtype in NUMPY else {"snapfmt.dtype": dtype})


def test_every_logical_dtype_is_covered() -> None:
    assert {*NUMPY, *TORCH} == set(LOGICAL)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8"])
@pytest.mark.parametrize("shape", [(), (4,), (3, 4)])
def test_nan_payloads_and_negative_zero_survive(
    save: Save, dtype: str, shape: tuple[int, ...]
) -> None:
    # A signalling NaN with a payload, a negative NaN, negative zero, the smallest subnormal.
    words = {
        4: [0x7F800123, 0xFFC00001, 0x80000000, 1],
        8: [0x7FF0 << 48 | 9, 0xFFF8 << 48, 1 << 63, 1],
    }
    native = np.dtype(dtype).newbyteorder("=")
    exact = np.resize(np.array(words[native.itemsize], f"u{native.itemsize}"), shape).view(native)
    array = exact.view(f"u{native.itemsize}").astype(f"{dtype[0]}u{native.itemsize}").view(dtype)
    part = saved(save, array)
    same(read_array(part, "a/x"), exact)
    same(np.asarray(open_array(part, "a/x")[...]), exact)


@pytest.mark.parametrize(
    "make", [lambda t: t.T, lambda t: t[::2, 1:], lambda t: t.expand(2, *t.shape)]
)
def test_views_are_stored_as_what_they_show(save: Save, make: Callable[[Any], Any]) -> None:
    tensor = make(torch.arange(60, dtype=torch.int32).reshape(6, 10))
    part = saved(save, tensor, chunk_bytes=32, shard_bytes=64)
    assert torch.equal(read_tensor(part, "a/x"), tensor)
    part = saved(save, tensor.numpy(), chunk_bytes=32, shard_bytes=64)
    same(read_array(part, "a/x"), np.ascontiguousarray(tensor.numpy()))


def test_lazy_negation_and_gradients_are_resolved(save: Save) -> None:
    tensor = torch._neg_view(torch.arange(5.0)).requires_grad_()
    back = read_tensor(saved(save, tensor), "a/x")
    assert torch.equal(back, -torch.arange(5.0))
    assert not back.requires_grad


def test_a_read_tensor_can_be_written_to(save: Save) -> None:
    back = read_tensor(saved(save, torch.zeros(4)), "a/x")
    back += 1
    assert back.tolist() == [1, 1, 1, 1]


@settings(max_examples=60)
@given(
    shape=st.lists(st.integers(0, 9), max_size=4).map(tuple),
    chunk_bytes=st.integers(1, 300),
    more=st.integers(0, 2000),
    data=st.data(),
)
def test_any_cut_gives_the_same_values_and_slices(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, ...],
    chunk_bytes: int,
    more: int,
    data: st.DataObject,
) -> None:
    array = random_bits(shape, "int16")
    repo = Repository.open(str(tmp_path_factory.mktemp("cut") / "r"), create=True)
    attempt = repo.begin()
    with attempt.part("p") as writer:
        write_array(writer, "a/x", array, chunk_bytes=chunk_bytes, shard_bytes=chunk_bytes + more)
        attempt.publish([writer.seal()])
    part = repo.snapshot().part("p")
    same(read_array(part, "a/x"), array)
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    where = tuple(slice(*pair) for pair in bounds)
    same(np.asarray(open_array(part, "a/x")[where]), array[where])


def test_slices_read_only_their_shards(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(64 * 100, dtype=np.int32).reshape(64, 100)
    part = saved(save, array, chunk_bytes=800, shard_bytes=3200)
    opened = open_array(part, "a/x")
    read: list[str] = []
    stored = Part.stored
    monkeypatch.setattr(Part, "stored", lambda self, path: read.append(path) or stored(self, path))
    same(np.asarray(opened[9:11, 3:50]), array[9:11, 3:50])
    same(np.asarray(opened[8, 0]), array[8, 0])
    assert read == ["a/x/c/1/0"]
    with pytest.raises(IndexError):
        opened[64]


def test_the_cache_is_bounded(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    array = random_bits((64, 100), "int32")
    part = saved(save, array, chunk_bytes=800, shard_bytes=3200)
    monkeypatch.setattr(zarr_arrays, "CACHE_BYTES", 8000)
    opened = open_array(part, "a/x")
    same(np.asarray(opened[...]), array)
    store: Any = opened.store
    assert len(store._cache) == 2
    assert store._cached == sum(map(len, store._cache.values())) <= 8000


def test_it_is_cut_along_the_first_axis_first(save: Save) -> None:
    part = saved(save, np.zeros((100, 8, 4), np.float32), chunk_bytes=1000, shard_bytes=5000)
    opened = open_array(part, "a/x")
    assert opened.chunks == (7, 8, 4)
    assert opened.shards == (35, 8, 4)
    assert [entry.path for entry in part.entries()] == [
        "a/x/zarr.json",
        *[f"a/x/c/{n}/0/0" for n in range(3)],
    ]
    wide = open_array(saved(save, np.zeros((4, 3, 1000), np.float32), **SMALL), "a/x")
    assert (wide.chunks, wide.shards) == ((1, 1, 64), (1, 1, 256))


def test_compression_is_used_where_it_pays(save: Save) -> None:
    def codecs(array: Any) -> list[str]:
        document = json.loads(saved(save, array, **SMALL).read("a/x/zarr.json"))
        sharding = document["codecs"][0]["configuration"]
        assert [codec["name"] for codec in sharding["index_codecs"]] == ["bytes", "crc32c"]
        assert sharding["index_location"] == "end"
        assert document["fill_value"] == 0
        return [codec["name"] for codec in sharding["codecs"]]

    assert codecs(np.zeros(4000, np.int16)) == ["bytes", "zstd", "crc32c"]
    assert codecs(random_bits((4000,), "int16")) == ["bytes", "crc32c"]


def test_empty_chunks_are_written(save: Save) -> None:
    """Zeros are stored, so that what is absent can be an error."""
    part = saved(save, np.zeros(4000, np.int16), **SMALL)
    assert [entry.path for entry in part.entries()][1:] == [f"a/x/c/{n}" for n in range(8)]
    same(read_array(part, "a/x"), np.zeros(4000, np.int16))


def test_equal_arguments_give_equal_bytes(save: Save) -> None:
    array = np.arange(5000, dtype=np.int64)
    marks = [[entry.digest for entry in saved(save, array, **SMALL).entries()] for _ in range(3)]
    assert marks[0] == marks[1] == marks[2]


def test_zarr_writes_shards_that_are_read_here(save: Save, tmp_path: Path) -> None:
    """The other direction: zarr-python's own encoding of the same layout."""
    array = random_bits((50, 9), "float32", seed=3)
    part = saved(save, np.ones_like(array), **SMALL)
    zarr.open_array(export(part, tmp_path) / "x", mode="r+")[...] = random_bits(
        (50, 9), "float32", seed=3
    )

    def fill(writer: PartWriter) -> None:
        for entry in part.entries():
            writer.stage(entry.path, (tmp_path / entry.path).read_bytes())

    same(read_array(save(fill), "a/x"), array)


def test_attributes_are_kept(save: Save, tmp_path: Path) -> None:
    attributes = {"layer": 3, "axes": ["token", "layer"], "of": {"ü": None, "f": 0.1}}
    part = saved(save, torch.ones(3, dtype=torch.bfloat16), attributes=attributes)
    expected = attributes | {"snapfmt.dtype": "bfloat16"}
    assert open_array(part, "a/x").attrs.asdict() == expected
    assert zarr.open_array(export(part, tmp_path) / "x", mode="r").attrs.asdict() == expected


def test_secrets_among_attributes_are_not_written(save: Save) -> None:
    part = saved(save, np.zeros(1), attributes={"api_key": "sk-123"})
    assert b"sk-123" not in part.read("a/x/zarr.json")


@pytest.mark.parametrize(
    "attributes",
    [
        {"t": (1, 2)},
        {1: "x"},
        {"n": float("nan")},
        {"o": object()},
        {"snapfmt.dtype": "bool"},
        ["x"],
        {"d": json.loads("[" * 70 + "]" * 70)},
    ],
)
def test_attributes_that_would_change_are_refused(save: Save, attributes: Any) -> None:
    with pytest.raises(InputError):
        saved(save, np.zeros(1), attributes=attributes)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2, np.complex64),
        np.array([object()]),
        np.array(["x"]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "i4")]),
        np.ma.masked_array([1, 2], [True, False]),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, device="meta"),
        [1, 2, 3],
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_without_an_exact_form_are_refused(save: Save, value: Any) -> None:
    def fill(part: PartWriter) -> None:
        with pytest.raises(UnsupportedValue):
            write_array(part, "a/x", value)

    assert save(fill).entries() == []


@pytest.mark.parametrize(("chunk", "shard"), [(0, 10), (-1, 10), (11, 10)])
def test_sizes_that_cannot_be_are_refused(save: Save, chunk: int, shard: int) -> None:
    with pytest.raises(InputError, match="chunk_bytes"):
        saved(save, np.zeros(3), chunk_bytes=chunk, shard_bytes=shard)


def test_a_path_holds_one_array(save: Save) -> None:
    def fill(part: PartWriter) -> None:
        write_array(part, "a/x", np.zeros(3))
        with pytest.raises(InputError):
            write_array(part, "a/x", np.ones(3))

    same(read_array(save(fill), "a/x"), np.zeros(3))


def test_no_array_of_that_path(save: Save) -> None:
    part = saved(save, np.zeros(3))
    for read in (read_array, read_tensor, open_array):
        with pytest.raises(NoMatch):
            read(part, "a/y")


def every_byte(opened: Any) -> Any:
    return opened[...]


@pytest.mark.req("T-20")
def test_a_flipped_byte_is_an_error_and_never_data(save: Save, tmp_path: Path) -> None:
    array = random_bits((40, 10), "int32")
    part = saved(save, array, **SMALL)
    (pack,) = packs(part, tmp_path)
    intact = pack.read_bytes()
    for entry in part.entries():
        at, size = entry.location.offset, entry.location.size
        for position in (at, at + size // 2, at + size - 30, at + size - 1):
            damaged = bytearray(intact)
            damaged[position] ^= 0x10
            pack.chmod(0o644)
            pack.write_bytes(damaged)
            with pytest.raises(CorruptError):
                read_array(part, "a/x")
            with pytest.raises(CorruptError):
                every_byte(open_array(part, "a/x"))
    pack.write_bytes(intact)
    same(read_array(part, "a/x"), array)


def test_a_slice_beside_the_damage_is_served(save: Save, tmp_path: Path) -> None:
    array = random_bits((64, 100), "int32")
    part = saved(save, array, chunk_bytes=800, shard_bytes=3200)
    (pack,) = packs(part, tmp_path)
    data = bytearray(pack.read_bytes())
    data[part.entry("a/x/c/2/0").location.offset + 5] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    opened = open_array(part, "a/x")
    same(np.asarray(opened[:16]), array[:16])
    for _ in range(2):
        with pytest.raises(CorruptError):
            opened[15:17]


@pytest.mark.req("T-20")
def test_a_deleted_object_is_an_error(save: Save, tmp_path: Path) -> None:
    part = saved(save, np.zeros((40, 10)), **SMALL)
    opened = open_array(part, "a/x")
    for pack in packs(part, tmp_path):
        pack.unlink()
    with pytest.raises(MissingObject):
        opened[...]
    with pytest.raises(MissingObject):
        opened[0, 0]
    for read in (read_array, read_tensor, open_array):
        with pytest.raises(MissingObject):
            read(part, "a/x")


def restaged(save: Save, part: Part, change: Callable[[str, bytes], bytes | None]) -> Part:
    """The same entries after `change`, published again: intact bytes of a careless writer."""

    def fill(writer: PartWriter) -> None:
        for entry in part.entries():
            data = change(entry.path, part.read(entry.path))
            if data is not None:
                writer.stage(entry.path, data)

    return save(fill)


def refused(part: Part, error: type[Exception]) -> None:
    for read in (read_array, read_tensor, lambda part, path: open_array(part, path)[...]):
        with pytest.raises(error):
            read(part, "a/x")


@pytest.mark.req("T-20")
def test_a_missing_shard_is_an_error(save: Save) -> None:
    part = saved(save, np.zeros((40, 10)), **SMALL)
    lost = restaged(save, part, lambda path, data: None if path.endswith("c/1/0") else data)
    refused(lost, CorruptObject)


@pytest.mark.req("T-20")
def test_a_missing_chunk_within_a_shard_is_an_error(save: Save) -> None:
    part = saved(save, np.zeros(1000, np.int64), **SMALL)

    def change(path: str, data: bytes) -> bytes:
        if not path.endswith("c/3"):
            return data
        table = bytearray(data[-68:-4])
        table[16:32] = b"\xff" * 16
        return data[:-68] + bytes(table) + zarr_layout.checksum(bytes(table))

    lost = restaged(save, part, change)
    refused(lost, CorruptObject)
    with pytest.raises(CorruptObject, match="is missing"):
        open_array(lost, "a/x")[384]
    assert open_array(lost, "a/x")[:128].tolist() == [0] * 128


def test_a_chunk_that_is_no_zstd_frame_is_an_error(save: Save) -> None:
    part = saved(save, np.zeros(1000, np.int64), **SMALL)

    def change(path: str, data: bytes) -> bytes:
        if not path.endswith("c/3"):
            return data
        size = int.from_bytes(data[-60:-52], "little")
        return with_checksum(b"x" * (size - 4)) + data[size:]

    with pytest.raises(CorruptObject):
        read_array(restaged(save, part, change), "a/x")


def with_checksum(data: bytes) -> bytes:
    return data + zarr_layout.checksum(data)


def table_with(*entry: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        table = np.array(entry, "<u8").tobytes() + data[-52:-4]
        return data[:-68] + table + zarr_layout.checksum(table)

    return change


@pytest.mark.parametrize(
    "change",
    [
        table_with(0, 2**63),
        table_with(2**64 - 1, 4),
        table_with(1, 40),
        table_with(0, 0),
        lambda data: data[-20:],
        lambda data: b"",
        lambda data: data[:-1] + b"\0",
    ],
)
def test_shards_of_a_careless_writer_are_errors(
    save: Save, change: Callable[[bytes], bytes]
) -> None:
    part = saved(save, np.zeros(1000, np.int64), **SMALL)
    bad = restaged(save, part, lambda path, data: change(data) if path.endswith("c/3") else data)
    refused(bad, CorruptObject)


def test_a_chunk_that_leaves_its_shard_is_named(save: Save) -> None:
    part = saved(save, np.zeros(1000, np.int64), **SMALL)
    change = table_with(0, 2**63)
    bad = restaged(save, part, lambda path, data: change(data) if path.endswith("c/3") else data)
    with pytest.raises(CorruptObject, match=r"chunk at \(384,\) leaves its shard.*a/x/c/3"):
        read_array(bad, "a/x")


def edited(save: Save, **fields: Any) -> Part:
    def change(path: str, data: bytes) -> bytes:
        if path.endswith("zarr.json"):
            return json.dumps(json.loads(data) | fields).encode()
        return data

    return restaged(save, saved(save, np.zeros(1000, np.int64), **SMALL), change)


def grid(*shape: int) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(shape)}}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"zarr_format": 2}, FormatError),
        ({"extra": 1}, FormatError),
        ({"shape": [1000, 1]}, FormatError),
        ({"shape": [-5]}, FormatError),
        ({"shape": [True]}, FormatError),
        ({"shape": "x"}, FormatError),
        ({"data_type": "complex64"}, FormatError),
        ({"fill_value": 7}, FormatError),
        ({"attributes": {"snapfmt.dtype": "bfloat16"}}, FormatError),
        ({"attributes": []}, FormatError),
        ({"chunk_grid": grid(100)}, FormatError),
        ({"chunk_grid": grid(0)}, FormatError),
        ({"codecs": []}, FormatError),
        ({"storage_transformers": [{"name": "x"}]}, FormatError),
        ({"shape": [10**6]}, CorruptObject),
        ({"shape": [10**30]}, LimitExceeded),
        ({"shape": [10**12], "chunk_grid": grid(32 * 10**12)}, LimitExceeded),
    ],
)
def test_other_metadata_are_refused(
    save: Save, fields: dict[str, Any], error: type[Exception]
) -> None:
    refused(edited(save, **fields), error)


def test_a_shape_of_very_many_shards_takes_no_memory() -> None:
    """Metadata may name any number of shards; each is looked for before the next is named."""
    layout = zarr_layout.Layout((3, 2**21), "uint8", (1, 1), (1, 1), (), {})
    tracemalloc.start()
    try:
        first = list(itertools.islice(layout.shards(), 2))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert first == [("c/0/0", (0, 0)), ("c/0/1", (0, 1))]


def test_limits_apply(save: Save) -> None:
    part = saved(save, np.zeros(10_000, np.int64))
    for limits in (Limits(chunk_size=1000), Limits(expansion=10), Limits(manifest_size=100)):
        for read in (read_array, read_tensor, open_array):
            with pytest.raises(LimitExceeded):
                read(part, "a/x", limits=limits)


def test_an_open_array_is_read_only(save: Save) -> None:
    opened = open_array(saved(save, np.zeros(3)), "a/x")
    assert opened.read_only
    with pytest.raises((ValueError, StorageReadOnly)):
        opened[0] = 1
    with pytest.raises(StorageReadOnly):
        opened.store.with_read_only(read_only=False)


def test_many_threads_read_one_open_array(save: Save) -> None:
    array = random_bits((64, 100), "int32")
    opened = open_array(saved(save, array, chunk_bytes=800, shard_bytes=3200), "a/x")
    wrong: list[int] = []

    def read(row: int) -> None:
        if np.asarray(opened[row]).tobytes() != array[row].tobytes():
            wrong.append(row)

    threads = [threading.Thread(target=read, args=(row,)) for row in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_without_the_extra_nothing_is_written(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    zarr_layout._crc32c.cache_clear()
    monkeypatch.setattr(zarr_layout, "import_module", missing)

    def fill(part: PartWriter) -> None:
        with pytest.raises(UnsupportedFeature, match=r"snapfmt\[zarr\]"):
            write_array(part, "a/x", np.zeros(3))

    assert save(fill).entries() == []


def test_zarr_may_refuse_missing_chunks(save: Save, tmp_path: Path) -> None:
    """What fills up the last shard is no missing chunk, whatever the settings of the reader."""
    array = random_bits((37, 5), "int64")
    part = saved(save, array, chunk_bytes=160, shard_bytes=640)
    with zarr.config.set({"array.read_missing_chunks": False}):
        same(np.asarray(open_array(part, "a/x")[...]), array)
        same(np.asarray(zarr.open_array(export(part, tmp_path) / "x", mode="r")[...]), array)
