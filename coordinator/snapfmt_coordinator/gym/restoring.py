"""The requests of a restore: every server installs its own part, or none keeps anything."""

import asyncio
import time
from typing import Final

from snapfmt.errors import ParticipantFailed, RestoreRefused, SnapfmtError
from snapfmt.reading.snapshot import Part, Snapshot
from snapfmt_coordinator.gym import observing, routes
from snapfmt_coordinator.gym.fanout import to_the_end, together
from snapfmt_coordinator.gym.links import Link, Links
from snapfmt_coordinator.gym.observing import observed
from snapfmt_coordinator.gym.parts import METADATA_KEY, GymParts, from_metadata
from snapfmt_coordinator.gym.resuming import resume
from snapfmt_coordinator.gym.upkeep import discard_installed
from snapfmt_coordinator.participant import agent_part, model_part, sessions_part
from snapfmt_coordinator.protocol import v1
from snapfmt_schemas.identity import run_of

FRESH: Final = "look at this server's log, and restore into servers that were started afresh"
GIVE_UP_S: Final = 30.0
"""Least time to open the servers again after a restore failed, in seconds."""


def committed_parts(snapshot: Snapshot) -> GymParts:
    """What the Gym servers gave to a snapshot, as its user metadata says.

    Raises:
        RestoreRefused: If the snapshot was taken without Gym.
        FormatError: If the metadata and the manifest contradict each other.
    """
    metadata = snapshot.manifest.user_metadata
    if METADATA_KEY not in metadata:
        raise RestoreRefused(
            "the snapshot holds no state of Gym servers",
            what=snapshot.name,
            hint="restore it without Gym, or choose another snapshot",
        )
    return from_metadata(metadata[METADATA_KEY], snapshot.manifest.parts)


def check(links: Links, committed: GymParts, source_checkpoint_id: str) -> None:
    """Refuses, before any server is asked, what cannot end well.

    Raises:
        RestoreRefused: If the snapshot is of another checkpoint or of other servers.
    """
    if committed.checkpoint_id != source_checkpoint_id:
        raise RestoreRefused(
            f"the snapshot is of checkpoint {committed.checkpoint_id!r}",
            what=source_checkpoint_id,
            hint="name the checkpoint that the snapshot was saved under",
        )
    live = {link.part for link in links}
    saved = {receipt.part for receipt in committed.receipts}
    if live != saved:
        differences = [f"{part} has no part in the snapshot" for part in sorted(live - saved)]
        differences += [f"{part} has no server" for part in sorted(saved - live)]
        raise RestoreRefused(
            f"the servers are not those of the snapshot: {'; '.join(differences)}",
            hint="start the servers that the snapshot was taken from",
        )


async def restore(
    links: Links,
    restore_id: str,
    *,
    deadline_ts: float,
    snapshot: Snapshot,
    committed: GymParts,
) -> int:
    """Installs the saved state, models first, then agents, then resources; all stay paused.

    Returns how many rollouts and sessions were installed. When one server fails, the others
    let go of what they installed and all are resumed before the error is raised.

    Raises:
        ParticipantFailed: If one failed, refused, or came back with another index than it had
            committed; the cause says which.
    """
    digests = {receipt.part: receipt.index_digest for receipt in committed.receipts}

    async def install(link: Link) -> int:
        with observed(links.observe, observing.LOAD, link.part) as counts:
            body = v1.Restore(
                checkpoint_id=restore_id,
                deadline_ts=deadline_ts,
                source_checkpoint_id=committed.checkpoint_id,
                snapshot=v1.PublishedPart(
                    location=snapshot.location,
                    number=snapshot.number,
                    part=link.part,
                    index_digest=digests[link.part],
                ),
            )
            reply = await link.client.request(
                f"{routes.BASE[link.component]}/restore",
                body,
                v1.Restored,
                deadline_ts=deadline_ts,
            )
            _check_restored(link, reply, committed)
            counts["restored"] = reply.restored
            return reply.restored

    total = 0
    try:
        for stage in (links.models, links.agents, links.resources):
            total += sum(await together(install(link) for link in stage))
    except BaseException as error:
        # Whatever it is, also a cancellation: nobody may stay paused and half restored.
        failure = error
        if isinstance(error, SnapfmtError):
            text = f"the restore was given up ({error.code}: {error})"
            failure = ParticipantFailed(text, what=error.what, hint=error.hint or FRESH)
        # To the end, whoever loses patience meanwhile.
        await to_the_end(_give_up(links, restore_id, deadline_ts, snapshot, failure))
        if failure is error:
            raise
        raise failure from error
    return total


async def _give_up(
    links: Links,
    restore_id: str,
    deadline_ts: float,
    snapshot: Snapshot,
    failure: BaseException,
) -> None:
    """Empties and opens all servers; what fails here becomes a note of the failure."""
    runs: set[tuple[str, int]] = set()
    for link in links:
        try:
            runs |= await asyncio.to_thread(_next_runs, snapshot.part(link.part), link.component)
        except SnapfmtError as error:
            # Most likely why the restore failed, and then its server has installed nothing.
            failure.add_note(f"and part {link.part!r} cannot be read: {error}")
    executions = [v1.Execution(rollout_id=name, attempt_index=run) for name, run in sorted(runs)]
    deadline = max(deadline_ts, time.time() + GIVE_UP_S)
    try:
        await discard_installed(links, restore_id, executions, deadline_ts=deadline)
    except SnapfmtError as error:
        failure.add_note(f"and a server may keep what it has restored: {error}")
    # A time of its own: a server that is never opened may install when nobody looks any more.
    deadline = max(deadline_ts, time.time() + GIVE_UP_S)
    try:
        await resume(links, restore_id, deadline_ts=deadline)
    except SnapfmtError as error:
        failure.add_note(f"and a server may still be closed: {error}")


def _next_runs(part: Part, component: str) -> set[tuple[str, int]]:
    """The runs that a restore of a part sets up; reads nothing of what they hold. Blocks."""
    if component == "agent":
        saved = agent_part.runs(part)
    elif component == "model":
        saved = model_part.runs(part)
    else:
        saved = {run_of(key) for key in sessions_part.revisions(part)}
    return {(rollout_id, attempt_index + 1) for rollout_id, attempt_index in saved}


def _check_restored(link: Link, reply: v1.Restored, committed: GymParts) -> None:
    if reply.state != "restored_paused":
        raise ParticipantFailed(
            f"the server is {reply.state} after its restore",
            what=link.part,
            hint="restore into a server that was started afresh",
        )
    pairs = (
        ("continuation", reply.continuation_index, committed.continuation_indexes),
        ("storage reference", reply.storage_reference_index, committed.storage_reference_indexes),
    )
    for kind, found, saved in pairs:
        if found != saved.get(link.part):
            raise ParticipantFailed(
                f"the {kind} index that was restored is not the one that was committed",
                what=link.part,
                hint="restore into a server that was started afresh; then verify the snapshot",
            )
