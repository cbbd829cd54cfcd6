"""What a deep verify looks at in one batch (spec/v1/08-reading.md, Verify)."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from snapfmt.errors import CorruptObject, FormatError
from snapfmt.format import arrow_stream, batch_index, chunks, digest
from snapfmt.format.columns import Column, Signature
from snapfmt.limits import Limits

Described = tuple[str, Signature, str]
"""A column of the stream: its name, what its rows are, and the physical type."""


class Keys:
    """The keys entry as arrays."""

    def __init__(self, entry: pa.Array) -> None:
        _, offsets, values = entry.buffers()
        self._offsets = np.zeros(1, np.int64)
        if len(entry):
            self._offsets = np.frombuffer(offsets, np.int64, len(entry) + 1, 8 * entry.offset)
        self._values = memoryview(values or b"").cast("B")

    def are(self, own: Column, start: int) -> bool:
        """Whether the keys of a batch are those of the entry from row `start`."""
        expected = self._offsets[start : start + own.rows + 1]
        first, last = int(expected[0]), int(expected[-1])
        return (
            (own.present is None or bool(own.present.all()))
            and np.array_equal(own.offsets, expected - first)
            and own.values.tobytes() == self._values[first:last]
        )


def check_batch(
    data: memoryview,
    place: batch_index.BatchPlace,
    kinds: Sequence[Described],
    keys: Keys,
    *,
    what: str,
    limits: Limits,
) -> None:
    """Every byte of a batch, and that it says the same as the indexes.

    Raises:
        CorruptError: At the first damage.
    """
    header = data[: place.header_size]
    if digest.raw_digest([header]) != place.header_digest:
        raise CorruptObject("batch header differs from its digest", what=what)
    stored = []
    for (name, signature, physical), chunk in zip(kinds, place.chunks, strict=True):
        begin = chunk.offset - place.offset
        part = data[begin : begin + chunk.size]
        stored.append(chunks.StoredChunk(part, chunk, signature, physical, f"{what} column {name}"))
    columns = chunks.decode_chunks(stored, place.rows, limits=limits)
    _check_header(bytes(header), place, columns, what=what)
    # Keys that are those of the keys entry are text: Arrow looked at them all.
    same = keys.are(columns[0], place.row_start)
    for column in columns[1:] if same else columns:
        check_text(column, what=what)
    if not same:
        raise FormatError("keys of the rows differ from the keys entry", what=what)


def _check_header(
    header: bytes, place: batch_index.BatchPlace, columns: Sequence[Column], *, what: str
) -> None:
    """The Arrow metadata says the same as the batch index, for readers that know only Arrow."""
    sizes = [size for chunk in place.chunks for size in chunk.buffer_sizes]
    *begins, body = accumulate([size + -size % arrow_stream.ALIGNMENT for size in sizes], initial=0)
    places = list(zip(begins, sizes, strict=True))
    nodes = [node for column in columns for node in arrow_stream.nodes(column)]
    if header != arrow_stream.batch_header(place.rows, nodes, places, body):
        raise FormatError("Arrow metadata does not fit the batch index", what=what)


def check_text(column: Column, *, what: str) -> None:
    """Every row of text and tagged JSON can be read back."""
    kind = column.signature.kind
    if kind not in ("text", "value"):
        return
    try:
        column.values.tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"text is not UTF-8: {error}", what=what) from error
    starts = column.offsets[:-1][column.offsets[:-1] < len(column.values)]
    if ((column.values[starts].view(np.uint8) & 0xC0) == 0x80).any():
        raise FormatError("a row begins inside a character", what=what)
    if kind == "value":
        for row in range(column.rows):
            column.value(row)
