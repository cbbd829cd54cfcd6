"""A bucket whose server fails at the n-th request, once or until it is well again."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from snapfmt.errors import ConflictError, SnapfmtError, StorageDenied, StorageUnavailable
from snapfmt.storage.client import ObjectClient, ObjectInfo
from snapfmt.storage.pieces import Body
from snapfmt.storage.retry import RetryPolicy

T = TypeVar("T")
Applied = Literal["no", "yes", "twice", "late"]
"""Whether the server carries the request out; `late`: some requests after it was given up."""
LATE_BY: Final = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """What the server does with a request, and what its client hears of it."""

    name: str
    applied: Applied
    error: Callable[[str], BaseException] | None
    """The answer, made from the key; None: the one that the server really gave."""
    recovers: bool = True
    """Whether sending the request again is of use."""


def _unavailable(text: str, *, sent: bool = True) -> Callable[[str], Exception]:
    return lambda key: StorageUnavailable(text, what=key, sent=sent)


def _conflict(text: str) -> Callable[[str], Exception]:
    return lambda key: ConflictError(text, what=key)


def _denied(key: str) -> Exception:
    return StorageDenied("the server refused access", what=key)


FAULTS: Final = {
    fault.name: fault
    for fault in (
        Fault("refused", "no", _unavailable("connection refused", sent=False)),
        Fault("lost", "no", _unavailable("the connection broke")),
        Fault("reply lost", "yes", _unavailable("the connection broke")),
        Fault("applied twice", "twice", None),
        Fault("409", "no", _conflict("status 409")),
        Fault("412 for nothing", "no", _conflict("status 412")),
        Fault("500", "no", _unavailable("status 500")),
        Fault("500 after it was done", "yes", _unavailable("status 500")),
        Fault("503", "no", _unavailable("SlowDown, status 503")),
        Fault("body cut", "no", _unavailable("the body was cut off")),
        Fault("stalls", "no", _unavailable("timed out")),
        Fault("stalls after it was done", "yes", _unavailable("timed out")),
        Fault("arrives late", "late", _unavailable("timed out")),
        Fault("403", "no", _denied, recovers=False),
    )
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it was sent; `verb` is put, create (an exclusive put), get, head..."""

    verb: str
    key: str


@dataclass(slots=True)
class FaultyClient:
    """Passes requests on but for those that fail; implements `storage.client.ObjectClient`.

    The request of index `at` fails, and with `for_good` every later one of the same verb, until
    `heal` is called.
    """

    inner: ObjectClient
    fault: Fault | None = None
    at: int = 0
    for_good: bool = False
    late_by: int = LATE_BY
    """Requests that pass before a late one arrives."""
    before: Callable[[int, Request], None] | None = None
    """Called with the index of each request before it is sent: what others do meanwhile."""
    requests: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)
    arrived: list[Request] = field(default_factory=list)
    """Those that came late."""
    _late: list[tuple[int, Request, Callable[[], object]]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def location(self) -> str:
        """Of the inner client."""
        return self.inner.location

    def parents(self) -> Sequence[ObjectClient]:
        """Of the inner client."""
        return self.inner.parents()

    @property
    def max_object(self) -> int:
        """Of the inner client."""
        return self.inner.max_object

    def heal(self) -> None:
        """From now on the server is well; what is on its way still arrives with `deliver`."""
        self.fault = None

    def deliver(self, until: int | None = None) -> None:
        """Let what is on its way arrive, all of it or what is due by a request's index."""
        with self._lock:
            due = [item for item in self._late if until is None or item[0] <= until]
            self._late = [item for item in self._late if item not in due]
        for _, asked, request in due:
            self.arrived.append(asked)
            with contextlib.suppress(SnapfmtError):
                request()

    def put(
        self,
        key: str,
        data: Body,
        *,
        exclusive: bool,
        metadata: Mapping[str, str],
        sha256: bytes | None = None,
    ) -> None:
        """As the inner client, or the fault."""
        held, noted = bytes(data), dict(metadata)
        self._send(
            "create" if exclusive else "put",
            key,
            lambda: self.inner.put(key, held, exclusive=exclusive, metadata=noted, sha256=sha256),
        )

    def get(self, key: str, offset: int, size: int) -> bytes:
        """As the inner client, or the fault."""
        return self._send("get", key, lambda: self.inner.get(key, offset, size))

    def head(self, key: str) -> ObjectInfo | None:
        """As the inner client, or the fault."""
        return self._send("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str, *, deep: bool) -> Iterator[ObjectInfo]:
        """As the inner client, or the fault, which comes after half of the list."""
        found: list[ObjectInfo] = []

        def read() -> None:
            found.extend(self.inner.list(prefix, deep=deep))

        try:
            self._send("list", prefix, read)
        except Exception:
            yield from list(self.inner.list(prefix, deep=deep))[::2]
            raise
        yield from {item.key: item for item in found}.values()

    def delete(self, key: str) -> None:
        """As the inner client, or the fault."""
        self._send("delete", key, lambda: self.inner.delete(key))

    def _send(self, verb: str, key: str, request: Callable[[], T]) -> T:
        asked = Request(verb, key)
        with self._lock:
            number = len(self.requests)
            self.requests.append(asked)
        if self.before is not None:
            self.before(number, asked)
        self.deliver(number)
        fault = self._fault_of(number, asked)
        if fault is None:
            return request()
        if fault.applied == "late":
            with self._lock:
                self._late.append((number + self.late_by, asked, request))
        if fault.applied == "twice":
            request()
        if fault.error is None:
            return request()
        if fault.applied == "yes":
            with contextlib.suppress(SnapfmtError):
                # Nobody hears what it says.
                request()
        raise fault.error(key)

    def _fault_of(self, number: int, asked: Request) -> Fault | None:
        with self._lock:
            again = self.for_good and self.failed and asked.verb == self.failed[0].verb
            if self.fault is None or not (again or number == self.at):
                return None
            self.failed.append(asked)
            return self.fault


def patient(**changes: Any) -> RetryPolicy:
    """The usual number of tries, and no pause between them."""
    return RetryPolicy(**{"sleep": _no_pause, **changes})


def _no_pause(seconds: float) -> None:
    del seconds
