"""Progress on stderr, for people only: nothing is drawn unless stderr is a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from snapfmt.cli.output import is_terminal
from snapfmt.cli.text import clean, shorten, size

Advance = Callable[[int, str], None]
_EVERY = 0.2


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Advance | None]:
    """What to call with the bytes just handled and their name; None when nobody watches."""
    if not is_terminal(sys.stderr):
        yield None
    elif find_spec("rich") is not None:
        with _bar(label, total) as advance:
            yield advance
    else:
        with _counter(label, total) as advance:
            yield advance


@contextmanager
def _bar(label: str, total: int | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total, what="")

        def advance(count: int, what: str) -> None:
            bar.update(task, advance=count, what=shorten(clean(what), 40))

        yield advance


@contextmanager
def _counter(label: str, total: int | None) -> Iterator[Advance]:
    done, shown = 0, 0.0

    def advance(count: int, _: str) -> None:
        nonlocal done, shown
        done += count
        now = time.monotonic()
        if now - shown >= _EVERY:
            shown = now
            share = f" of about {size(total)}" if total else ""
            sys.stderr.write(f"\r{label} {size(done)}{share}\x1b[K")
            sys.stderr.flush()

    try:
        yield advance
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
