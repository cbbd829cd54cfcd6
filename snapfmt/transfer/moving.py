"""The objects of one snapshot on their way: what is there is left, what is not is sent.

Every object is hashed while it is read; one that differs from its name never reaches the target.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from snapfmt.errors import CorruptObject, LimitExceeded, MissingObject, SnapfmtError
from snapfmt.format import digest, layout
from snapfmt.limits import MIB, Limits
from snapfmt.reading.snapshot import Snapshot
from snapfmt.storage.base import Store
from snapfmt.transfer.parallel import Bound, Stopped, run_all
from snapfmt.transfer.sides import at
from snapfmt.writing.keeping import reached

BLOCK = 8 * MIB
SMALL = MIB
"""Bytes of an object up to which a request costs more than the bytes do."""
Progress = Callable[[int, str], None]
"""Called with the bytes that were just handled and what they belong to; never twice at once."""


def sizes(
    store: Store, snapshot: Snapshot, limits: Limits, *, workers: int, tick: Callable[[], None]
) -> dict[str, int]:
    """Every object that a snapshot reaches, and its size.

    Raises:
        MissingObject: If one is not there.
        CorruptObject: If one is too short.
    """

    def look(item: tuple[str, int], _: threading.Event) -> tuple[str, int]:
        key, end = item
        size = store.size(key)
        if size is None:
            raise MissingObject("not there", what=key, hint="run `snapfmt verify`")
        if size < end:
            raise CorruptObject(
                "object is truncated", what=key, expected=f"{end} bytes", got=f"{size} bytes"
            )
        return key, size

    ends = sorted(reached(store, snapshot.manifest, limits).items())
    return dict(run_all(look, ends, workers=max(workers, store.at_once), tick=tick))


def check_fit(snapshot: Snapshot, objects: Mapping[str, int], *, most: int) -> None:
    """Whether a target takes objects of these sizes; `most` is what one may have there.

    Raises:
        LimitExceeded: If it does not; names what lies in the largest that it refuses.
    """
    key = max(objects, key=objects.__getitem__, default="")
    if not key or objects[key] <= most:
        return
    raise LimitExceeded(
        f"an object holds at most {most} bytes there, and this one has {objects[key]}",
        what=f"{key}, in which {_content(snapshot, key)} lies",
        hint="nothing was sent; save it anew in smaller entries, or copy to a disk",
    )


def _content(snapshot: Snapshot, key: str) -> str:
    """The largest entry or table that lies in an object."""
    found = [(0, "a part index")]
    for part in snapshot.parts():
        found += [
            (entry.location.size, f"entry {entry.path} of part {part.name}")
            for entry in part.index.entries
            if layout.object_key(entry.location.pack) == key
        ]
        found += [
            (item.data.size, f"table {table.name} of part {part.name}")
            for table in part.index.tables
            for item in table.segments
            if layout.object_key(item.data.pack) == key
        ]
    return max(found)[1]


@dataclass(slots=True)
class Mover:
    """Looks at objects of the target and sends those that it lacks. Its counts only grow."""

    source: Store
    target: Store
    workspace: str
    objects: Mapping[str, int]
    workers: int
    tick: Callable[[], None]
    progress: Progress | None = None
    sent: set[str] = field(default_factory=set)
    bytes_sent: int = 0
    _bound: Bound = field(default_factory=Bound)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def present(self, *, deep: bool) -> set[str]:
        """Those that the target has with the right size; `deep`: and with the right bytes."""

        def look(key: str, stop: threading.Event) -> bool:
            size = self.objects[key]
            if self.target.size(key) != size:
                return False
            try:
                return not deep or self._hash(key, size, stop) == layout.object_digest(key)
            except (MissingObject, CorruptObject):
                # Gone or cut off since its size was seen.
                return False

        keys = list(self.objects)
        workers = self.workers if deep else max(self.workers, self.target.at_once)
        answers = run_all(look, keys, workers=workers, tick=self.tick)
        return {key for key, there in zip(keys, answers, strict=True) if there}

    def report(self, keys: set[str]) -> None:
        """Tell the watcher of objects that need not be sent."""
        for key in sorted(keys):
            self._tell(self.objects[key], key)

    def send(self, keys: set[str]) -> None:
        """Copy these objects.

        Raises:
            CorruptObject: If an object of the source is not what its name says.
            MissingObject: If the source has it no more.
            LeaseExpired: If the workspace is gone.
            StorageError: If a storage failed.
        """
        small = {key for key in keys if self.objects[key] <= SMALL}
        together = max(self.workers, self.source.at_once, self.target.at_once)
        for group, workers in ((small, together), (keys - small, self.workers)):
            run_all(self._send, sorted(group), workers=workers, tick=self.tick)

    def _send(self, key: str, stop: threading.Event) -> None:
        size = self.objects[key]
        with self._bound.taking(size):
            sink = self.target.sink(self.workspace, f"copy-{key.rpartition('/')[2]}")
            try:
                running = digest.new_hash()
                for offset in range(0, size, BLOCK):
                    if stop.is_set():
                        raise Stopped
                    with at("source", self.source.location):
                        block = self.source.get_range(key, offset, min(BLOCK, size - offset))
                    running.update(block)
                    sink.write(block)
                    self._tell(len(block), key)
                got = digest.TAG + running.hexdigest()
                if got != layout.object_digest(key):
                    with at("source", self.source.location):
                        raise CorruptObject(
                            "the source's object differs from the digest in its name",
                            what=key,
                            expected=str(layout.object_digest(key)),
                            got=got,
                            hint="nothing was published; run `snapfmt verify`",
                        )
                sink.finish(key)
            except BaseException:
                _discard(sink.discard)
                raise
        with self._lock:
            self.sent.add(key)
            self.bytes_sent += size

    def _hash(self, key: str, size: int, stop: threading.Event) -> str:
        running = digest.new_hash()
        for offset in range(0, size, BLOCK):
            if stop.is_set():
                raise Stopped
            running.update(self.target.get_range(key, offset, min(BLOCK, size - offset)))
        return digest.TAG + running.hexdigest()

    def _tell(self, count: int, key: str) -> None:
        if self.progress is not None:
            with self._lock:
                self.progress(count, key)


def _discard(discard: Callable[[], None]) -> None:
    """The error that led here counts, not that of tidying up."""
    try:
        discard()
    except (SnapfmtError, OSError):
        return
