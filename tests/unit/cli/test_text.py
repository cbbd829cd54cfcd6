"""Numbers, times and foreign text for people."""

import pytest

from snapfmt.cli import text
from snapfmt.cli.output import Fields, Table, document, plain_lines, strict


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB")],
)
def test_sizes(count: int, shown: str) -> None:
    assert text.size(count) == shown


def test_a_size_beyond_every_unit() -> None:
    assert text.size(1 << 70) == "1048576.0 PiB"


def test_times() -> None:
    assert text.moment(0) == "1970-01-01T00:00:00Z"
    assert text.moment(1_700_000_000_999_999_999) == "2023-11-14T22:13:20Z"
    assert text.moment(10**40) == f"{10**40} ns"
    assert text.age(-5) == "0 s"
    assert text.age(3 * 3600 * 10**9 + 1) == "3 h"
    assert text.duration(12_500_000) == "12.5 ms"
    assert text.duration(2_000_000_000) == "2.00 s"


def test_ratio_of_nothing() -> None:
    assert text.ratio(0, 0) == "-"
    assert text.ratio(10, 4) == "2.50x"


@pytest.mark.parametrize("odd", ["\x1b[2J", "a\nb", "\r", "\u202e", "\x9b", "\ud800", "\u2028"])
def test_nothing_reaches_the_terminal_that_it_would_obey(odd: str) -> None:
    shown = text.clean(f"x{odd}y")
    assert shown.isprintable()
    assert shown.startswith("x")
    assert shown.endswith("y")


def test_plain_text_is_left_alone() -> None:
    assert text.clean("größe 文 x") == "größe 文 x"


def test_nested_json_becomes_paths() -> None:
    value = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": None}, []], "f": {}, "g": "x"}
    assert text.flat(value) == [
        ("a.b", "1"),
        ("a.c", "[1, 2]"),
        ("d[0].e", "null"),
        ("d[1]", "[]"),
        ("f", "{}"),
        ("g", "x"),
    ]


def test_columns_line_up() -> None:
    table = Table(["name", "rows"], [["a", "5"], ["longer", "12345"]], frozenset({"rows"}))
    assert plain_lines(table) == ["NAME     ROWS", "a           5", "longer  12345"]
    assert plain_lines(Fields([("a", "1"), ("long", "2")])) == ["  a     1", "  long  2"]


def test_json_is_strict_ascii() -> None:
    nan = float("nan")
    assert strict({"a": (nan, [float("-inf")]), 1: "x"}) == {"a": ["NaN", ["-Infinity"]], "1": "x"}
    assert document({"a": "\u202e\ud800"}) == b'{\n  "a": "\\u202e\\ud800"\n}\n'
