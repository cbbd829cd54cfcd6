"""Snapshots that are intact by every digest and hostile in their content."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snapfmt.format import digest, layout

Edit = Callable[[dict[str, Any], dict[str, bytearray]], None]
"""Changes a part index, as JSON, and the packs it reaches, by their digests."""


def forge(root: Path, number: int, part: str, edit: Edit) -> None:
    """Change a part of a snapshot and sign everything anew, from the bytes up to the manifest.

    Digests of entries, heads, batch indexes and keys are computed again; those inside a batch
    index are left as they are.
    """
    manifest_path = root / layout.manifest_key(number)
    manifest = json.loads(manifest_path.read_bytes())
    (receipt,) = (item for item in manifest["parts"] if item["part"] == part)
    index_path = root / layout.object_key(receipt["index_digest"])
    index = json.loads(index_path.read_bytes())
    packs = {
        name: bytearray((root / layout.object_key(name)).read_bytes())
        for name in sorted({place["pack"] for place in _locations(index)})
    }
    edit(index, packs)
    _sign_entries(index, packs)
    renamed = {name: _store(root, bytes(data)) for name, data in packs.items()}
    for place in _locations(index):
        if isinstance(place.get("pack"), str):
            place["pack"] = renamed.get(place["pack"], place["pack"])
    data = canonical(index)
    receipt["index_digest"] = _store(root, data)
    receipt["index_size"] = len(data)
    seal(manifest_path, manifest)


def seal(path: Path, document: dict[str, Any]) -> None:
    """Write a root document with the checksum that its content has."""
    document = {name: value for name, value in document.items() if name != "checksum"}
    mark = digest.digest_of(canonical(document))
    path.write_bytes(canonical(document | {"checksum": mark}))


def canonical(value: Any) -> bytes:
    """Canonical JSON of any value, also of one that breaks its schema."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _store(root: Path, data: bytes) -> str:
    name = digest.digest_of(data)
    path = root / layout.object_key(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return name


def _locations(value: Any) -> list[dict[str, Any]]:
    """Every location inside a JSON value."""
    if isinstance(value, list):
        return [place for item in value for place in _locations(item)]
    if not isinstance(value, dict):
        return []
    found = [place for item in value.values() for place in _locations(item)]
    return [value, *found] if {"pack", "offset", "size"} <= value.keys() else found


def _sign_entries(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
    for entry in _items(index.get("entries")):
        _sign(entry, "location", "digest", packs)
    for table in _items(index.get("tables")):
        for segment in _items(table.get("segments")):
            for place in ("batches", "keys", "live"):
                _sign(segment, place, f"{place}_digest", packs)
            data = segment.get("data")
            if data is not None and _is_place(data) and isinstance(segment.get("head_size"), int):
                start = data["offset"]
                head = packs.get(data["pack"], bytearray())[start : start + segment["head_size"]]
                segment["head_digest"] = digest.digest_of(bytes(head))


def _sign(holder: dict[str, Any], place: str, mark: str, packs: dict[str, bytearray]) -> None:
    location = holder.get(place)
    if location is not None and _is_place(location):
        start = location["offset"]
        data = packs.get(location["pack"], bytearray())[start : start + location["size"]]
        holder[mark] = digest.digest_of(bytes(data))


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_place(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("pack"), str)
        and type(value.get("offset")) is int
        and type(value.get("size")) is int
    )
