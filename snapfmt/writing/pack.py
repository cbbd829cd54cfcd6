"""Packs while they are written: one thread hashes and writes what the encoders hand over."""

import contextlib
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from snapfmt import threads
from snapfmt.errors import AttemptClosed, InputError, LimitExceeded, SnapfmtError
from snapfmt.format import digest, layout, pack
from snapfmt.limits import MIB
from snapfmt.storage.base import Sink, Store
from snapfmt.writing.finishing import Finishing
from snapfmt_schemas.part import Location

QUEUE_BYTES = 64 * MIB
"""Bytes that may wait for the disk before the encoders are held up."""
SENT_QUEUE_BYTES = 16 * MIB
"""The same of what is sent: what waits then had better lie in the next pack already."""
_QUEUE_UNITS = 64


@dataclass(slots=True)
class PackRef:
    """A pack whose digest becomes known when it is closed."""

    digest: str = ""


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of a pack that may still be open."""

    ref: PackRef
    offset: int
    size: int

    def location(self) -> Location:
        """The finished location; only after the pack was closed."""
        return Location(pack=self.ref.digest, offset=self.offset, size=self.size)


@dataclass(slots=True)
class _OpenPack:
    ref: PackRef
    sink: Sink
    running: digest.Hash
    target: int
    """Size from which it is closed at the end of an entry."""
    size: int = 0


@dataclass(slots=True)
class PackWriter:
    """Appends the entries of one part to packs of about 128 MiB; in a bucket, first 64, then 160.

    Holds at any time: a pack becomes visible only whole and durable, under its content's name.
    """

    store: Store
    workspace: str
    attempt_id: str
    keys: list[str] = field(default_factory=list)
    stored_bytes: int = 0
    _open: _OpenPack | None = None
    _queue: "queue.Queue[tuple[_OpenPack, digest.Buffer | None] | None]" = field(
        default_factory=queue.Queue
    )
    _room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_QUEUE_UNITS))
    _thread: threading.Thread | None = None
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _finishing: Finishing = field(default_factory=Finishing)
    _failure: BaseException | None = None
    _count: int = 0
    _what: str = ""
    _interrupt: Callable[[], None] | None = None
    _busy: bool = False
    _pid: int = field(default_factory=os.getpid)

    @property
    def is_owner(self) -> bool:
        """Whether this process began it; a forked child has none of its threads."""
        return self._pid == os.getpid()

    def check_owner(self) -> None:
        """Raises:
        AttemptClosed: In a forked child, where every write would wait for ever.
        """
        if not self.is_owner:
            raise AttemptClosed(
                "the part was begun by the parent of this process",
                what=self.workspace,
                hint="hand the child a ticket, with which it joins, or let it begin a part",
            )

    def begin(
        self, interrupt: Callable[[], None] | None = None, *, what: str = "", size: int = 0
    ) -> int:
        """Start an entry; returns its offset in the current pack.

        An entry that is open elsewhere is ended first, through the `interrupt` it gave. `what`
        names it in errors, and `size` is that of its bytes where it is known.
        """
        if self._busy:
            # The bytes of two entries would lie in one another.
            self.fail(InputError("an entry was begun while another one was being written"))
            self._raise()
        if self._interrupt is not None:
            self._interrupt()
        self._interrupt = interrupt
        self._busy = interrupt is None
        self._what = what
        current = self._current()
        padding = bytes(pack.padding(current.size))
        if current.size + len(padding) + size > self.store.max_object:
            self._close_pack()
            return self._current().size
        self._put(current, padding)
        return current.size

    def write(self, data: digest.Buffer) -> None:
        """Append bytes to the entry that was begun."""
        self._put(self._current(), data)

    def end(self, begin: int) -> Extent:
        """Finish the entry that began at `begin`; may close the pack."""
        self._interrupt = None
        self._busy = False
        current = self._current()
        extent = Extent(current.ref, begin, current.size - begin)
        if current.size >= current.target:
            self._close_pack()
        return extent

    @contextlib.contextmanager
    def writing(self, what: str, *, size: int = 0) -> Iterator[list[Extent]]:
        """One entry, written within the context; its extent is in the list afterwards.

        `what` and `size` as for `begin`.

        On an error the entry's bytes stay in the pack and nothing names them.
        """
        extents: list[Extent] = []
        begin = self.begin(what=what, size=size)
        try:
            yield extents
        except BaseException as error:
            self._busy = False
            if not isinstance(error, Exception):
                # An interrupt may have come anywhere: no offset can be trusted.
                self.fail(error)
            raise
        extents.append(self.end(begin))

    def fail(self, error: BaseException) -> None:
        """Refuse everything from now on, so that what was lost cannot be sealed."""
        self._failure = self._failure or error

    def check(self) -> None:
        """Raise what made the part unusable, if something did."""
        self._raise()

    def entry(self, data: digest.Buffer, what: str) -> Extent:
        """One whole entry; `what` names it in errors."""
        with self.writing(what, size=len(data)) as extents:
            self.write(data)
        return extents[0]

    def object(self, data: bytes) -> str:
        """One document as an object of its own; returns its digest."""
        check_fits(self.store, len(data), "the part index")
        name = digest.digest_of(data)
        sink = self.store.sink(self.workspace, f"{self._prefix()}-document")
        try:
            sink.write(data)
            sink.finish(layout.object_key(name))
        except BaseException:
            sink.discard()
            raise
        self.keys.append(layout.object_key(name))
        self.stored_bytes += len(data)
        return name

    def end_packs(self) -> None:
        """End the last pack: all have their digests then, and may still be synced or sent."""
        self._close_pack()
        self._stop()
        self._raise()

    def close(self) -> None:
        """Wait until every pack is durable under its name; raises what stood in the way."""
        self.end_packs()
        self._finishing.wait()
        self._raise()

    def discard(self) -> None:
        """Drop the pack that is open; finished ones stay for the attempt's clean-up."""
        self._failure = self._failure or AttemptClosed("the part was abandoned")
        self._finishing.give_up()
        self._stop()
        self._finishing.wait()
        if self._open is not None:
            self._open.sink.discard()
            self._open = None

    def _prefix(self) -> str:
        return f"{secrets.token_hex(8)}-{self._count:06d}"

    def _current(self) -> _OpenPack:
        self._raise()
        if self._open is None:
            self._count += 1
            sink = self.store.sink(self.workspace, f"{self._prefix()}-pack")
            target = _target(self._count) if sink.is_sent else pack.TARGET_SIZE
            self._open = _OpenPack(PackRef(), sink, digest.new_hash(), target)
            self._put(self._open, pack.header(self.attempt_id, secrets.token_hex(16)))
        return self._open

    def _put(self, target: _OpenPack, data: digest.Buffer) -> None:
        try:
            self._enqueue(target, data)
        except BaseException as error:
            # Whether the bytes will be written is not known, so no offset after them is.
            self.fail(error)
            raise

    def _enqueue(self, target: _OpenPack, data: digest.Buffer) -> None:
        size = len(data)
        if size == 0:
            return
        check_fits(self.store, target.size + size, self._what)
        with self._starting:
            if self._thread is None:
                # Given up meanwhile by another thread, it would have no end.
                self._raise()
                thread = threading.Thread(target=self._run, name="snapfmt-pack-writer", daemon=True)
                threads.start(thread)
                self._thread = thread
        for _ in range(_cost(size, target.sink)):
            self._room.acquire()
        self._queue.put((target, data))
        target.size += size

    def _close_pack(self) -> None:
        if self._open is not None:
            self._queue.put((self._open, None))
            self._open = None

    def _stop(self) -> None:
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _raise(self) -> None:
        self.check_owner()
        if self._failure is not None:
            if isinstance(self._failure, SnapfmtError):
                raise self._failure
            raise AttemptClosed(
                f"the part was cut off by {type(self._failure).__name__} and cannot be sealed",
                what=self.workspace,
                hint="abandon it and start a new save",
            ) from self._failure

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            target, data = item
            try:
                if self._failure is None:
                    self._handle(target, data)
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
                self._failure = self._failure or error
                # The first error counts; a thread that dies here would leave the caller waiting.
                with contextlib.suppress(BaseException):
                    target.sink.discard()
            finally:
                if data is not None:
                    self._room.release(_cost(len(data), target.sink))
                self._queue.task_done()
        self._queue.task_done()

    def _handle(self, target: _OpenPack, data: digest.Buffer | None) -> None:
        if data is not None:
            target.running.update(data)
            self._finishing.make_room(target.sink, len(data))
            target.sink.write(data)
            return
        target.ref.digest = digest.TAG + target.running.hexdigest()
        self._finishing.start(target.sink, lambda: self._finish(target))

    def _finish(self, target: _OpenPack) -> None:
        try:
            key = layout.object_key(target.ref.digest)
            target.sink.finish(key)
            self.keys.append(key)
            self.stored_bytes += target.size
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            self._failure = self._failure or error
            # The part cannot be sealed any more: nothing else is worth a wait.
            self._finishing.give_up()
            with contextlib.suppress(BaseException):
                target.sink.discard()


def check_fits(store: Store, size: int, what: str) -> None:
    """Whether one object of the store may have so many bytes.

    Raises:
        LimitExceeded: If not; names what the bytes are.
    """
    if size > store.max_object:
        raise LimitExceeded(
            f"an object of this storage holds at most {store.max_object} bytes",
            what=what,
            hint="split it over several entries or rows, or save to a disk",
        )


def _target(number: int) -> int:
    """Size of a part's pack that is sent, by its number from 1.

    Until the first one is whole, nothing can be sent, and the link stands idle. The second makes
    up for it, so that there are hardly more of them than on a disk.
    """
    if number == 1:
        return pack.TARGET_SIZE // 2
    return pack.TARGET_SIZE * 5 // 4 if number == 2 else pack.TARGET_SIZE


def _cost(size: int, sink: Sink) -> int:
    """Parts of the queue's room that the bytes take."""
    unit = (SENT_QUEUE_BYTES if sink.is_sent else QUEUE_BYTES) // _QUEUE_UNITS
    return min(max(1, size // unit), _QUEUE_UNITS)
