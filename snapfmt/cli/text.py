"""Numbers, times and foreign text in a form that people read."""

import json
from datetime import UTC, datetime
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
SHORT_DIGEST = 12
"""Hex digits of a digest that tell snapshots apart in a listing."""


def clean(text: str) -> str:
    """Text with everything escaped that a terminal would obey or hide.

    Names, keys and messages come from the stored bytes, so they are not ours to trust.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def shorten(text: str, width: int) -> str:
    """At most `width` characters, with `...` where the rest was."""
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."


def size(count: int) -> str:
    """Bytes with a binary unit: `1.5 MiB`."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def ratio(logical: int, stored: int) -> str:
    """How many times smaller the stored form is: `2.3x`."""
    return f"{logical / stored:.2f}x" if stored else "-"


def moment(nanoseconds: int) -> str:
    """UTC time to the second; a time that no calendar holds stays a number."""
    try:
        when = datetime.fromtimestamp(nanoseconds // 1_000_000_000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return f"{nanoseconds} ns"
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def age(nanoseconds: int) -> str:
    """A span in its largest whole unit: `3 h`; of a span in the future, `0 s`."""
    seconds = max(nanoseconds, 0) // 1_000_000_000
    for length, unit in _AGES:
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return "0 s"


def duration(nanoseconds: int) -> str:
    """A measured span: `12.3 ms`, `4.56 s`."""
    if nanoseconds < 1_000_000_000:
        return f"{nanoseconds / 1e6:.1f} ms"
    return f"{nanoseconds / 1e9:.2f} s"


def short_digest(digest: str) -> str:
    """First hex digits of a tagged digest."""
    return digest.rpartition(":")[2][:SHORT_DIGEST]


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Nested JSON as `path, value` pairs; a list of plain values stays on one line."""
    if isinstance(value, dict) and value:
        return [
            pair
            for key, item in value.items()
            for pair in flat(item, f"{path}.{key}" if path else str(key))
        ]
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return [
            pair for number, item in enumerate(value) for pair in flat(item, f"{path}[{number}]")
        ]
    return [(path, value if isinstance(value, str) else json.dumps(value))]
