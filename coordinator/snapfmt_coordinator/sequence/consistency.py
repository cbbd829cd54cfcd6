"""Whether the parts of one cut fit together; the same rules before a publish and a restore."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from snapfmt_coordinator.sequence.indexes import GymIndexes
from snapfmt_coordinator.sequence.ports import LedgerFacts

_SHOWN: Final = 3


def problems(indexes: GymIndexes | None, ledger: LedgerFacts, rows: AbstractSet[str]) -> list[str]:
    """Where Gym's parts, the ledger and the token-capture rows contradict one another.

    `indexes` is None when Gym took no part; `rows` has the keys of the token-capture rows.
    """
    found = _missing("the ledger names", ledger.required_rows(), rows)
    if indexes is None:
        return found
    if owed := ledger.pending_acknowledgements():
        found.append(f"{owed} acknowledgements are owed to Gym")
    roots = {
        line.capture_key: line.last_committed_model_call_id for _, line in indexes.continuations
    }
    if len(roots) != len(indexes.continuations):
        found.append("a run has more than one continuation")
    unknown = roots.keys() - ledger.dispatched_runs()
    found += _some("Gym continues runs that the ledger has not dispatched", unknown)
    keys = [reference.key for reference in indexes.references]
    if len(set(keys)) != len(keys):
        found.append("a storage reference repeats its key")
    found += _missing("the model's lineage names", keys, rows)
    loose = {
        reference.key
        for reference in indexes.references
        if roots.get(reference.capture_key) != reference.boundary_model_call_id
    }
    found += _some("storage references of no continuation", loose)
    referred = {reference.capture_key for reference in indexes.references}
    return found + _some("continuations without lineage", roots.keys() - referred)


def given_up(indexes: GymIndexes, ledger: LedgerFacts) -> list[str]:
    """Runs that Gym continues and that the ledger has given up.

    One that failed after Gym took its cut; its rollout starts over, so a later snapshot is whole.
    """
    continued = {line.capture_key for _, line in indexes.continuations}
    return _some("runs were given up during the cut", continued & ledger.given_up_runs())


def lost_sessions(indexes: GymIndexes) -> list[str]:
    """Where a server that exports its sessions lacks one that a run used, or has another one.

    A server that was restarted, or a run that was given up during the cut: such runs fail soon
    and start over, so a later snapshot may well be whole.
    """
    found: list[str] = []
    start_over = indexes.redacted_keys()
    runs = [run for run in indexes.runs if run.capture_key not in start_over]
    for server, sessions in sorted(indexes.sessions.items()):
        missing: set[str] = set()
        different: set[str] = set()
        for run in runs:
            used = (run.revisions or {}).get(server)
            if used is None:
                continue
            saved = sessions.get(run.capture_key)
            if saved is None:
                missing.add(run.capture_key)
            elif saved != used:
                different.add(f"{run.capture_key} (revision {saved}, not {used})")
        found += _some(
            f"resources server {server!r} has lost sessions of runs that used it, or runs as"
            " several processes",
            missing,
        )
        found += _some(
            f"resources server {server!r} has other sessions than the agents have seen", different
        )
    return found


def _missing(who: str, keys: Iterable[str], rows: AbstractSet[str]) -> list[str]:
    return _some(f"{who} token-capture rows that the cut has not", set(keys) - rows)


def _some(text: str, items: AbstractSet[str]) -> list[str]:
    if not items:
        return []
    shown = ", ".join(sorted(items)[:_SHOWN])
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return [f"{text}: {shown}{more}"]
