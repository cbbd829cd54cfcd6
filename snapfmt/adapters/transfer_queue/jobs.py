"""Background work inside an actor, with a lease that a driver renews by asking for progress."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from snapfmt.adapters.transfer_queue.hold import Lease
from snapfmt.errors import AttemptClosed, LeaseExpired, ParticipantFailed, SnapfmtError
from snapfmt.threads import start

_RESIDENT = "_snapfmt_holdings"
WAIT_S = 0.1
"""Time that a question for progress waits for the end of the work: few of them, each of which
takes the interpreter's lock from the work, and the end is known at once."""


@dataclass(frozen=True, slots=True)
class Status:
    """Progress of a job, as the driver sees it."""

    done: bool
    result: Any = None
    error: SnapfmtError | None = None


class Holding:
    """Something that an actor keeps for a driver: a cut, or rows being restored.

    `release` runs exactly once: when the driver lets go, or when the lease ends without news
    from the driver.
    """

    def __init__(
        self, content: Any, *, lease_s: float, release: Callable[["Holding"], object]
    ) -> None:
        self.content = content
        self._release = release
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._finished.set()
        self._result: Any = None
        self._error: SnapfmtError | None = None
        self._lease = Lease(lease_s, self._let_go)

    def start(self, work: Callable[[], Any], name: str) -> None:
        """Runs `work` in a thread of its own; `status` says how it goes.

        Raises:
            StorageError: If the system has no thread to give.
        """
        self._finished.clear()
        try:
            start(threading.Thread(target=self._run, args=(work,), name=name, daemon=True))
        except BaseException:
            # Who lets go of it would wait for ever.
            self._finished.set()
            raise

    def check(self) -> None:
        """Called by the work between its steps.

        Raises:
            LeaseExpired: If the driver let go of this.
        """
        if self._stopping.is_set():
            raise LeaseExpired("the driver has let go of this part")

    def status(self, lease_s: float, wait_s: float = 0.0) -> Status:
        """State of the work, at its end or after a while; asking renews the lease.

        Raises:
            LeaseExpired: If the lease has ended.
        """
        if not self._lease.renew(lease_s):
            raise LeaseExpired("the driver was not heard of for too long")
        self._finished.wait(wait_s)
        return Status(self._finished.is_set(), self._result, self._error)

    def end(self) -> bool:
        """Ends the lease and keeps the content; False when the lease had expired."""
        return self._lease.end()

    def drop(self) -> None:
        """Stops the work, waits for it, and releases the content."""
        if self._lease.end():
            self._let_go()

    def _let_go(self) -> None:
        self._stopping.set()
        self._finished.wait()
        self._release(self)
        self.content = None

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._result = work()
        except SnapfmtError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - crosses a process border as a typed error
            self._error = ParticipantFailed(f"{type(error).__name__}: {error}")
        finally:
            self._finished.set()


def holdings_of(actor: Any) -> dict[str, Holding]:
    """What this actor keeps for drivers, by id."""
    found: dict[str, Holding] = actor.__dict__.setdefault(_RESIDENT, {})
    return found


def keep(actor: Any, holding_id: str, holding: Holding) -> None:
    """Keeps a holding under its id and forgets those whose lease ended."""
    holdings = holdings_of(actor)
    for old in [key for key, value in holdings.items() if value.content is None]:
        del holdings[old]
    holdings[holding_id] = holding


def holding_of(actor: Any, holding_id: str) -> Holding:
    """One of them.

    Raises:
        AttemptClosed: If the actor keeps nothing of that id, such as after its lease ended.
    """
    try:
        return holdings_of(actor)[holding_id]
    except KeyError:
        raise AttemptClosed("the actor keeps no such cut", what=holding_id) from None


def poll(actor: Any, holding_id: str, lease_s: float, wait_s: float = 0.0) -> Status:
    """Runs in the actor: progress of the work on one holding."""
    return holding_of(actor, holding_id).status(lease_s, wait_s)


def drop(actor: Any, holding_id: str) -> None:
    """Runs in the actor: lets go of one holding; no error when it is gone."""
    holding = holdings_of(actor).pop(holding_id, None)
    if holding is not None:
        holding.drop()
