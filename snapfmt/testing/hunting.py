"""Looks for texts in everything that is stored: as they are, in other clothes, and compressed."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote

import zstandard

from snapfmt.storage.base import Store

_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_LONGEST: Final = 1 << 26


def forms(text: str) -> set[bytes]:
    """A text as it may stand in bytes."""
    plain = text.encode()
    shown = {plain, plain.hex().encode(), quote(text, safe="").encode(), plain[::-1]}
    shown |= {text.encode("utf-16-le"), text.upper().encode(), text.lower().encode()}
    for shift in range(3):
        # Inside a longer text, base64 depends on where it begins.
        coded = base64.b64encode(b"x" * shift + plain + b"x" * 3)
        shown.add(coded[4 : 4 * ((shift + len(plain)) // 3)])
    return {form for form in shown if len(form) >= 6}


def unpacked(data: bytes) -> Iterator[bytes]:
    """The bytes, and the content of every zstd frame in them, and of those in that."""
    yield data
    place = data.find(_ZSTD)
    while place >= 0:
        try:
            found = zstandard.ZstdDecompressor().decompressobj().decompress(data[place:])
        except zstandard.ZstdError:
            found = b""
        if found:
            yield from unpacked(found[:_LONGEST])
        place = data.find(_ZSTD, place + 1)


def hunt(pieces: Mapping[str, bytes], texts: Iterable[str]) -> list[str]:
    """Which of the texts stand where; empty if none does anywhere."""
    wanted = {text: forms(text) for text in texts}
    return [
        f"{text!r} in {name}"
        for name, data in pieces.items()
        for text, shown in wanted.items()
        if any(form in piece for piece in unpacked(data) for form in shown)
    ]


def stored(store: Store) -> dict[str, bytes]:
    """Every byte below a repository, by its key; the key belongs to it."""
    found = {}
    for key, size in store.walk(""):
        found[key] = key.encode() + b"\0" + store.get(key, limit=size)
    return found
