"""Every single damage to every file of a small repository: found by the audit, never read as data.

The repository has a snapshot and one that builds on it, so that entries, records, rows, indexes
and a bitmap of live rows are all there, in as few bytes as possible.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from snapfmt.errors import SnapfmtError
from snapfmt.format import layout
from snapfmt.repository import Repository
from snapfmt.testing.corruption import Tree
from snapfmt.testing.samples import contents, plain

T = TypeVar("T")

Pieces = dict[str, Any]
"""What can be read, piece by piece."""
Kind = str
KINDS: tuple[Kind, ...] = ("bit", "cut", "grown", "gone", "swapped", "replaced", "copied", "extra")


def small(root: Path) -> Repository:
    """A repository with a snapshot and one on its base."""
    repository = Repository.create(root)
    for base in (None, 1):
        with repository.begin(base=base) as attempt:
            part = attempt.part("p", workers=1)
            if base is None:
                part.stage("note", b"a note")
                part.records("lines", [b'{"id":"0"}', b'{"id":"1"}'], key="id")
            else:
                part.carry("note")
                part.carry("lines")
            with part.table("t") as table:
                table.carry_all(["k1"])
                keys = ["k1"] if base else ["k0", "k1", "k2"]
                table.append(keys, {"text": [f"text {base} {key}" for key in keys]})
            attempt.publish([part.seal()])
    return repository


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage: its kind, and which files hold what then; None for a file that is gone."""

    kind: Kind
    where: str
    files: dict[str, bytes | None]


def damages(files: dict[str, bytes], kind: Kind) -> Iterator[Damage]:
    """Every damage of one kind."""
    for name, data in files.items():
        for where, changed in _ONE_FILE[kind](name, data) if kind in _ONE_FILE else ():
            yield Damage(kind, f"{name}: {where}", {name: changed})
        if kind in ("copied", "extra"):
            for target in _strangers(name, files):
                stray = data if kind == "copied" else data[: len(data) // 2]
                yield Damage(kind, f"{name} as {target}", {target: stray})
        for other, content in files.items():
            if kind == "replaced" and other != name:
                yield Damage(kind, f"{name} by {other}", {name: content})
            if kind == "swapped" and other > name:
                yield Damage(kind, f"{name} and {other}", {name: content, other: data})


def _bits(_: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    for offset in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[offset] ^= 1 << bit
            yield f"bit {bit} of byte {offset}", bytes(changed)


def _cuts(_: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    return ((f"cut to {size}", data[:size]) for size in range(len(data)))


def _grown(_: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    return ((f"with {more[:4]!r}", data + more) for more in (b"\0", b"\n", b" ", b"{}", data))


def _gone(_: str, __: bytes) -> Iterator[tuple[str, None]]:
    yield "gone", None


_ONE_FILE: dict[Kind, Callable[[str, bytes], Iterator[tuple[str, bytes | None]]]] = {
    "bit": _bits,
    "cut": _cuts,
    "grown": _grown,
    "gone": _gone,
}


def _strangers(name: str, files: dict[str, bytes]) -> list[str]:
    """Names at which nothing of the repository lies."""
    last = name.rpartition("/")[2]
    return [
        place
        for place in (
            f"{name}.copy",
            "objects/aa/aa" + "0" * 62,
            f"objects/{last}",
            layout.manifest_key(3),
            f"snapshots/{layout.snapshot_name(1)}/{last}",
            "attempts/stranger",
            last,
        )
        if place not in files
    ]


@dataclass(slots=True)
class Verdicts:
    """What became of the damages of one kind."""

    kind: Kind
    tried: int = 0
    found: int = 0
    """Reported by the deep audit, or refused when the repository was opened."""
    unread: int = 0
    """Damages with which at least one piece could not be read; the others harmed no data."""
    problems: list[str] = field(default_factory=list)


def pieces(root: Path) -> Pieces:
    """What can be read of each published snapshot; what raises a typed error is left out."""
    found: Pieces = {}
    try:
        repository = Repository.open(root)
        numbers = repository.numbers()
    except SnapfmtError:
        return found
    for number in numbers:
        try:
            snapshot = repository.snapshot(number)
            found[f"{number}"] = snapshot.manifest.model_dump_json()
        except SnapfmtError:
            continue
        for part in snapshot.parts():
            try:
                entries = part.entries()
            except SnapfmtError:
                continue
            for entry in entries:
                try:
                    found[f"{number}/{entry.path}"] = part.read(entry.path)
                except SnapfmtError:
                    continue
        for name in snapshot.table_names():
            try:
                found |= _rows(snapshot.table(name), f"{number}/{name}")
            except SnapfmtError:
                continue
    return found


def _rows(table: Any, name: str) -> Pieces:
    return {
        f"{name}[{key}]": {
            column: plain(values.value(row)) for column, values in batch.columns.items()
        }
        for batch in table.batches()
        for row, key in enumerate(batch.keys)
    }


class _Bench:
    """One small repository, damaged and mended again and again."""

    def __init__(self, root: Path) -> None:
        small(root)
        self._tree = Tree.take(root)
        self._whole = pieces(root)
        self._saved = {
            number: contents(Repository.open(root).snapshot(number)) for number in (1, 2)
        }

    @property
    def files(self) -> dict[str, bytes]:
        return self._tree.files

    def judge(self, damage: Damage, verdicts: Verdicts, *, falls_back: bool) -> None:
        root = self._tree.root
        self._tree.put(damage.files)
        verdicts.tried += 1
        try:
            wrong = self._wrong(root, verdicts, damage, falls_back=falls_back)
        except Exception as error:  # noqa: BLE001 - an error without a type is what was looked for
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            verdicts.problems.append(f"{damage.kind}, {damage.where}: {wrong}")
        self._tree.mend(damage.files)

    def _wrong(self, root: Path, verdicts: Verdicts, damage: Damage, *, falls_back: bool) -> str:
        try:
            reported = bool(Repository.open(root).verify(deep=True).findings)
        except SnapfmtError:
            reported = True
        found = pieces(root)
        # A snapshot without its manifest was never published: it is gone, and nothing is wrong.
        unpublished = damage.kind == "gone" and damage.where.startswith("snapshots/")
        if not reported and not unpublished:
            return "the audit does not tell of it"
        verdicts.found += 1
        verdicts.unread += found.keys() < self._whole.keys()
        for name, data in found.items():
            if name not in self._whole or data != self._whole[name]:
                return f"{name} reads as what was not saved"
        return self._chosen(root) if falls_back else ""

    def _chosen(self, root: Path) -> str:
        """What a restore would take is whole."""
        try:
            chosen = Repository.open(root).latest(deep=True).snapshot
        except SnapfmtError:
            return ""
        if contents(chosen) != self._saved.get(chosen.number):
            return f"snapshot {chosen.number} is chosen and is not what was saved"
        return ""


def run_share(
    share: tuple[Kind, int], folder: str, *, shares: int, stride: int = 1, falls_back: int = 7
) -> Verdicts:
    """Every damage of one kind that falls to this share, or one in `stride` of them.

    With one in `falls_back` of them a snapshot is chosen as for a restore.
    """
    kind, place = share
    verdicts = Verdicts(kind)
    with tempfile.TemporaryDirectory(dir=folder) as root:
        bench = _Bench(Path(root) / "run")
        for at, damage in enumerate(damages(bench.files, kind)):
            if at % (shares * stride) == place * stride:
                turn = verdicts.tried % falls_back == 0
                bench.judge(damage, verdicts, falls_back=turn)
    return verdicts


def run_all(
    kinds: Iterable[Kind], folder: str, *, workers: int = 1, stride: int = 1
) -> list[Verdicts]:
    """All damages of these kinds, as `share_out` says."""
    return share_out(run_share, kinds, folder, workers=workers, stride=stride)


def share_out(
    run_share: Callable[..., T], kinds: Iterable[Kind], folder: str, *, workers: int, stride: int
) -> list[T]:
    """Every share of these kinds, in processes of their own if there are several workers."""
    shares = 1 if workers == 1 else 8 * workers
    work = [(kind, place) for kind in kinds for place in range(shares)]
    run = partial(run_share, folder=folder, shares=shares, stride=stride)
    if workers == 1:
        return [run(item) for item in work]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(run, work))


def summary(found: Iterable[Verdicts]) -> dict[str, Any]:
    """Figures by kind."""
    return by_kind(found, ("tried", "found", "unread"), ("tried", "found"))


def by_kind(found: Iterable[Any], names: Sequence[str], totals: Sequence[str]) -> dict[str, Any]:
    """These figures of every kind, some of them over all kinds, and the problems."""
    kinds: dict[str, dict[str, int]] = {}
    problems: list[str] = []
    for item in found:
        kind = kinds.setdefault(item.kind, dict.fromkeys(names, 0))
        for name in names:
            kind[name] += getattr(item, name)
        problems += item.problems
    return {
        **{name: sum(kind[name] for kind in kinds.values()) for name in totals},
        "kinds": kinds,
        "problems": len(problems),
        "first_problems": problems[:10],
    }
