"""The same rows written and read by other formats, and by nothing but the operating system.

Each writer leaves its files durable (fsync of every file and folder). `rows` are batches as
`workloads.Workload` makes them: one tensor per column, jagged where rows differ in length.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import torch

Batches = list[dict[str, torch.Tensor]]
BLOCK = 8 * 2**20
Writer = Callable[[Batches, Path], None]
Reader = Callable[[Path], int]


def parts(batch: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every column of a batch as dense tensors: values, and offsets where rows differ."""
    for name, value in batch.items():
        if value.is_nested:
            yield f"{name}.values", value.values()
            yield f"{name}.offsets", value.offsets()
        else:
            yield name, value


def logical_bytes(batches: Batches) -> int:
    """Bytes of all values, without offsets."""
    return sum(
        value.values().nbytes if value.is_nested else value.nbytes
        for batch in batches
        for value in batch.values()
    )


def durable(folder: Path) -> None:
    """fsync of every file and folder below."""
    for path in [folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def forget(folder: Path) -> None:
    """Drops the files from the page cache, so that the next read is cold."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def raw_buffered(batches: Batches, folder: Path) -> None:
    """The bytes of the values, in large writes."""
    with (folder / "raw").open("wb", buffering=0) as file:
        for batch in batches:
            for _, value in parts(batch):
                data = memoryview(value.numpy().reshape(-1).view(np.uint8))
                while data:
                    data = data[file.write(data[:BLOCK]) :]


def raw_direct(batches: Batches, folder: Path) -> None:
    """The same past the page cache, from one aligned buffer that is used again."""
    descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
    block = mmap.mmap(-1, BLOCK)
    filled = 0
    try:
        for batch in batches:
            for _, value in parts(batch):
                data = memoryview(value.numpy().reshape(-1).view(np.uint8))
                while data:
                    take = min(len(data), BLOCK - filled)
                    block[filled : filled + take] = data[:take]
                    data, filled = data[take:], filled + take
                    if filled == BLOCK:
                        os.write(descriptor, block)
                        filled = 0
        if filled:
            os.write(descriptor, block)
    finally:
        os.close(descriptor)


def read_raw(folder: Path) -> int:
    """Every byte of every file, into one buffer that is used again."""
    buffer, total = bytearray(BLOCK), 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    total += count
    return total


def _rows(batches: Batches) -> list[dict[str, torch.Tensor]]:
    found = []
    for batch in batches:
        columns = {name: value.unbind() for name, value in batch.items()}
        found += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return found


def torch_rows(batches: Batches, folder: Path) -> None:
    """Row by row."""
    rows = [{name: value.clone() for name, value in row.items()} for row in _rows(batches)]
    torch.save(rows, folder / "rows.pt")


def torch_save(batches: Batches, folder: Path) -> None:
    """Columns batch by batch."""
    torch.save([dict(parts(batch)) for batch in batches], folder / "rows.pt")


def load_torch(folder: Path) -> int:
    """Reads them all."""
    return len(torch.load(folder / "rows.pt", weights_only=True))


def _flat(batches: Batches) -> dict[str, torch.Tensor]:
    return {
        f"{number}/{name}": value
        for number, batch in enumerate(batches)
        for name, value in parts(batch)
    }


def safetensors_save(batches: Batches, folder: Path) -> None:
    """Columns batch by batch."""
    from safetensors.torch import save_file

    save_file(_flat(batches), folder / "rows.safetensors")


def load_safetensors(folder: Path) -> int:
    """Reads them all."""
    from safetensors.torch import load_file

    # Mapped lazily: touch every byte, as a reader who wants the rows does.
    return int(sum(value.sum().item() for value in load_file(folder / "rows.safetensors").values()))


def dcp_save(batches: Batches, folder: Path) -> None:
    """torch's distributed checkpoint, in one process."""
    import torch.distributed.checkpoint as dcp

    dcp.save(_flat(batches), checkpoint_id=folder / "dcp", no_dist=True)


def _arrow(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = {}
        for name, value in batch.items():
            if value.is_nested:
                flat = pa.array(value.values().numpy())
                columns[name] = pa.LargeListArray.from_arrays(value.offsets().numpy(), flat)
            else:
                columns[name] = pa.array(value.numpy())
        yield pa.RecordBatch.from_pydict(columns)


def arrow_save(codec: str | None) -> Writer:
    """An Arrow IPC stream."""

    def save(batches: Batches, folder: Path) -> None:
        options = pa.ipc.IpcWriteOptions(compression=codec)
        found = list(_arrow(batches))
        with (
            pa.OSFile(str(folder / "rows.arrow"), "wb") as file,
            pa.ipc.new_stream(file, found[0].schema, options=options) as stream,
        ):
            for batch in found:
                stream.write_batch(batch)

    return save


def load_arrow(folder: Path) -> int:
    """Reads them all."""
    with pa.OSFile(str(folder / "rows.arrow")) as file, pa.ipc.open_stream(file) as stream:
        return sum(batch.num_rows for batch in stream)


def parquet_save(batches: Batches, folder: Path) -> None:
    """Parquet with zstd."""
    table = pa.Table.from_batches(_arrow(batches))
    pa.parquet.write_table(table, folder / "rows.parquet", compression="zstd", row_group_size=256)


def load_parquet(folder: Path) -> int:
    """Reads them all."""
    return int(pa.parquet.read_table(folder / "rows.parquet").num_rows)


def zarr_save(batches: Batches, folder: Path) -> None:
    """zarr-python: one array of values per column, zstd."""
    import zarr

    group = zarr.open_group(str(folder / "rows.zarr"), mode="w")
    names = [name for name, _ in parts(batches[0])]
    for name in names:
        values = np.concatenate([dict(parts(batch))[name].numpy() for batch in batches])
        chunks = (min(len(values), 2**20),)
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=chunks)
        array[:] = values


def load_zarr(folder: Path) -> int:
    """Reads them all."""
    import zarr

    group = zarr.open_group(str(folder / "rows.zarr"), mode="r")
    return sum(len(array[:]) for _, array in group.arrays())


def scratch_copy(batches: Batches) -> None:
    """Every byte once from memory to memory that is there already."""
    target = np.empty(max(value.nbytes for b in batches for _, value in parts(b)), np.uint8)
    for batch in batches:
        for _, value in parts(batch):
            data = value.numpy().reshape(-1).view(np.uint8)
            target[: data.nbytes] = data


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


PEERS: dict[str, tuple[Writer, Reader | None]] = {
    "torch.save of rows": (torch_rows, load_torch),
    "torch.save": (torch_save, load_torch),
    "torch DCP": (dcp_save, None),
    "safetensors": (safetensors_save, load_safetensors),
    "Arrow IPC": (arrow_save(None), load_arrow),
    "Arrow IPC zstd": (arrow_save("zstd"), load_arrow),
    "Parquet zstd": (parquet_save, load_parquet),
    "zarr-python": (zarr_save, load_zarr),
}
CONTROLS: dict[str, Writer] = {
    "raw buffered write": raw_buffered,
    "raw O_DIRECT write": raw_direct,
}
