"""Changes that a hostile author would make: of JSON values, and choices drawn from bytes."""

import copy
import json
import random
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

ODD: Final[tuple[Any, ...]] = (
    *(0, 1, -1, 7, 63, 64, 2**31, 2**32 + 1, 2**62, 2**63, 2**64, 10**30, 1.5, True, None),
    *("", "x", "sha256:" + "0" * 64, "sha256:" + "F" * 64, "../../etc/passwd", "/x", "\ud800"),
    *("int64", "uint8", "float8_e4m3fn", "tensor", "text", "large_string", "a/../b", "é" * 2000),
    *([], {}, [[]], {"pack": "x"}, [1, 2, 3]),
)
"""Values that are wrong almost everywhere, or nearly right."""
ODD_BYTES: Final[tuple[bytes, ...]] = (
    *(number.to_bytes(8, "little", signed=True) for number in (0, 1, -1, 2**31, 2**62, -(2**63))),
    *(number.to_bytes(4, "little") for number in (0, 1, 64, 2**31 - 1, 2**31, 2**32 - 1)),
    *(b"\xff" * 8, b"\x00" * 16, b"[[[[[[[[", b'{"', b"\xed\xa0\x80", b"\x28\xb5\x2f\xfd"),
    *(b"..", b"/", b"\n", b"\r\n", b"$tuple", b"NaN", b"1e999", b"-0", b"\\ud800", b"9" * 20),
)
"""Bytes that numbers, texts and frames go wrong with."""


class Chooser(Protocol):
    """What `random.Random` and `Choices` have in common."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 to below `stop`."""
        ...

    def choice(self, items: Sequence[T], /) -> T:
        """One of the items."""
        ...


class Choices:
    """Choices that bytes make, one after the other; zeros once they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that are not used yet."""
        return max(0, len(self._data) - self._at)

    def randrange(self, stop: int, /) -> int:
        """A number from 0 to below `stop`; takes a byte, or as many as `stop` needs."""
        return int.from_bytes(self.take((max(stop - 1, 1).bit_length() + 7) // 8), "little") % stop

    def choice(self, items: Sequence[T], /) -> T:
        """One of the items."""
        return items[self.randrange(len(items))]

    def take(self, size: int) -> bytes:
        """The next bytes, filled up with zeros."""
        found = self._data[self._at : self._at + size]
        self._at += size
        return found.ljust(size, b"\0")

    def rest(self) -> bytes:
        """All that is left."""
        found = self._data[self._at :]
        self._at = len(self._data)
        return found


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict):
        for name, item in value.items():
            found += places(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            found += places(item, (*path, number))
    return found


def change(value: Any, rng: Chooser) -> None:
    """One change somewhere inside a JSON object or array that is not empty."""
    path = rng.choice(places(value))
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    last = path[-1]
    action = rng.randrange(6)
    if action == 0:
        del holder[last]
    elif action == 1 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[last]))
    elif action == 2 and isinstance(holder, dict):
        holder[rng.choice(["unknown", "rows", "size", "index"])] = holder[last]
    elif action == 3:
        other = rng.choice(places(value))
        found = value
        for step in other:
            found = found[step]
        holder[last] = copy.deepcopy(found)
    elif action == 4 and type(holder[last]) is int:
        holder[last] += rng.choice([-64, -8, -1, 1, 8, 64])
    else:
        holder[last] = copy.deepcopy(rng.choice(ODD))


def changed_json(data: bytes, rng: random.Random) -> bytes:
    """The JSON text of a value with a few changes; the bytes themselves if they are none."""
    try:
        value = json.loads(data)
        for _ in range(rng.choice((1, 1, 2, 3))):
            if not isinstance(value, dict | list) or not value:
                break
            change(value, rng)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        return text.encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return data
