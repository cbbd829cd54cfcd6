"""What the keys of a bucket say."""

import hashlib
from collections.abc import Collection, Iterable

from snapfmt.errors import InputError
from snapfmt.storage.base import check_key, may_be_closed
from snapfmt.storage.client import ObjectInfo


def named_digest(key: str) -> bytes:
    """The digest that an object's name promises: the server compares it, so nobody hashes twice.

    Raises:
        InputError: If the name is no sha256.
    """
    name = key.rpartition("/")[2]
    try:
        mark = bytes.fromhex(name)
    except ValueError:
        mark = b""
    if len(mark) != hashlib.sha256().digest_size:
        raise InputError("an object is named by its sha256", what=key)
    return mark


def folder_of(prefix: str) -> str:
    """What the keys below a folder begin with; empty for the root.

    Raises:
        FormatError: If it is not a relative, normalised path.
    """
    if prefix:
        check_key(prefix)
    return f"{prefix}/" if prefix else ""


def is_closed(info: ObjectInfo) -> bool:
    """Whether it only keeps its name taken."""
    return may_be_closed(info.key, info.size)


def without_markers(listed: Iterable[ObjectInfo], folder: str, *, deep: bool) -> list[ObjectInfo]:
    """What was listed below a folder, but for the markers of folders, which are nothing.

    Consoles, mounts and copy tools make them: keys that end with a slash.
    """
    return [info for info in listed if info.key != folder and not (deep and info.key.endswith("/"))]


def holders(above: str, listed: Iterable[ObjectInfo], name: str) -> list[str]:
    """Folders directly below `above` with a document of this name."""
    keys = [info.key[len(above) :] for info in listed if not is_closed(info)]
    steps = [key.partition("/") for key in keys]
    return sorted(folder for folder, _, rest in steps if folder and rest == name)


def by_folder(
    above: str, listed: Iterable[tuple[str, int]], but: Collection[str]
) -> dict[str, frozenset[str]]:
    """Names in each folder below `above`, of keys and sizes; a closed one is not there."""
    found: dict[str, set[str]] = {}
    for key, size in listed:
        folder, below, rest = key[len(above) :].partition("/")
        if below and folder and folder not in but:
            names = found.setdefault(folder, set())
            name = rest.partition("/")[0]
            if name and not may_be_closed(key, size):
                names.add(name)
    return {folder: frozenset(names) for folder, names in sorted(found.items())}
