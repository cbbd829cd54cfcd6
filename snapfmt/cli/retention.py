"""`snapfmt retain`, `pin`, `unpin` and `pins`: which snapshots stay."""

import argparse
from dataclasses import dataclass

from snapfmt.cli.command import (
    Command,
    Reference,
    add_repository,
    add_snapshot,
    open_repository,
    open_snapshot,
)
from snapfmt.cli.output import Block, Console, Fields, Lines, Outcome, Result, Table


@dataclass(frozen=True, slots=True)
class RetainOptions:
    """Options of `snapfmt retain`."""

    repository: str
    keep_latest: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class PinOptions:
    """Options of `snapfmt pin`."""

    repository: str
    snapshot: Reference
    name: str


@dataclass(frozen=True, slots=True)
class UnpinOptions:
    """Options of `snapfmt unpin`."""

    repository: str
    name: str


@dataclass(frozen=True, slots=True)
class PinsOptions:
    """Options of `snapfmt pins`."""

    repository: str


def _configure_retain(parser: argparse.ArgumentParser) -> None:
    add_repository(parser)
    parser.add_argument(
        "--keep-latest",
        metavar="N",
        type=_count,
        required=True,
        help="retire all but the newest N that are whole, what is pinned, and bases of saves",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="write nothing, and tell what would be retired"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of snapshots; at least 1 stays")
    return int(text)


def _configure_pin(parser: argparse.ArgumentParser) -> None:
    add_repository(parser)
    add_snapshot(parser, optional=False)
    _add_name(parser)


def _configure_unpin(parser: argparse.ArgumentParser) -> None:
    add_repository(parser)
    _add_name(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the pin: letters, digits, ._@%%+=-")


def _retain(options: RetainOptions, console: Console) -> Outcome:
    del console
    repository = open_repository(options.repository)
    if options.dry_run:
        gone = repository.surplus(options.keep_latest)
        stay = [number for number in repository.numbers() if number not in gone]
    else:
        gone = repository.keep_latest(options.keep_latest)
        stay = repository.numbers()
    went = "would be retired" if options.dry_run else "retired"
    pairs = [(went, _listed(gone)), ("published", _listed(stay))]
    document = {"ok": True, "dry_run": options.dry_run, "retired": gone, "published": stay}
    return Result(document, [Fields(pairs)])


def _listed(numbers: list[int]) -> str:
    return " ".join(map(str, numbers)) or "none"


def _pin(options: PinOptions, console: Console) -> Outcome:
    del console
    repository = open_repository(options.repository)
    wanted = options.snapshot
    number = wanted if isinstance(wanted, int) else open_snapshot(repository, wanted).number
    repository.pin(options.name, number)
    document = {"ok": True, "name": options.name, "number": number}
    return Result(document, [Lines([f"{options.name} pins snapshot {number}"])])


def _unpin(options: UnpinOptions, console: Console) -> Outcome:
    del console
    open_repository(options.repository).unpin(options.name)
    return Result({"ok": True, "name": options.name}, [Lines([f"{options.name} is gone"])])


def _pins(options: PinsOptions, console: Console) -> Outcome:
    del console
    found = open_repository(options.repository).pins()
    document = {
        "ok": True,
        "pins": [{"name": name, "number": number} for name, number in found.items()],
    }
    rows = [[name, str(number)] for name, number in found.items()]
    blocks: list[Block] = [Table(["name", "number"], rows, frozenset({"number"}))]
    return Result(document, blocks if found else [Lines(["no pins"])])


RETAIN = Command(
    "retain", "retire all but the newest snapshots", RetainOptions, _configure_retain, _retain
)
PIN = Command("pin", "keep a snapshot from being retired", PinOptions, _configure_pin, _pin)
UNPIN = Command("unpin", "remove a pin", UnpinOptions, _configure_unpin, _unpin)
PINS = Command("pins", "pins, and what they keep", PinsOptions, add_repository, _pins)
