"""Damage to the files of a repository, one at a time and undone afterwards."""

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tree:
    """Every regular file below a folder, as it was when this was taken."""

    root: Path
    files: dict[str, bytes]

    @classmethod
    def take(cls, root: Path) -> "Tree":
        """The files that are there now."""
        found = {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        return cls(root, found)

    def put_back(self) -> None:
        """Make the folder what it was, byte for byte."""
        for path in sorted(self.root.rglob("*"), reverse=True):
            name = str(path.relative_to(self.root))
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.rmdir()
            elif path.is_symlink() or not path.is_file() or name not in self.files:
                path.unlink()
        for name, data in self.files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)

    def put(self, files: Mapping[str, bytes | None]) -> None:
        """Give some files other bytes; None takes one away."""
        for name, data in files.items():
            path = self.root / name
            if data is None:
                path.unlink()
                # A folder that was made for it goes with it.
                if not any(other.startswith(name.rpartition("/")[0]) for other in self.files):
                    path.parent.rmdir()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    def mend(self, names: Iterable[str]) -> None:
        """Make these files what they were."""
        self.put({name: self.files.get(name) for name in names})

    @contextlib.contextmanager
    def damaged(self) -> Iterator[Path]:
        """The folder, to be damaged within the context and put back after it."""
        try:
            yield self.root
        finally:
            self.put_back()


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Invert one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(bytes(data))


def truncate(path: Path, size: int) -> None:
    """Cut a file to its first `size` bytes."""
    path.write_bytes(path.read_bytes()[:size])


def swap(first: Path, second: Path) -> None:
    """Exchange the contents of two files."""
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def copy(source: Path, target: Path) -> None:
    """Put a file's bytes under a second name as well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
