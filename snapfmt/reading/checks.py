"""Checks of what a part holds against what is said about it, for the audit."""

import contextlib
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Final, NoReturn, TypeVar

from snapfmt.errors import FormatError, SnapfmtError, StorageUnavailable
from snapfmt.format import canonical, compat, digest, layout
from snapfmt.limits import MIB
from snapfmt.reading.folders import Failed, names, telling
from snapfmt.reading.segment import SegmentReader
from snapfmt.reading.snapshot import Part
from snapfmt.storage.base import Store
from snapfmt_schemas import lines
from snapfmt_schemas.attempt import Receipt
from snapfmt_schemas.manifest import Manifest, RepositoryDocument

D = TypeVar("D", Manifest, RepositoryDocument)

BLOCK: Final = MIB
"""Bytes that are read and hashed at once, where a request costs little: they stay in the cache."""
_TOLERATED = ("lost+found", ".nfs", ".probe-", ".DS_Store")


def receipt_problem(part: Part, receipt: Receipt) -> str:
    """What a part index says otherwise than its receipt, or nothing."""
    index = part.index
    held = tuple(
        (table.name, table.rows, sum(item.logical_bytes for item in table.segments))
        for table in index.tables
    )
    said = tuple((table.name, table.rows, table.logical_bytes) for table in receipt.tables)
    if held != said or len(index.entries) != receipt.entries:
        return "part index does not hold what its receipt says"
    if sum(entry.records or 0 for entry in index.entries) != receipt.records:
        return "part index does not hold as many records as its receipt says"
    return ""


def tolerated(name: str) -> bool:
    """Whether a file that the format does not have is one that systems leave everywhere."""
    return name.startswith(_TOLERATED)


def claim(text: str) -> bytes:
    """A short name for all that is said of bytes."""
    return digest.raw_digest([text.encode()])


@contextlib.contextmanager
def reading(segments: Sequence[SegmentReader], good: Container[bytes]) -> Iterator[list[bytes]]:
    """Within the context, segments are read in few requests: their keys, and all of those whose
    claim is not good yet. Gives the claims, which leave out what rows are live.

    Damage that this meets is left to who reads the single segment, and names it.
    """
    live = {"live", "live_digest", "live_rows"}
    claims = [claim(item.document.model_dump_json(exclude=live)) for item in segments]
    fresh = [item for item, mark in zip(segments, claims, strict=True) if mark not in good]
    places = [place for item in segments for place in item.key_places()]
    places += [place for item in fresh for place in item.index_places()]
    with contextlib.ExitStack() as stack:
        if places:
            source = segments[0].source
            with contextlib.suppress(SnapfmtError):
                source.gather(places)
            whole = [(item.document.data, 0, item.document.data.size) for item in fresh]
            stack.enter_context(source.ahead(whole))
        yield claims


def live_objects(store: Store, failed: Failed) -> set[str]:
    """Keys of the objects that attempts wrote whose workspace was not fenced.

    `failed` is told of a workspace that cannot be looked into.
    """
    found: set[str] = set()
    for name in names(store, layout.ATTEMPTS, failed):
        if layout.is_attempt_id(name):
            key = layout.workspace_key(name)
            with telling(failed, key):
                found.update(store.journal(key))
    return found


def is_canonical(store: Store, key: str, model: type[D], *, size_limit: int) -> bool:
    """Whether a root document is in canonical form.

    Raises:
        SnapfmtError: If it cannot be read.
    """
    data = store.get(key, limit=size_limit)
    return data == canonical.encode(
        compat.decode_root(data, model, what=key, size_limit=size_limit)
    )


def was_retired(store: Store, number: int) -> bool:
    """Whether a snapshot was published once and is not any more (spec/v1/09-retention.md).

    No, where it cannot be told: what was found of it stays.
    """
    try:
        return store.size(layout.manifest_key(number)) is None and any(
            store.size(layout.snapshot_key(number, name)) is not None
            for name in (layout.RETIRING, layout.RETIRED)
        )
    except StorageUnavailable:
        raise
    except SnapfmtError:
        return False


def check_records(part: Part, path: str) -> None:
    """Every line decodes, and the index points at each of them in order.

    Raises:
        FormatError: If not.
    """
    entry = part.entry(path)
    what = f"{part.name}/{path}"
    places = part.line_places(entry)
    for line, place in zip(part.lines(path), places, strict=True):
        if len(line) != place.line_size:
            raise FormatError("index does not point at the lines", what=what)
        try:
            lines.parse(line)
        except ValueError as error:
            raise FormatError(f"not a JSON line: {error}", what=what) from error


def look_at(
    store: Store, key: str, end: int, *, deep: bool
) -> Callable[[], tuple[int | None, str]]:
    """Size and digest of an object: None if it is not there, empty if it is not worth hashing.

    What went wrong is raised by the call that this returns, so that it may run anywhere.
    """
    try:
        size = store.size(key)
        worth = deep and size is not None and size >= end
        mark = hash_of(store, key, size) if worth and size is not None else ""
    except SnapfmtError as error:
        return partial(_raise, error)
    return lambda: (size, mark)


def hash_of(store: Store, key: str, size: int) -> str:
    """Tagged digest of the first `size` bytes of an object."""
    running = digest.new_hash()
    block = max(BLOCK, store.read_size)
    for offset in range(0, size, block):
        running.update(store.get_range(key, offset, min(block, size - offset)))
    return digest.TAG + running.hexdigest()


def _raise(error: SnapfmtError) -> NoReturn:
    raise error
