"""Several processes: tickets, pauses and the dead. Kills and races: test_soak.py."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from snapfmt import Repository
from snapfmt.errors import CommitConflict, InputError, LeaseExpired
from snapfmt.testing.samples import everything, save
from snapfmt_schemas.attempt import Receipt, Ticket

Spawn = Callable[..., "subprocess.Popen[str]"]

WRITE_A_PART = """
import sys
from snapfmt import Repository
part = Repository.join(sys.stdin.read())
part.stage("pid", b"hello from elsewhere")
with part.table("t") as table:
    table.append([f"{part.name}/a", f"{part.name}/b"], {"x": [1, 2]})
print(part.seal().model_dump_json())
"""


def test_another_process_writes_a_part_from_its_ticket_alone(
    repository: Repository, spawn: Spawn
) -> None:
    attempt = repository.begin()
    children = [spawn(WRITE_A_PART) for _ in range(3)]
    receipts = []
    for number, child in enumerate(children):
        out, err = child.communicate(attempt.ticket(f"part{number}").model_dump_json(), timeout=300)
        assert child.returncode == 0, err
        receipts.append(Receipt.model_validate_json(out))
    attempt.publish(receipts)
    snapshot = repository.snapshot()
    assert snapshot.part_names() == ["part0", "part1", "part2"]
    assert snapshot.part("part1").read("pid") == b"hello from elsewhere"
    assert snapshot.table("t").row("part2/b") == {"x": 2}
    assert repository.verify().findings == []


def test_what_is_no_ticket_or_another_ones_is_refused(
    repository: Repository, tmp_path: Path
) -> None:
    attempt = repository.begin()
    ticket = attempt.ticket("p")
    for text in ("", "{}", "null", "[]", b"\xff", ticket.model_dump_json()[:-1], "{" * 10_000):
        with pytest.raises(InputError):
            Repository.join(text)
    other = Repository.create(tmp_path / "other")
    with pytest.raises(InputError, match="another repository"):
        Repository.join(ticket.model_copy(update={"location": other.location}))
    with pytest.raises(LeaseExpired):
        Repository.join(ticket.model_copy(update={"attempt_id": "0" * 32}))
    assert Repository.join(ticket.model_dump_json().encode()).name == "p"
    assert Ticket.model_validate_json(ticket.model_dump_json()) == ticket
    attempt.abandon()
    with pytest.raises(LeaseExpired):
        Repository.join(ticket)


PAUSED = """
import sys
from snapfmt import Repository
from snapfmt.errors import SnapfmtError
repository = Repository.open(sys.argv[1])
attempt = repository.begin(lease_seconds=300)
part = attempt.part("p")
part.stage("x", b"from the paused one")
receipt = part.seal()
late = attempt.part("late")
late.stage("y", b"1" * 100_000)
attempt.renew(float(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
for name, call in {"seal": late.seal, "publish": lambda: attempt.publish([receipt])}.items():
    try:
        call()
        print(name, "done", flush=True)
    except SnapfmtError as error:
        print(name, type(error).__name__, flush=True)
"""


def test_a_process_that_sleeps_past_its_lease_publishes_nothing(
    repository: Repository, spawn: Spawn
) -> None:
    child = spawn(PAUSED, repository.location, "0.3")
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline().strip() == "ready"
    child.send_signal(signal.SIGSTOP)
    (lease,) = repository.leases()
    while time.time_ns() <= lease.expires_at_ns:
        time.sleep(0.01)
    save(repository, value=7)
    before = everything(repository)
    child.send_signal(signal.SIGCONT)
    out, err = child.communicate("go\n", timeout=300)
    assert child.returncode == 0, err
    assert out.splitlines() == ["seal LeaseExpired", "publish LeaseExpired"]
    assert everything(repository) == before
    assert repository.verify().findings == []


def test_a_living_process_keeps_its_attempt(repository: Repository, spawn: Spawn) -> None:
    child = spawn(PAUSED, repository.location, "300")
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    child.send_signal(signal.SIGSTOP)
    for value in range(3):
        # The stopped one wanted number 1; these take 1, 2 and 3.
        save(repository, value=value)
    assert len(repository.leases()) == 1
    child.send_signal(signal.SIGCONT)
    out, err = child.communicate("go\n", timeout=300)
    assert child.returncode == 0, err
    assert out.splitlines() == ["seal done", "publish CommitConflict"]
    assert repository.numbers() == [1, 2, 3]
    assert save(repository).number == 4
    assert repository.verify().findings == []


def test_a_zombie_counts_as_dead(repository: Repository, spawn: Spawn) -> None:
    child = spawn(PAUSED, repository.location, "300")
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    os.kill(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while "Z" not in Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(repository.clean_up()) == 1
    assert repository.leases() == []


def test_threads_of_one_process_race_as_well(repository: Repository) -> None:
    barrier = Barrier(8)

    def run(who: int) -> str:
        attempt = repository.begin(number=1)
        part = attempt.part("p", workers=1)
        part.stage("who", str(who).encode())
        receipt = part.seal()
        barrier.wait()
        try:
            attempt.publish([receipt])
        except CommitConflict:
            attempt.abandon()
            return "lost"
        return "won"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(run, range(8)))
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]
    winner = outcomes.index("won")
    assert repository.snapshot().part("p").read("who") == str(winner).encode()
    assert repository.verify().findings == []
