"""A sample of the hostile inputs, without coverage; more: `python tests/faults/fuzz.py`."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from snapfmt.errors import SnapfmtError
from snapfmt.testing import fuzz_s3
from snapfmt.testing.fuzzing import Ground, Prepared, Target, random_inputs
from snapfmt.testing.hostile import Choices

FUZZ = Path(__file__).with_name("fuzz.py")
SLOW = ("snapshot-", "retention", "zarr-array", "part:", "s3-answer")
"""These start many threads and files; test_hostile_snapshots.py and others make such inputs."""


def fuzz(*arguments: str) -> dict[str, Any]:
    """In a process of its own: its audit hook and its bounds stay with it."""
    done = subprocess.run(
        [sys.executable, str(FUZZ), "--engine", "random", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found["untyped"] else 0)
    return found


def test_every_parser_refuses_or_reads_a_sample() -> None:
    found = fuzz("--runs", "200", *(f"--without={name}" for name in SLOW))
    assert found["untyped"] == 0, found["each"]
    assert found["targets"] > 60
    lazy = [item["target"] for item in found["each"] if item["runs"] < 20]
    assert lazy == []
    # An input that is read shows that the seeds are what the parser takes.
    blind = {item["target"] for item in found["each"] if not item["read"]}
    assert blind <= {"refusal"}


PLANTED = """
import json, os, socket, sys, time
from pathlib import Path
from snapfmt.errors import FormatError, LimitExceeded
from snapfmt.testing import fuzzing

folder = Path(sys.argv[1])
fuzzing.SECONDS = 0.3
kept = []

def refuses(_):
    raise FormatError("x")

def lacks(_):
    try:
        bytearray(2**40)
    except MemoryError as error:
        raise LimitExceeded("too late") from error

def writes(_):
    open(folder.parent / "outside", "w").close()

def hides(_):
    try:
        writes(_)
    except OSError as error:
        raise FormatError("x") from error

deeds = {
    "reads": lambda data: None,
    "inside": lambda data: (folder / "x").write_bytes(data),
    "refuses": refuses,
    "untyped": lambda data: {}["x"],
    "allocates": lambda data: kept.append(b"x" * (100 << 20)),
    "lacks": lacks,
    "writes": writes,
    "hides": hides,
    "climbs": lambda data: os.open("..", os.O_RDONLY),
    "runs": lambda data: exec("1"),
    "imports": lambda data: __import__("this"),
    "starts": lambda data: os.system("true"),
    "connects": lambda data: socket.socket(),
    "spins": lambda data: [time.process_time() for _ in iter(lambda: time.process_time() < end, 0)],
}
watch = fuzzing.Watch(folder)
fuzzing.bound_addresses()
found = {}
for name, deed in deeds.items():
    judge = fuzzing.Judge(
        fuzzing.Target(name=name, prepare=None), fuzzing.Prepared(deed, ()), watch
    )
    end = time.process_time() + fuzzing.SECONDS + 0.2
    judge.judge(b"data")
    found[name] = [judge.tally.untyped, judge.tally.refused, list(judge.tally.findings)]
print(json.dumps(found))
"""


def test_any_status_of_a_bucket_is_typed(tmp_path: Path) -> None:
    """Also one that says nothing about what was asked, such as 416 to a listing."""
    (target,) = fuzz_s3.targets()
    ready = target.prepare(Ground(tmp_path, tmp_path))
    for call in range(6):
        for status in (304, 416, 505):
            with contextlib.suppress(SnapfmtError):
                ready.run(bytes([call]) + status.to_bytes(2, "little") + b"a: b\n\n")


@pytest.mark.parametrize("head", [b"", b"content-length: 9000000"])
def test_a_body_that_is_longer_than_asked_is_not_kept(head: bytes) -> None:
    server = fuzz_s3.Server()
    server.status, server.headers, server.body = 206, head, bytes(range(250)) * 36_000
    assert fuzz_s3.client_of(server).get("a", 0, 5) == server.body[:5]
    assert server.taken() < 2**18


def test_every_kind_of_misdeed_is_a_finding(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    fine = {name for name, (count, _, _) in found.items() if not count}
    assert fine == {"reads", "inside", "refuses"}, found
    assert found["refuses"][1] == 1
    assert "MiB of memory" in found["allocates"][2][0]
    assert "MemoryError behind" in found["lacks"][2][0]
    assert "processor time" in found["spins"][2][0]
    reached = ("writes", "hides", "climbs", "runs", "imports", "starts", "connects")
    for name in reached:
        assert any("reached out" in text for text in found[name][2]), found[name]
    assert not (tmp_path / "outside").exists()


def test_random_inputs_come_again_and_begin_with_the_seeds() -> None:
    target = Target(name="x", prepare=lambda _: Prepared(len, []), json=True, longest=40)
    seeds = [b'{"a":[1,2]}', b"abc"]
    first, again, other = (list(random_inputs(target, seeds, 300, n)) for n in (1, 1, 2))
    assert first == again != other
    assert first[:2] == seeds
    assert sum(data in seeds for data in random_inputs(target, seeds * 99, 40, 1)) < 20
    assert len(set(first)) > 100
    assert max(map(len, first)) <= 40


def test_choices_are_those_of_the_bytes() -> None:
    choose = Choices(bytes([3, 1, 2, 9]))
    assert choose.randrange(10) == 3
    assert choose.randrange(1000) == (1 + 2 * 256) % 1000
    assert choose.choice("abc") == "abc"[9 % 3]
    assert choose.randrange(7) == 0, "zeros when they are used up"
