"""Restoring a participant from its part of a published snapshot: all of it, or nothing."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from snapfmt.errors import ControlRefused
from snapfmt.reading.snapshot import Part
from snapfmt_coordinator.participant import parts
from snapfmt_coordinator.participant.fence import Fence
from snapfmt_coordinator.protocol.codes import Reason, refused
from snapfmt_coordinator.protocol.v1 import Control, Restore, Restored

T = TypeVar("T")


async def restore(
    fence: Fence,
    request: Restore,
    *,
    part: str,
    reason: Reason,
    read: Callable[[Part], T],
    conflict: Callable[[T], str],
    install: Callable[[T], Restored],
) -> Restored:
    """What `restore` does in every kind of participant.

    `read` runs in a worker thread and touches nothing live. `conflict` names something live
    that is in the way, or gives nothing. `install` must not fail half way.

    Raises:
        ControlRefused: `topology_mismatch`, `wrong_phase` and what `Fence.enter` raises: nothing
            was changed. `reason` when the part cannot be read or installed: nothing was
            installed, and admission stays closed until `resume`.
    """

    async def body() -> Restored:
        _enter(fence, request)
        try:
            with parts.failing_as(reason, "the part was not restored"):
                found = await asyncio.to_thread(
                    lambda: read(parts.published_part(request.snapshot))
                )
                # Resumed, or ran out, while the part was read.
                fence.check_active(request)
                if what := conflict(found):
                    fence.withdraw()
                    raise refused(
                        "wrong_phase",
                        "a rollout of the snapshot is live here",
                        what=what,
                        hint="restore into a server that does not serve it, or retire it first",
                    )
                answer = install(found)
        except BaseException as error:
            if fence.is_active(request.checkpoint_id):
                if isinstance(error, ControlRefused) and error.reason == "topology_mismatch":
                    fence.withdraw()
                else:
                    fence.move("restore_failed_paused")
            raise
        fence.move("restored_paused")
        return answer.model_copy(update={"state": fence.phase})

    if request.snapshot.part != part:
        raise refused(
            "topology_mismatch",
            f"the snapshot's part is {request.snapshot.part!r}, this is {part!r}",
            what="snapshot.part",
            hint="correct the addresses; each server restores its own part",
        )
    return await fence.run_operation("restore", request, body)


async def installed(fence: Fence, request: Control) -> None:
    """Wait out a restore that still reads its part, so that what it installs can be discarded.

    Raises:
        ControlRefused: `deadline_passed` if it goes on for longer; `wrong_phase` if nothing is
            installed; `stale_checkpoint`, `unknown_checkpoint`.
    """
    fence.require(request)
    done = await fence.changed.wait_for(
        lambda: fence.phase != "restoring" or not fence.is_active(request.checkpoint_id),
        fence.remaining(request),
    )
    if not done:
        raise refused(
            "deadline_passed",
            "the part is still read; what it installs is not discarded",
            what=request.checkpoint_id,
            hint="ask again with a later deadline_ts, or resume: then nothing is installed",
        )
    fence.require(request, "restored_paused")


def _enter(fence: Fence, request: Restore) -> None:
    if fence.enter(request, "restoring"):
        return
    if fence.phase in ("restoring", "restored_paused"):
        raise refused(
            "checkpoint_conflict",
            "another part is restored under this id",
            what=request.checkpoint_id,
            hint="begin another restore under another id",
        )
    if fence.phase != "restore_failed_paused":
        raise fence.wrong_phase(request, "idle", "restore_failed_paused")
    fence.move("restoring")
