"""Ctrl-C while a server answers nothing: the command ends, whatever waits for the server."""

from collections.abc import Callable

import pytest

SCRIPT = """
import sys, threading
import snapfmt.storage.urls
from snapfmt import Repository
from snapfmt.cli import main
from snapfmt.storage.memory import MemoryClient
from snapfmt.storage.objects import ObjectStore
from snapfmt.storage.urls import open_store

# Which request is answered how often before nothing is.
verb, answered, *arguments = sys.argv[1:]
free = threading.Semaphore(int(answered))
stuck = False

def stick(*_, **__):
    sys.stderr.write("stuck\\n")
    sys.stderr.flush()
    threading.Event().wait()

class Stuck(MemoryClient):
    def __getattribute__(self, name):
        if stuck and name == verb and not free.acquire(blocking=False):
            return stick
        return super().__getattribute__(name)

store = ObjectStore(Stuck())

def open_it(location, **options):
    return store if str(location).startswith("s3://") else open_store(location, **options)

def save(number):
    attempt = repository.begin()
    parts = []
    for name in "abc":
        with attempt.part(name) as part:
            for entry in range(3):
                part.stage(f"{entry}", f"{name} {entry} {number}".encode())
            with part.table("t") as table:
                table.append([f"{number}"], {"v": [[number]]})
            parts.append(part.seal())
    attempt.publish(parts)

snapfmt.storage.urls.open_store = open_it
repository = Repository.open("s3://bucket/run", create=True)
for number in range(4):
    save(number)
abandoned = repository.begin()
for name in "de":
    with abandoned.part(name) as part:
        part.stage("x", name.encode() * 100)
        part.seal()
stuck = True
if arguments == ["save"]:
    try:
        save(9)
    except KeyboardInterrupt:
        sys.stderr.write("snapfmt: interrupted\\n")
        sys.exit(130)
    sys.exit(0)
sys.exit(main([arguments[0], "s3://bucket/run", *arguments[1:]]))
"""


@pytest.mark.parametrize(
    "stuck",
    [
        "get 0 ls",
        "get 3 verify",
        "head 0 verify",
        "head 3 verify --shallow",
        "get 1 show latest",
        "get 5 rows latest t",
        "head 1 gc",
        "list 3 gc",
        "delete 0 gc",
        "delete 1 gc",
        "head 0 retain --keep-latest 1",
        "put 1 retain --keep-latest 1",
        "delete 0 retain --keep-latest 1",
        "delete 3 retain --keep-latest 1",
        "get 0 save",
        "head 1 save",
        "list 1 save",
        "put 0 save",
        "put 5 save",
        "delete 0 save",
    ],
)
def test_an_interrupt_while_nothing_is_answered(
    interrupt_stuck: Callable[..., None], stuck: str
) -> None:
    interrupt_stuck(SCRIPT, *stuck.split())
