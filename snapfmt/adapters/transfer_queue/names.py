"""Names in the parts: row keys, tables of partitions, reserved columns (spec/v1/06-tables.md)."""

import hashlib
from collections.abc import Iterable

INDEX_COLUMN = "__global_index__"
"""Column of the global index in the tables of rows."""

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+=-")
_LONGEST = 180


def row_key(key: str | None, global_index: int) -> str:
    """Key of a row in the tables: the user's key, or `#<global index>` for a row without one.

    A user's key that starts with `#` gets one more, and an empty one is a lone `#`, so that all
    read back unambiguously.
    """
    if key is None:
        return f"#{global_index}"
    return f"#{key}" if key.startswith("#") or not key else key


def user_key(row: str) -> str | None:
    """The user's key of a row, None for a row without one."""
    if row == "#" or row.startswith("##"):
        return row[1:]
    return None if row.startswith("#") else row


def table_names(partitions: Iterable[str]) -> dict[str, str]:
    """Partition id -> last segment of its tables' names; unique also without regard to case.

    Bytes outside of `A-Z a-z 0-9 . _ @ + = -` are percent-encoded. `%-` never comes out of that
    encoding: it marks an id that starts with another character, an id that differs from an
    earlier one in case only, and the digest at the end of a shortened id.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for partition in partitions:
        plain = "".join(
            char
            if char in _PLAIN
            else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
            for char in partition
        )
        if not (plain[:1].isalnum() and plain[:1].isascii()):
            plain = f"0%-{plain}"
        if len(plain) > _LONGEST:
            digest = hashlib.sha256(partition.encode("utf-8", "surrogatepass")).hexdigest()
            plain = f"{plain[: _LONGEST - 18]}%-{digest[:16]}"
        name, count = plain, 1
        while name.casefold() in taken:
            count += 1
            name = f"{plain}%-{count}"
        taken.add(name.casefold())
        names[partition] = name
    return names


def unit_part(prefix: str, position: int) -> str:
    """Part of the storage unit at one position."""
    return f"{prefix}/unit-{position:04d}"


def controller_part(prefix: str) -> str:
    """Part of the controller."""
    return f"{prefix}/controller"


def runs(indexes: Iterable[int]) -> list[list[int]]:
    """An ordered list of integers as `[start, count]` of ascending runs; short in JSON."""
    found: list[list[int]] = []
    for index in indexes:
        if found and index == found[-1][0] + found[-1][1]:
            found[-1][1] += 1
        else:
            found.append([index, 1])
    return found


def unrun(pairs: Iterable[Iterable[int]]) -> list[int]:
    """The integers of `runs`, in order."""
    return [index for start, count in pairs for index in range(start, start + count)]
