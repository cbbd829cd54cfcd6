"""Opens all servers again, from the inside out; also the way out of whatever failed."""

import time
from typing import Final

from snapfmt.errors import ControlRefused
from snapfmt_coordinator.gym import observing, routes
from snapfmt_coordinator.gym.fanout import in_stages
from snapfmt_coordinator.gym.links import Link, Links, contradiction
from snapfmt_coordinator.gym.observing import observed
from snapfmt_coordinator.protocol import v1

STAGE_PATIENCE_S: Final = 5.0
"""How long a server that does not answer keeps the next ones from being resumed, at most: no
longer than a quarter of the time that there is, so that all are told before it is over."""
_SHARE: Final = 0.25
_OPEN_ALREADY: Final = ("unknown_checkpoint", "stale_checkpoint")


async def resume(
    links: Links, checkpoint_id: str, *, deadline_ts: float, same_process: bool = False
) -> None:
    """Opens resources, then models, then agents; each is told, whatever fails before.

    A server that knows nothing of the checkpoint, or no longer, is open already. One that was
    restarted is opened all the same; with `same_process` that is an error afterwards, since what
    a restore had installed is gone.

    Raises:
        ControlRefused, ParticipantFailed, DeadlineExceeded: If one may still be closed; it
            opens by itself when its lease ends.
    """
    body = v1.Resume(checkpoint_id=checkpoint_id, deadline_ts=deadline_ts)

    async def open_again(link: Link) -> None:
        with observed(links.observe, observing.RESUME, link.part) as counts:
            try:
                reply = await link.client.request(
                    routes.RESUME[link.component],
                    body,
                    v1.Resumed,
                    deadline_ts=deadline_ts,
                    # Nothing is more urgent: as long as there is time, it is tried.
                    patience_s=max(deadline_ts - time.time(), 0.0),
                    watched=same_process,
                )
            except ControlRefused as refusal:
                if refusal.reason not in _OPEN_ALREADY:
                    raise
                return
            if reply.state != "idle":
                raise contradiction(link, f"was resumed and is {reply.state}")
            counts["released"] = reply.released

    stages = (links.resources, links.models, links.agents)
    left = max(deadline_ts - time.time(), 0.0)
    await in_stages(open_again, stages, patience_s=min(STAGE_PATIENCE_S, _SHARE * left))
