"""Every single damage of a small repository, repaired: what is got out, and what is told.

After each damage the new repository must verify clean and hold what was saved, the pieces as
well, and the report must tell of every loss and of nothing else. With a good copy beside it,
nothing may be lost at all.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from snapfmt.format import jsonl, layout
from snapfmt.reading.snapshot import Snapshot
from snapfmt.repair import RepairReport, SnapshotRepair, repair
from snapfmt.repository import Repository
from snapfmt.testing.corruption import Tree
from snapfmt.testing.damage_matrix import Damage, Kind, by_kind, damages, share_out, small
from snapfmt.testing.samples import contents, plain

Pieces = dict[tuple[str, str, str], Any]
"""Kind, name and key of each thing that can be lost -> its value."""


@dataclass(slots=True)
class Repairs:
    """What became of the damages of one kind."""

    kind: Kind
    tried: int = 0
    whole: int = 0
    """Damages after which every snapshot was whole in the new repository."""
    partly: int = 0
    """Damages after which a snapshot lost something and kept something."""
    lost: int = 0
    """Damages after which of a snapshot nothing could be read."""
    beside: int = 0
    """Damages that were also repaired with a good copy beside them, and nothing was lost."""
    problems: list[str] = field(default_factory=list)


def things(snapshot: Snapshot) -> Pieces:
    """Every entry, record and row of a snapshot."""
    found: Pieces = {}
    for part in snapshot.parts():
        indexes = {entry.index for entry in part.entries()}
        for entry in part.entries():
            if entry.media_type == jsonl.MEDIA_TYPE:
                places = part.line_places(entry)
                for place, line in zip(places, part.lines(entry.path), strict=True):
                    found["records", entry.path, place.key] = line
            elif entry.path not in indexes:
                found["entry", entry.path, ""] = part.read(entry.path)
    for name in snapshot.table_names():
        for batch in snapshot.table(name).batches():
            for row, key in enumerate(batch.keys):
                found["rows", name, key] = {
                    column: plain(values.value(row)) for column, values in batch.columns.items()
                }
    return found


class Bench:
    """One small repository, damaged, repaired and mended again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        repository = small(folder / "run")
        shutil.copytree(folder / "run", folder / "copy")
        self._tree = Tree.take(folder / "run")
        self._things = {number: things(repository.snapshot(number)) for number in (1, 2)}
        self._saved = {number: contents(repository.snapshot(number)) for number in (1, 2)}

    @property
    def files(self) -> dict[str, bytes]:
        """Of the repository before it is damaged."""
        return self._tree.files

    def judge(self, damage: Damage, found: Repairs, *, beside: bool) -> None:
        """Damage it, repair it, note what is wrong with that, and mend it."""
        self._tree.put(damage.files)
        found.tried += 1
        try:
            before = Tree.take(self._tree.root).files
            wrong = self._alone(damage, found)
            if not wrong and beside:
                wrong = self._beside()
                found.beside += 1
            if not wrong and Tree.take(self._tree.root).files != before:
                wrong = "the damaged repository was changed"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            found.problems.append(f"{damage.kind}, {damage.where}: {wrong}")
        self._tree.mend(damage.files)
        for name in ("new", "pieces", "beside"):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def _alone(self, damage: Damage, found: Repairs) -> str:
        new, place = self._folder / "new", self._folder / "pieces"
        report = repair(self._tree.root, new, pieces=place, workers=1)
        known = {item.number: item for item in report.snapshots}
        if strange := known.keys() - self._things.keys() - _folders(damage):
            return f"tells of snapshots {sorted(strange)}"
        outcomes = {item.outcome for item in report.snapshots if item.number in self._things}
        gone = [number for number in self._things if number not in known]
        found.whole += outcomes == {"whole"} and not gone
        found.partly += "pieces" in outcomes
        found.lost += "lost" in outcomes or bool(gone)
        if wrong := self._target(new, report):
            return wrong
        for number in self._things:
            if wrong := self._told(number, known.get(number), place, report):
                return f"snapshot {number}: {wrong}"
        return ""

    def _target(self, new: Path, report: RepairReport) -> str:
        """What is wrong with the new repository."""
        if not report.whole:
            return "a target was made" if new.exists() else ""
        target = Repository.open(new)
        if target.numbers() != report.whole:
            return f"the new repository has snapshots {target.numbers()}"
        if [item for item in target.verify().findings if item.path.startswith("objects")]:
            return "the new repository does not verify clean"
        if target.verify().damage:
            return "the new repository is damaged"
        for number in report.whole:
            if contents(target.snapshot(number)) != self._saved[number]:
                return f"snapshot {number} is not what was saved"
        return ""

    def _told(
        self, number: int, item: SnapshotRepair | None, place: Path, report: RepairReport
    ) -> str:
        """What is wrong with what is told of one snapshot, and with its pieces."""
        if item is None:
            traces = number in report.unpublished or report.unreached_objects
            return "" if traces else "its loss leaves no trace"
        if item.outcome == "whole":
            return "something is lost of a whole" if item.losses else ""
        if item.outcome == "unknown":
            # Of another version, as its manifest says: what it holds cannot be told, but that can.
            told_why = bool(item.findings) and not item.salvaged and not item.losses
            return "" if told_why else "it does not tell why nothing is known"
        kept: Pieces = {}
        if item.salvaged:
            pieces = Repository.open(place, salvage=True)
            if pieces.verify().findings:
                return "the pieces do not verify clean"
            kept = things(pieces.snapshot(number))
        truth = self._things[number]
        if wrong := [key for key, value in kept.items() if truth.get(key) != value]:
            return f"a piece is not what was saved: {wrong[0]}"
        if [loss.kind for loss in item.losses] == ["snapshot"]:
            return "something is kept of what is lost" if kept else ""
        missing = Counter((kind, name) for kind, name, _ in truth.keys() - kept.keys())
        told = Counter[tuple[str, str]]()
        for loss in item.losses:
            told[loss.kind, loss.name] += loss.count
            named = {(loss.kind, loss.name, key) for key in loss.keys}
            if named - (truth.keys() - kept.keys()):
                return f"a key is told as lost that is not: {min(named)}"
        if told.pop(("part", "p"), 0):
            # Its receipt tells how many there were, index entries among them, and no names.
            entries = sum(missing.pop(key) for key in list(missing) if key[0] == "entry")
            records = [missing.pop(key) for key in list(missing) if key[0] == "records"]
            if told.pop(("entry", "*")) < entries or told.pop(("records", "*")) != sum(records):
                return "a part is lost, and what it held is not told"
        return "" if told == missing else f"lost {dict(missing)}, told {dict(told)}"

    def _beside(self) -> str:
        new = self._folder / "beside"
        report = repair(self._tree.root, new, also=[self._folder / "copy"], workers=1)
        if report.whole != list(self._saved):
            return "a good copy beside it does not make it whole"
        found = Repository.open(new)
        data = {number: contents(found.snapshot(number)) for number in found.numbers()}
        if data != self._saved or found.verify().damage:
            return "with a good copy beside it the new repository is not whole"
        return ""


def _folders(damage: Damage) -> set[int]:
    """Numbers of snapshots that a damage put there."""
    steps = [name.split("/") for name in damage.files]
    found = [layout.snapshot_number(step[1]) for step in steps if len(step) > 2]
    return {number for number in found if number is not None}


def run_share(
    share: tuple[Kind, int], folder: str, *, shares: int, stride: int = 1, beside: int = 5
) -> Repairs:
    """Every damage of one kind that falls to this share, or one in `stride` of them.

    One in `beside` of them is also repaired with a good copy beside it.
    """
    kind, place = share
    found = Repairs(kind)
    with tempfile.TemporaryDirectory(dir=folder) as root:
        bench = Bench(Path(root))
        for at, damage in enumerate(damages(bench.files, kind)):
            if at % (shares * stride) == place * stride:
                bench.judge(damage, found, beside=found.tried % beside == 0)
    return found


def sample(folder: Path, strides: Mapping[Kind, int]) -> list[Repairs]:
    """One in so many of the damages of each kind, from its middle on; all on one repository."""
    bench, tallies = Bench(folder), []
    for kind, stride in strides.items():
        found = Repairs(kind)
        for damage in islice(damages(bench.files, kind), stride // 2, None, stride):
            bench.judge(damage, found, beside=found.tried % 3 == 2)
        tallies.append(found)
    return tallies


def run_all(
    kinds: Iterable[Kind], folder: str, *, workers: int = 1, stride: int = 1
) -> list[Repairs]:
    """All damages of these kinds, as `share_out` says."""
    return share_out(run_share, kinds, folder, workers=workers, stride=stride)


def summary(found: Iterable[Repairs]) -> dict[str, Any]:
    """Figures by kind."""
    return by_kind(found, FIGURES, FIGURES)


FIGURES = ("tried", "whole", "partly", "lost", "beside")
