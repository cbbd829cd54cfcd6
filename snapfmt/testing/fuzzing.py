"""Runs parsers on hostile bytes, and judges what they did.

A target takes bytes. It may refuse them with a typed error, or read them; then what it read is
written and read again. Whatever else happens is a finding: another error, another value, much
memory or time, and anything that reaches outside of its folder or runs code. The engine that
makes the bytes does not matter here: `random_inputs` makes them without any feedback, and
`tests/faults/fuzz.py` lets a coverage-guided one make them.
"""

import base64
import contextlib
import os
import random
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from snapfmt.errors import SnapfmtError
from snapfmt.limits import KIB, MIB, Limits
from snapfmt.testing.hostile import ODD_BYTES, changed_json

LIMITS: Final = Limits(
    manifest_size=64 * KIB,
    part_index_size=64 * KIB,
    lease_size=8 * KIB,
    parts=64,
    entries=256,
    tables=64,
    segments=256,
    columns=64,
    entry_size=MIB,
    frame_content=MIB,
    frame_window_log=20,
    batch_rows=64 * KIB,
    chunk_size=MIB,
    expansion=1000,
)
"""Small ones, so that a bound that is not kept shows at once."""
MEMORY: Final = 64 * MIB
"""More than this for one input is a finding; all buffers of an input that is read fit in it."""
ADDRESSES: Final = 1024 * MIB
"""Room for one process beyond what it begins with; what asks for more fails."""
SECONDS: Final = 2.0
"""More processor time than this for one input is a finding."""
LONGEST: Final = 8 * KIB
"""Bytes of an input, unless its target says otherwise."""
_OF_OWNERS: Final = re.compile(r"/proc/(sys/kernel/random/boot_id|[0-9]{1,12}/stat)")
"""Whether the owner of a lease lives is looked up there, for any process id in it."""
_KEPT: Final = 20
_REST: Final = 256
"""Inputs after which the process's own mark of its highest memory is set back."""


class Wrong(AssertionError):
    """What was read is not what is written, or an answer breaks its protocol."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What targets stand on."""

    folder: Path
    """Empty at first, and the only one that they may touch."""
    vectors: Path
    """The conformance vectors, which the seeds come from."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A target that is ready to run."""

    run: Callable[[bytes], object]
    seeds: Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser."""

    name: str
    prepare: Callable[[Ground], Prepared]
    cost: float = 1
    """It gets so many times fewer inputs than a small parser."""
    json: bool = False
    """Whether inputs are JSON, and are also changed as such."""
    only_json: bool = False
    """Whether they are changed as such alone: what is not JSON would end at once."""
    longest: int = LONGEST


@dataclass(slots=True)
class Tally:
    """What came of the inputs of one target."""

    target: str
    runs: int = 0
    read: int = 0
    refused: int = 0
    untyped: int = 0
    """Inputs with a finding of any kind."""
    memory: int = 0
    """Most bytes that one input took."""
    slowest: float = 0.0
    """Most seconds of processor time that one input took."""
    seconds: float = 0.0
    findings: dict[str, str] = field(default_factory=dict)
    """Where and what -> the first input, in base64."""

    def note(self, what: str, data: bytes) -> None:
        """A finding."""
        self.untyped += 1
        if len(self.findings) < _KEPT:
            self.findings.setdefault(what, base64.b64encode(data).decode("ascii"))


class Watch:
    """Sees what the code under test asks of the interpreter, while it is `armed`.

    An audit hook stays until the process ends, so a process makes one, and ends soon.
    """

    _HARMLESS = frozenset(
        {
            "_thread.start_new_thread", "_thread.start_joinable_thread", "builtins.id",
            "sys._getframe", "object.__getattr__", "object.__setattr__", "object.__delattr__",
            "sys.excepthook", "gc.get_objects", "socket.gethostname",
            "sys.set_asyncgen_hook_finalizer", "sys.set_asyncgen_hook_firstiter",
        }
    )  # fmt: skip
    _OF_FILES = frozenset(
        {
            "open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
            "os.link", "os.symlink", "os.truncate", "os.utime", "os.chmod", "os.chown",
            "os.getxattr", "os.setxattr", "os.listxattr", "fcntl.flock", "fcntl.fcntl",
            "fcntl.lockf", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp",
            "pathlib.Path.rglob", "pathlib.Path.glob", "os.walk", "os.fwalk",
        }
    )  # fmt: skip

    def __init__(self, *folders: Path) -> None:
        self._folders = [str(folder.resolve()) for folder in folders]
        self.armed = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed or event in self._HARMLESS:
            return
        if event == "os.kill" and arguments[1] == 0:
            return  # sends nothing: it asks whether there is such a process
        if event in self._OF_FILES and not any(map(self._outside, arguments[:2])):
            return
        self.seen.append(f"{event}{str(arguments)[:200]}")
        raise PermissionError(f"not allowed while hostile bytes are read: {event}")

    def _outside(self, argument: object) -> bool:
        """Whether it is a path that leads out of the folders.

        A single name is one below a folder that is open, or below the working folder, which is
        empty. The folders above may be opened on the way down.
        """
        if isinstance(argument, bytes | os.PathLike):
            argument = os.fsdecode(argument)
        if not isinstance(argument, str):
            return False
        if not argument.startswith("/"):
            return argument == ".." or "/" in argument
        if _OF_OWNERS.fullmatch(argument):
            return False
        path = os.path.realpath(argument)
        above = path.rstrip("/") + "/"
        return not any(
            path == folder or path.startswith(f"{folder}/") or folder.startswith(above)
            for folder in self._folders
        )


class Judge:
    """Runs inputs of one target."""

    def __init__(self, target: Target, prepared: Prepared, watch: Watch) -> None:
        self.tally = Tally(target.name)
        self._run = prepared.run
        self._watch = watch
        self._pool = pa.default_memory_pool()
        self._peak = _Peak()
        # What a first run imports and caches is none of the input's doing. JSON readers guess
        # the encoding of bytes; pyarrow looks for pandas at the first array, and the first list.
        pa.array(np.zeros(1))
        pa.array([0])
        for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
            "".encode(name)
        for seed in prepared.seeds:
            with contextlib.suppress(Exception):
                self._run(seed)

    def judge(self, data: bytes) -> None:
        """One input."""
        tally, watch = self.tally, self._watch
        if tally.runs % _REST == 0:
            self._peak.forget()
        tally.runs += 1
        pool, began = self._pool.max_memory(), time.process_time()
        watch.armed = True
        try:
            self._run(data)
        except SnapfmtError as error:
            watch.armed = False
            tally.refused += 1
            if _ran_out(error):
                tally.note(f"MemoryError behind {error.code} at {_place(error)}", data)
        except Exception as error:  # noqa: BLE001 - an error without a type is what is looked for
            watch.armed = False
            tally.note(f"{type(error).__name__}: {str(error)[:200]} at {_place(error)}", data)
        else:
            watch.armed = False
            tally.read += 1
        spent = time.process_time() - began
        grown = max(self._peak.grown(), self._pool.max_memory() - pool)
        tally.memory, tally.slowest = max(tally.memory, grown), max(tally.slowest, spent)
        if grown > MEMORY:
            tally.note(f"{grown // MIB} MiB of memory", data)
        if spent > SECONDS:
            tally.note(f"{spent:.1f} s of processor time", data)
        for event in watch.seen:
            tally.note(f"reached out: {event}", data)
        watch.seen.clear()


def bound_addresses() -> None:
    """Let no allocation of this process succeed that is far larger than any limit."""
    text = Path("/proc/self/statm").read_text("ascii")
    now = int(text.split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESSES, now + ADDRESSES))


def random_inputs(target: Target, seeds: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Seeds, then changes of them; the same for the same number."""
    rng = random.Random(f"{target.name} {seed}")  # noqa: S311 - it must come again
    plain = list(seeds)
    if len(plain) > count // 4:
        plain = rng.sample(plain, count // 4)
    yield from plain
    for _ in range(count - len(plain)):
        data = rng.choice(seeds)
        if target.only_json or (target.json and rng.random() < 0.5):
            yield changed_json(data, rng)[: target.longest]
        else:
            yield changed_bytes(data, rng, seeds)[: target.longest]


def changed_bytes(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A few random changes of bytes."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        # Lengths and counts lie at the beginning.
        at = rng.randrange(min(len(made), rng.choice((32, len(made)))) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 8, 16, 64))
        action = rng.randrange(8)
        if action == 0 and made:
            made[at % len(made)] ^= 1 << rng.randrange(8)
        elif action == 1 and made:
            made[at % len(made)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif action == 2:
            del made[at : at + size]
        elif action == 3:
            made[at:at] = rng.randbytes(size)
        elif action == 4:
            made[at:at] = made[at : at + size]
        elif action == 5:
            odd = rng.choice(ODD_BYTES)
            made[at : at + len(odd)] = odd
        elif action == 6 and others:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            made[at : at + size] = other[begin : begin + size]
        else:
            del made[at:]
    return bytes(made)


def _ran_out(error: BaseException) -> bool:
    """Whether an allocation failed behind a typed error: a bound was checked too late."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _place(error: BaseException) -> str:
    """Last place in this library, else the last of all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        item for item in frames if "snapfmt" in item.filename and "/testing/" not in item.filename
    ]
    for last in reversed(ours or frames):
        return f"{Path(last.filename).name}:{last.lineno}"
    return "?"


class _Peak:
    """The most memory that this process had, as the kernel counts it.

    Not from getrusage, which begins with the peak of the process that started this one.
    """

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._forget = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        self.last = self._read()

    def grown(self) -> int:
        """Bytes by which it grew since the last call, or since `forget`."""
        before, self.last = self.last, self._read()
        return self.last - before

    def forget(self) -> None:
        """Begin again from what is in use now."""
        os.write(self._forget, b"5")
        self.last = self._read()

    def _read(self) -> int:
        text = os.pread(self._status, 4096, 0)
        return int(text.partition(b"VmHWM:")[2].split(maxsplit=1)[0]) * KIB
