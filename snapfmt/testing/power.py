"""A disk that loses its power: what may be left of recorded system calls.

Only what was synced is certain. Of each folder, any of the entries that were made, renamed or
removed since its last fsync may be there or not, also when later ones are; a rename from one
folder to another is two of them. Of each file, what was written since its last fsync may be
there, in part or as zeros, or not at all; and a file has the entries that its folders have,
whether it was synced or not.
"""

import hashlib
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from snapfmt.testing.crashes import Effect

Tree = dict[str, bytes | None]
"""Path below the world -> bytes of the file, None for a folder."""
Choice = tuple[int, ...]
"""For each pending unit, which of its outcomes came to be."""


@dataclass(slots=True)
class _File:
    durable: bytes = b""
    live: bytes = b""

    def outcomes(self) -> tuple[bytes, ...]:
        """What may be found, the synced bytes first and what was meant last."""
        size = len(self.live)
        # The size may be durable before the bytes are, and some bytes before others.
        found = [self.durable, bytes(size), self.live[: size // 2], self.live]
        return tuple(dict.fromkeys(found))


@dataclass(slots=True)
class _Folder:
    durable: dict[str, int] = field(default_factory=dict)
    live: dict[str, int] = field(default_factory=dict)
    pending: list[dict[str, int | None]] = field(default_factory=list)

    def note(self, change: dict[str, int | None]) -> None:
        self.pending.append(change)
        _change(self.live, change)


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing that is not certain: an entry of a folder, or what a file holds."""

    node: int
    position: int = -1
    """Among the pending changes of the folder; -1 for a file."""
    contents: tuple[bytes, ...] = ()
    """What a file may hold; of an entry, nothing."""

    @property
    def outcomes(self) -> int:
        """How many there are; the first is what was synced, the last what was meant."""
        return len(self.contents) or 2


class Disk:
    """The model; begins with what lies below a folder, all of it durable."""

    def __init__(self, root: Path, *, without: str = "") -> None:
        """`without` is the name of a folder directly below that nobody writes to."""
        self._root = str(root)
        self._without = without
        self._nodes: list[_File | _Folder] = []
        self._top = self._take(root)
        self._handles: dict[int, int] = {}

    def _take(self, path: Path) -> int:
        number = len(self._nodes)
        if not path.is_dir():
            data = path.read_bytes()
            self._nodes.append(_File(data, data))
            return number
        folder = _Folder()
        self._nodes.append(folder)
        for item in sorted(path.iterdir()):
            if item.name != self._without:
                folder.durable[item.name] = self._take(item)
        folder.live = dict(folder.durable)
        return number

    def apply(self, effect: Effect) -> None:
        """One call that succeeded."""
        # The probe's files are written in other ways, and are nobody's data.
        if "/.probe-" in effect.path:
            return
        getattr(self, f"_{effect.name}")(effect)

    def _place(self, path: str) -> tuple[_Folder, str]:
        """The folder and the name of a path."""
        steps = os.path.relpath(path, self._root).split("/")
        current = self._top
        for step in steps[:-1]:
            current = self._folder(current).live[step]
        return self._folder(current), steps[-1]

    def _folder(self, number: int) -> _Folder:
        node = self._nodes[number]
        assert isinstance(node, _Folder)
        return node

    def _find(self, path: str) -> int:
        if os.path.relpath(path, self._root) == ".":
            return self._top
        folder, name = self._place(path)
        return folder.live[name]

    def _new(self, node: _File | _Folder) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _open(self, effect: Effect) -> None:
        folder, name = self._place(effect.path)
        if name not in folder.live:
            folder.note({name: self._new(_File())})
        self._handles[effect.handle] = folder.live[name]

    def _write(self, effect: Effect) -> None:
        if effect.handle not in self._handles:
            # Its opening made no entry: a file without a name.
            self._handles[effect.handle] = self._new(_File())
        node = self._nodes[self._handles[effect.handle]]
        assert isinstance(node, _File)
        node.live += effect.data

    def _fsync(self, effect: Effect) -> None:
        number = self._handles.get(effect.handle)
        node = self._nodes[self._find(effect.path) if number is None else number]
        if isinstance(node, _File):
            node.durable = node.live
        else:
            node.durable = dict(node.live)
            node.pending.clear()

    def _rename(self, effect: Effect) -> None:
        folder, name = self._place(effect.path)
        target, new = self._place(effect.target)
        number = folder.live[name]
        if folder is target:
            folder.note({name: None, new: number})
        else:
            target.note({new: number})
            folder.note({name: None})

    def _link(self, effect: Effect) -> None:
        number = self._handles.get(effect.handle)
        target, new = self._place(effect.target)
        target.note({new: self._find(effect.path) if number is None else number})

    def _mkdir(self, effect: Effect) -> None:
        folder, name = self._place(effect.path)
        folder.note({name: self._new(_Folder())})

    def _unlink(self, effect: Effect) -> None:
        folder, name = self._place(effect.path)
        folder.note({name: None})

    _rmdir = _unlink

    def units(self) -> list[Unit]:
        """All that is not certain now."""
        found = []
        for number, node in enumerate(self._nodes):
            if isinstance(node, _Folder):
                found += [Unit(number, at) for at in range(len(node.pending))]
            elif node.live is not node.durable and len(contents := node.outcomes()) > 1:
                found.append(Unit(number, contents=contents))
        return found

    def tree(self, units: Sequence[Unit], choice: Choice) -> Tree:
        """What is found after the power is back, if these outcomes came to be."""
        folders: dict[int, dict[str, int]] = {}
        files: dict[int, bytes] = {}
        for unit, chosen in zip(units, choice, strict=True):
            node = self._nodes[unit.node]
            if isinstance(node, _File):
                files[unit.node] = unit.contents[chosen]
            elif chosen:
                table = folders.setdefault(unit.node, dict(node.durable))
                _change(table, node.pending[unit.position])
        found: Tree = {}
        self._walk(self._top, "", folders, files, found)
        return found

    def _walk(
        self,
        number: int,
        path: str,
        folders: dict[int, dict[str, int]],
        files: dict[int, bytes],
        found: Tree,
    ) -> None:
        node = self._nodes[number]
        if isinstance(node, _File):
            found[path] = files.get(number, node.live)
            return
        if path:
            found[path] = None
        for name, child in folders.get(number, node.durable).items():
            below = f"{path}/{name}" if path else name
            # Both names of a folder that is being renamed may be there; it is one folder, and
            # the check reads either way.
            self._walk(child, below, folders, files, found)


def _change(table: dict[str, int], change: dict[str, int | None]) -> None:
    for name, number in change.items():
        if number is None:
            table.pop(name, None)
        else:
            table[name] = number


def choices(units: Sequence[Unit], bound: int, chance: random.Random) -> Iterator[Choice]:
    """Outcomes of what is not certain: all of them where they are at most `bound`.

    Where they are more: none of it and all of it, each single one against the others, and then
    random ones, `bound` in all.
    """
    total = 1
    for unit in units:
        total *= unit.outcomes
        if total > bound:
            break
    if total <= bound:
        yield from itertools.product(*(range(unit.outcomes) for unit in units))
        return
    yield from itertools.islice(_beyond(units, chance), bound)


def _beyond(units: Sequence[Unit], chance: random.Random) -> Iterator[Choice]:
    none: Choice = (0,) * len(units)
    every = tuple(unit.outcomes - 1 for unit in units)
    yield none
    yield every
    for at, unit in enumerate(units):
        for outcome in range(unit.outcomes):
            for rest in (every, none):
                if rest[at] != outcome:
                    yield (*rest[:at], outcome, *rest[at + 1 :])
    while True:
        share = chance.choice((0.05, 0.2, 0.5, 0.8, 0.95))
        yield tuple(
            unit.outcomes - 1 if chance.random() < share else chance.randrange(unit.outcomes)
            for unit in units
        )


class Marks:
    """Marks of trees: the same for equal ones only. Each content is hashed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def of(self, tree: Tree) -> bytes:
        """The mark of one tree."""
        running = hashlib.sha256(usedforsecurity=False)
        for path in sorted(tree):
            data = tree[path]
            running.update(path.encode() + b"\0")
            if data is not None:
                if data not in self._known:
                    self._known[data] = hashlib.sha256(data, usedforsecurity=False).digest()
                running.update(self._known[data])
        return running.digest()


def materialise(tree: Tree, world: Path) -> None:
    """Make these files and folders below a new folder."""
    world.mkdir()
    for path, data in tree.items():
        if data is None:
            os.mkdir(world / path)
        else:
            (world / path).write_bytes(data)
