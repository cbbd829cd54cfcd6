"""What must hold after a soak, when nobody works on the repository any more."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from snapfmt.errors import NotFoundError, SnapfmtError
from snapfmt.format import canonical, layout
from snapfmt.repository import Repository
from snapfmt.storage import probes
from snapfmt.storage.local import LocalStore
from snapfmt.testing import soak_model
from snapfmt.testing.samples import needed
from snapfmt.transfer.claim import sweep
from snapfmt_schemas.manifest import Manifest

_ROUNDS = 3
_NAMES = re.compile(r"[0-9a-f]{8,}|[0-9]+")


@dataclass(slots=True)
class Settled:
    """What was found at the end."""

    published: int = 0
    retired: int = 0
    bytes_checked: int = 0
    losses: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)


def settle(repository: Repository, saved: Mapping[int, str], pinned: Mapping[str, int]) -> Settled:
    """Check every snapshot, then unpin and collect all, and see whether anything is left over.

    `saved`: numbers whose publication returned, and their write ids. `pinned`: pins that hold.
    """
    found = Settled()
    numbers = repository.numbers()
    found.published = len(numbers)
    found.losses += _lost(repository, saved, numbers)
    found.losses += [
        f"the pinned snapshot {number} is gone"
        for number in pinned.values()
        if number not in numbers
    ]
    found.retired = len(saved.keys() - set(numbers))
    _check_all(repository, found)
    for name in repository.pins():
        repository.unpin(name)
    with pytest.MonkeyPatch.context() as patch:
        # Nobody works on any of them now.
        patch.setattr(probes, "_AGE_NS", -(10**15))
        repository.begin().abandon()
    for _ in range(_ROUNDS):
        repository.clean_up()
        sweep(repository)
        if not repository.collect().waiting:
            break
    if repository.numbers() != numbers:
        found.losses.append(f"collecting changed {numbers} to {repository.numbers()}")
    _check_all(repository, found)
    found.leaks += _left(repository)
    report = repository.verify(deep=True)
    found.losses += [f"{item.path}: {item.message}" for item in [*report.damage, *report.unknown]]
    return found


def _lost(repository: Repository, saved: Mapping[int, str], numbers: list[int]) -> list[str]:
    lost = []
    for number, write_id in saved.items():
        manifest = _document(repository, number)
        if manifest is None:
            lost.append(f"snapshot {number} was published and left nothing")
        elif manifest.write_id != write_id:
            lost.append(f"snapshot {number} is another one")
    if saved and max(saved) > max(numbers, default=0):
        lost.append(f"the newest snapshot is {max(numbers, default=0)}, not {max(saved)}")
    return lost


def _document(repository: Repository, number: int) -> Manifest | None:
    """What tells of a snapshot, published or retired."""
    limit = repository.limits.manifest_size
    for name in (layout.MANIFEST, layout.RETIRING, layout.RETIRED):
        key = layout.snapshot_key(number, name)
        try:
            data = repository.store.get(key, limit=limit)
        except NotFoundError:
            continue
        return canonical.decode(data, Manifest, what=key, size_limit=limit)
    return None


def _check_all(repository: Repository, found: Settled) -> None:
    for number in repository.numbers():
        try:
            found.bytes_checked += soak_model.check(repository.snapshot(number))
        except (SnapfmtError, AssertionError) as error:
            found.losses.append(f"snapshot {number}: {error}")


def _left(repository: Repository) -> list[str]:
    """Keys that nothing needs."""
    numbers = repository.numbers()
    wanted = {layout.REPOSITORY_KEY, *needed(repository)}
    wanted |= {layout.manifest_key(number) for number in numbers}
    if not isinstance(repository.store, LocalStore):
        wanted |= _copied(repository, numbers)
    left = [
        key
        for key, _ in repository.store.walk("")
        if key not in wanted and not key.endswith(f"/{layout.RETIRED}")
    ]
    return [*left, *(f"lease of {lease.attempt_id}" for lease in repository.leases())]


def _copied(repository: Repository, numbers: Collection[int]) -> set[str]:
    """Copies of manifests that are still published (spec/v1/08-reading.md).

    In a bucket a retirement that died between its two requests leaves one; only the next
    retirement of that snapshot may know that the second request is not on its way.
    """
    store, limit, found = repository.store, repository.limits.manifest_size, set()
    for number in numbers:
        key = layout.snapshot_key(number, layout.RETIRING)
        if store.size(key) is not None:
            same = store.get(layout.manifest_key(number), limit=limit)
            found |= {key} if store.get(key, limit=limit) == same else set()
    return found


def told(found: Settled) -> dict[str, Any]:
    """In a form that fits a line: figures, and the first of what is wrong."""
    return {
        "published": found.published,
        "retired": found.retired,
        "bytes": found.bytes_checked,
        "losses": len(found.losses),
        "leaks": len(found.leaks),
        "kinds": dict(Counter(_NAMES.sub("*", item)[:60] for item in found.leaks)),
        "shown": [item[:150] for item in [*found.losses[:4], *found.leaks[:8]]],
    }
