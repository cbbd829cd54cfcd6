"""What a command returns, and the one place that prints it: as text or as `--json`.

stdout carries the result, stderr the messages. Away from a terminal the text is plain, aligned
and the same on every run; on one, rich draws the tables if it is installed.
"""

import contextlib
import io
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any, TextIO

from snapfmt.cli.exitcodes import ExitCode
from snapfmt.cli.text import clean

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Heading:
    """A line above the blocks that follow it."""

    text: str


@dataclass(frozen=True, slots=True)
class Fields:
    """Names and values, one pair a line."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names; the columns in `right` hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that are ready."""

    lines: Sequence[str]


Block = Heading | Fields | Table | Lines


@dataclass(frozen=True, slots=True)
class Result:
    """A finished answer: one JSON document, and the same as blocks of text."""

    document: dict[str, Any]
    text: Sequence[Block] = ()
    code: ExitCode = ExitCode.OK
    messages: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is written while it is read: bytes for stdout as they are."""

    pieces: Iterator[bytes]
    messages: Sequence[str] = ()
    code: ExitCode = field(default=ExitCode.OK, init=False)


Outcome = Result | Stream


class Console:
    """stdout and stderr of one run of the command."""

    def __init__(self, *, as_json: bool, debug: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        self.now_ns = time.time_ns()

    @cached_property
    def terminal(self) -> bool:
        """Whether a person looks at the result."""
        return not self.as_json and is_terminal(sys.stdout)

    def emit(self, outcome: Outcome) -> ExitCode:
        """Print an answer; a reader that went away has had enough, which is no failure."""
        try:
            if isinstance(outcome, Stream):
                for piece in outcome.pieces:
                    self._write(piece)
            elif self.as_json:
                self._write(document(outcome.document))
            else:
                self._blocks(outcome.text)
            self._flush()
        except BrokenPipeError:
            drop_stdout()
        for text in outcome.messages:
            self.message(text)
        return outcome.code

    def message(self, text: str) -> None:
        """One line on stderr."""
        _to_stderr(f"snapfmt: {clean(text)}\n")

    def failed(
        self, code: str, text: str, *, message: str = "", what: str = "", hint: str = ""
    ) -> None:
        """An error: one line on stderr and, with `--json`, an object on stdout."""
        if self.debug and sys.exc_info()[0] is not None:
            _to_stderr(traceback.format_exc())
        if self.as_json:
            error = {"code": code, "message": message or text, "what": what, "hint": hint}
            try:
                # One line: it may come after JSON lines, and is a document all the same.
                self._write(json_line({"ok": False, "error": error}))
                self._flush()
            except OSError:
                drop_stdout()
        self.message(f"{code}: {text}")

    def line(self, text: str) -> None:
        """One line of a story that is told while it happens: on stdout, beside JSON on stderr."""
        if self.as_json:
            _to_stderr(f"{clean(text)}\n")
            return
        # What a demonstration prints may be a table of its own: line ends stay.
        shown = "\n".join(clean(part) for part in text.split("\n"))
        self._write(f"{shown}\n".encode("utf-8", "backslashreplace"))
        self._flush()

    def _blocks(self, blocks: Sequence[Block]) -> None:
        if self.terminal and find_spec("rich") is not None:
            self._flush()
            _draw(blocks)
            return
        for number, block in enumerate(blocks):
            if number and not isinstance(blocks[number - 1], Heading):
                self._write(b"\n")
            text = "".join(f"{line}\n" for line in plain_lines(block))
            self._write(text.encode("utf-8", "backslashreplace"))

    def _write(self, data: bytes) -> None:
        stream = sys.stdout
        if stream is None:
            return
        buffer = getattr(stream, "buffer", None)
        if buffer is None:
            stream.write(data.decode("utf-8", "backslashreplace"))
            return
        # Small pieces, so that an interrupt is heard between them.
        for start in range(0, len(data), _PIECE):
            buffer.write(data[start : start + _PIECE])

    def _flush(self) -> None:
        if sys.stdout is not None:
            sys.stdout.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream ends at a terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def drop_stdout() -> None:
    """Send what stdout still holds nowhere, so that the interpreter's last flush is quiet."""
    with contextlib.suppress(AttributeError, OSError, ValueError, io.UnsupportedOperation):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(descriptor, sys.stdout.fileno())
        finally:
            os.close(descriptor)


def document(value: dict[str, Any]) -> bytes:
    """One JSON document, indented."""
    return json.dumps(strict(value), indent=2, allow_nan=False).encode("ascii") + b"\n"


def json_line(value: dict[str, Any]) -> bytes:
    """One JSON line."""
    text = json.dumps(strict(value), separators=(",", ":"), allow_nan=False)
    return text.encode("ascii") + b"\n"


def strict(value: Any) -> Any:
    """The value with what JSON cannot say replaced: a non-finite number by its name."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def plain_lines(block: Block) -> list[str]:
    """A block as aligned text."""
    if isinstance(block, Heading):
        return [clean(block.text)]
    if isinstance(block, Lines):
        return [clean(line) for line in block.lines]
    if isinstance(block, Fields):
        width = max((len(clean(name)) for name, _ in block.pairs), default=0)
        return [f"  {clean(name):<{width}}  {clean(value)}".rstrip() for name, value in block.pairs]
    rows = [[name.upper() for name in block.columns]]
    rows += [[clean(cell) for cell in row] for row in block.rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(block.columns))]
    return [
        "  ".join(
            f"{cell:>{width}}" if name in block.right else f"{cell:<{width}}"
            for cell, width, name in zip(row, widths, block.columns, strict=True)
        ).rstrip()
        for row in rows
    ]


def _draw(blocks: Sequence[Block]) -> None:
    """The blocks on a terminal. Cells are Text: stored names are never read as markup."""
    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table as RichTable
    from rich.text import Text

    console = RichConsole(file=sys.stdout, highlight=False, markup=False, emoji=False)
    bold = "" if os.environ.get("NO_COLOR") else "bold"
    for number, block in enumerate(blocks):
        if number and not isinstance(blocks[number - 1], Heading):
            console.print()
        if isinstance(block, Table):
            table = RichTable(
                box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style=bold
            )
            for name in block.columns:
                table.add_column(
                    name, justify="right" if name in block.right else "left", overflow="fold"
                )
            for row in block.rows:
                table.add_row(*(Text(clean(cell)) for cell in row))
            console.print(table)
        else:
            style = bold if isinstance(block, Heading) else ""
            for line in plain_lines(block):
                console.print(Text(line, style=style), soft_wrap=True)


def _to_stderr(text: str) -> None:
    # A message that nobody can read must not turn a result into a failure.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        try:
            sys.stderr.write(text)
        except UnicodeEncodeError:
            sys.stderr.write(text.encode("ascii", "backslashreplace").decode("ascii"))
        sys.stderr.flush()
