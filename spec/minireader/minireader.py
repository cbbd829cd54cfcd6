"""A second reader of snapfmt repositories, written from spec/v1 and nothing else.

    minireader.py verify DIR        exit 0: whole, 3: damage
    minireader.py dump DIR [N]      JSON of snapshot N (default: the newest)

Exit codes: 0 good, 2 wrong usage, 3 damage, 4 nothing there or refused. It needs Python 3.11 and
zstandard, imports nothing of snapfmt, and is slow: it exists to show that the text suffices.
"""

import itertools
import json
import math
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

from documents import (
    MANIFEST_SIZE,
    MIB,
    PART_INDEX_SIZE,
    SMALL_SIZE,
    Damage,
    Refused,
    canonical,
    document,
    sha,
    tagged,
)
from ipc import (
    CODES,
    END,
    array,
    describe,
    expand,
    index_stream,
    little,
    message,
    numbers,
    offsets_in,
    unframe,
)

CHUNK_SIZE, BATCH_ROWS = 4096 * MIB, 16_777_216
# Logical dtype -> (stored type, narrower types that may stand for it); 06-tables, Types.
SAME = ("int8", "int16", "uint8", "uint16", "uint32", "float16", "float32", "float64")
DTYPES = {
    **{name: (name, ()) for name in SAME},
    "int32": ("int32", ("uint8",)),
    "int64": ("int64", ("uint8", "int32")),
    "uint64": ("uint64", ("uint8", "uint32")),
    "bool": ("uint8", ()),
    "bfloat16": ("uint16", ()),
    "float8_e4m3fn": ("uint8", ()),
    "float8_e4m3fnuz": ("uint8", ()),
    "float8_e5m2": ("uint8", ()),
    "float8_e5m2fnuz": ("uint8", ()),
    "float8_e8m0fnu": ("uint8", ()),
}
WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}
TOLERATED = ("lost+found", ".nfs", ".probe-", ".DS_Store")
JSONL = "application/vnd.snapfmt.jsonl+zstd"


# --- 06-tables: one segment ----------------------------------------------------------------------

KEY = {"name": "__key__", "kind": "text", "dtype": "", "ndim": 0, "physical": "large_string"}
BATCHES = [(name, "int64") for name in ("row_start", "rows", "header_offset", "header_size")]
BATCHES += [("header_digest", "fixed_binary[32]"), ("chunk_offset", "list<int64?>")]
BATCHES += [("chunk_size", "list<int64?>"), ("chunk_digest", "list<fixed_binary[32]?>")]
BATCHES += [("buffer_size", "list<int64?>")]
LINES = [("key", "large_string"), ("frame_offset", "int64"), ("frame_size", "int64")]
LINES += [("frame_content", "int64"), ("frame_digest", "fixed_binary[32]")]
LINES += [("line_offset", "int64"), ("line_size", "int64")]


def fields_of(column: dict[str, Any]) -> list[tuple[str, str, bool, dict[str, str]]]:
    """The Arrow fields that a column must have; checks its dtype on the way."""
    name, kind, dtype, ndim = (column[key] for key in ("name", "kind", "dtype", "ndim"))
    said = {"snapfmt.kind": kind, "snapfmt.dtype": dtype, "snapfmt.ndim": str(ndim)}
    if kind not in ("tensor", "ndarray"):
        if dtype or ndim:
            raise Damage(f"{name}: a {kind} column has a dtype or axes")
        return [(name, "large_binary" if kind == "bytes" else "large_string", True, said)]
    stored, narrow = DTYPES.get(dtype, ("", ()))
    physical = column["physical"]
    if not stored or physical not in (stored, *narrow):
        raise Damage(f"{name}: {dtype!r} is not stored as {physical!r}")
    found = [(name, f"large_list<{physical}>" if ndim else physical, True, said)]
    if ndim > 1:
        found.append((f"{name}#shape", f"fixed_list[{ndim}]<int64>", False, {}))
    return found


def header_of(rows: int, nodes: list[tuple[int, int]], sizes: list[int]) -> tuple[bytes, int]:
    """The one byte form of a record batch's metadata, and the length of its body."""
    places, body = b"", 0
    for size in sizes:
        places += struct.pack("<qq", body, size)
        body += size + -size % 64
    flat = struct.pack("<I6H", 16, 12, 24, 16, 18, 4, 8)
    flat += struct.pack("<iIqhB5x", 12, 36, body, 4, 3)
    flat += struct.pack("<6H4x", 12, 24, 8, 4, 16, 20)
    flat += struct.pack("<iIqII", 16, 40, rows, 36 + 16 * len(nodes), 12)
    flat += struct.pack("<4Hibb2x", 8, 8, 4, 5, 8, 1, 0)
    flat += struct.pack("<4xI", len(nodes)) + b"".join(struct.pack("<qq", *n) for n in nodes)
    flat += struct.pack("<4xI", len(sizes)) + places
    flat += bytes(-(len(flat) + 8) % 64)
    return struct.pack("<Ii", 0xFFFFFFFF, len(flat)) + flat, body


def bits(data: bytes, rows: int) -> list[bool]:
    if len(data) != (rows + 7) // 8:
        raise Damage("a bitmap does not fit the rows")
    return [bool(data[i >> 3] >> (i & 7) & 1) for i in range(rows)]


def cells_of(chunk: bytes, sizes: list[int], column: dict[str, Any], rows: int) -> tuple[Any, Any]:
    """The cells of one column of one batch (None: missing), and its Arrow nodes."""
    parts, at = [], 0
    for size in sizes:
        if size < 0 or at + size > len(chunk):
            raise Damage("a buffer leaves its chunk")
        parts.append(expand(chunk[at : at + size]))
        at += size + -size % 64
    if at != len(chunk):
        raise Damage("a chunk is longer than its buffers")
    kind, dtype, ndim = column["kind"], column["dtype"], column["ndim"]
    present = bits(parts[0], rows) if parts[0] else [True] * rows
    nodes = [(rows, present.count(False))]
    if kind not in ("tensor", "ndarray"):
        ends, data = offsets_in(numbers(parts[1]), rows, len(parts[2])), parts[2]
        raw = [data[ends[i] : ends[i + 1]] for i in range(rows)]
        if kind == "bytes":
            found = [{"kind": kind, "size": len(b), "sha256": sha(b).hex()} for b in raw]
        else:
            found = [{"kind": kind, "text": b.decode()} for b in raw]
        return [cell if there else None for cell, there in zip(found, present, strict=True)], nodes
    stored, data = DTYPES[dtype][0], parts[3] if ndim else parts[1]
    if column["physical"] != stored:
        data = little(array(CODES[stored], numbers(data, column["physical"])))
    width = WIDTHS[re.sub(r"\D", "", stored)]
    total = len(data) // width
    if len(data) % width or (ndim == 0 and total != rows):
        raise Damage("values do not fit the rows")
    ends = offsets_in(numbers(parts[1]), rows, total) if ndim else array("q", range(rows + 1))
    shapes = [[ends[i + 1] - ends[i]] * min(ndim, 1) for i in range(rows)]
    nodes += [(total, 0)] if ndim else []
    if ndim > 1:
        flat = numbers(parts[6])
        shapes = [list(flat[i * ndim : (i + 1) * ndim]) for i in range(rows)]
        nodes += [(rows, 0), (rows * ndim, 0)]
        if len(flat) != rows * ndim:
            raise Damage("shapes do not fit the rows")
    result: list[Any] = [None] * rows
    for i in range(rows):
        size = ends[i + 1] - ends[i]
        if min(shapes[i], default=0) < 0 or (present[i] and math.prod(shapes[i]) != size):
            raise Damage("a shape does not fit its values")
        mark = sha(data[ends[i] * width : ends[i + 1] * width]).hex()
        if present[i]:
            result[i] = {"kind": kind, "dtype": dtype, "shape": shapes[i], "sha256": mark}
    return result, nodes


def check_head(head: bytes, columns: list[dict[str, Any]], digest: str) -> None:
    """The schema message is whole and says what the part index says."""
    kind, schema, end, body = message(head, 0)
    if tagged(sha(head)) != digest or (kind, end, body) != (1, len(head), 0):
        raise Damage("schema message is damaged")
    wanted = [field for column in columns for field in fields_of(column)]
    if [describe(field) for field in schema.tables(1)] != wanted:
        raise Damage("schema does not fit the part index")


def segment_rows(repository: "Repository", segment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every live row of a segment, every byte of it checked."""
    columns = [KEY, *segment["columns"]]
    stream = repository.extent(segment["data"])
    index = index_stream(repository.extent(segment["batches"], segment["batches_digest"]), BATCHES)
    keys = index_stream(repository.extent(segment["keys"], segment["keys_digest"]), [LINES[0]])
    at, row, rows = segment["head_size"], 0, segment["rows"]
    live = [True] * rows
    if segment["live"] is not None:
        live = bits(repository.extent(segment["live"], segment["live_digest"]), rows)
    check_head(stream[:at], columns, segment["head_digest"])
    if len(keys) != rows or live.count(True) != segment["live_rows"]:
        raise Damage("keys or live rows do not fit the rows")
    for batch in index:
        number, size, sizes = batch["rows"], batch["header_size"], iter(batch["buffer_size"])
        place = at + size
        ok = batch["row_start"] == row and batch["header_offset"] == at and size >= 0
        if not ok or not 0 < number <= min(rows - row, BATCH_ROWS):
            raise Damage("batches do not cover the rows or the bytes")
        lists = batch["chunk_offset"], batch["chunk_size"], batch["chunk_digest"]
        if {len(item) for item in lists} != {len(columns)}:
            raise Damage("chunks do not fit the columns")
        cells, nodes = [], []
        for column, start, length, mark in zip(columns, *lists, strict=True):
            chunk = stream[place : place + length] if 0 <= length <= CHUNK_SIZE else b""
            if start != place or len(chunk) != length or sha(chunk) != mark:
                raise Damage(f"{column['name']}: chunk differs from its digest or place")
            place += length
            buffers = 2 if column["dtype"] else 3
            buffers = buffers if column["ndim"] == 0 else 4 if column["ndim"] == 1 else 7
            found, own = cells_of(chunk, [*itertools.islice(sizes, buffers)], column, number)
            cells.append(found)
            nodes += own
        header, _ = header_of(number, nodes, batch["buffer_size"])
        if next(sizes, None) is not None or stream[at : at + size] != header:
            raise Damage("Arrow metadata does not fit the batch index")
        if sha(header) != batch["header_digest"]:
            raise Damage("batch header differs from its digest")
        for i in range(number):
            if cells[0][i]["text"] != keys[row + i]["key"]:
                raise Damage("a key differs from the keys entry")
            if live[row + i]:
                pairs = zip(columns[1:], cells[1:], strict=True)
                own = {c["name"]: found[i] for c, found in pairs if found[i] is not None}
                yield {"key": keys[row + i]["key"], "cells": own}
        at, row = place, row + number
    if row != rows or stream[at:] != END:
        raise Damage("batches do not cover the segment")


# --- 03-layout and 08-reading: the repository ----------------------------------------------------


class Repository:
    """A folder; every object that is read is first hashed whole."""

    def __init__(self, root: str) -> None:
        self.root, self.objects = root, dict[str, bytes]()
        if not os.path.lexists(os.path.join(root, "snapfmt.json")):
            raise Refused("no repository here")
        data = self.file("snapfmt.json", SMALL_SIZE)
        value = document("Repository", data, SMALL_SIZE)
        self.id, self.canonical = value["repository_id"], canonical(value) == data

    def names(self, folder: str) -> list[str]:
        path = os.path.join(self.root, folder)
        found = sorted(os.listdir(path)) if os.path.isdir(path) else []
        # A closed manifest only keeps its number taken.
        return [name for name in found if not self.closed(os.path.join(path, name))]

    def closed(self, path: str) -> bool:
        if os.path.basename(path) != "manifest.json" or not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(100) == b'{"closed":true}\n'

    def file(self, key: str, limit: int = 1 << 62) -> bytes:
        steps = key.split("/")
        places = [os.path.join(self.root, *steps[: i + 1]) for i in range(len(steps))]
        if any(map(os.path.islink, places)) or not os.path.isfile(places[-1]):
            raise Damage(f"{key}: missing, or not a regular file")
        if os.path.getsize(places[-1]) > limit:
            raise Damage(f"{key}: larger than {limit} bytes")
        with open(places[-1], "rb") as file:
            return file.read()

    def object(self, digest: str, limit: int = 1 << 62) -> bytes:
        name = digest[7:]
        if name not in self.objects:
            data = self.file(f"objects/{name[:2]}/{name}", limit)
            if sha(data).hex() != name:
                raise Damage(f"object {name} differs from its name")
            self.objects[name] = data
        return self.objects[name]

    def extent(self, place: dict[str, Any], digest: str = "") -> bytes:
        pack, start, end = (
            self.object(place["pack"]),
            place["offset"],
            place["offset"] + place["size"],
        )
        if pack[:16] != b"SNAPPACK" + struct.pack("<II", 1, 64) or end > len(pack):
            raise Damage(f"{place['pack']}: not a pack, or too short")
        if digest and tagged(sha(pack[start:end])) != digest:
            raise Damage(f"{place['pack']}: an extent differs from its digest")
        return pack[start:end]

    def folders(self) -> Iterator[tuple[str, int | None]]:
        for name in self.names("snapshots"):
            digits = name.removeprefix("snapshot_")
            good = re.fullmatch("snapshot_[0-9]{6,12}", name) and f"{int(digits):06d}" == digits
            yield name, int(digits) if good else None

    def numbers(self) -> list[int]:
        found = [(name, number) for name, number in self.folders() if number is not None]
        return [
            number for name, number in found if "manifest.json" in self.names(f"snapshots/{name}")
        ]

    def snapshot(self, number: int) -> dict[str, Any]:
        """The dump of a snapshot; Damage at the first byte that is not what it must be."""
        data = self.file(f"snapshots/snapshot_{number:06d}/manifest.json", MANIFEST_SIZE)
        manifest = document("Manifest", data)
        if (manifest["repository_id"], manifest["number"]) != (self.id, number):
            raise Damage("manifest belongs to another repository or number")
        if canonical(manifest) != data:
            raise Damage("manifest is not in canonical form")
        parts, tables = [], dict[str, list[Any]]()
        for receipt in manifest["parts"]:
            entries, own = self.part(receipt)
            parts.append({"name": receipt["part"], "entries": entries, "tables": [*own]})
            for name, rows in own.items():
                tables.setdefault(name, []).extend(rows)
        said = {"repository_id": self.id, "snapshot": number, "write_id": manifest["write_id"]}
        return {**said, "parts": parts, "tables": dict(sorted(tables.items()))}

    def part(self, receipt: dict[str, Any]) -> tuple[list[Any], dict[str, list[Any]]]:
        data = self.object(receipt["index_digest"], PART_INDEX_SIZE)
        index = document("PartIndex", data, PART_INDEX_SIZE)
        held = [
            (t["name"], t["rows"], sum(s["logical_bytes"] for s in t["segments"]))
            for t in index["tables"]
        ]
        said = [tuple(table.values()) for table in receipt["tables"]]
        records = sum(entry["records"] or 0 for entry in index["entries"])
        same = (len(data), index["part"], index["attempt_id"], len(index["entries"]), records)
        names = ("index_size", "part", "attempt_id", "entries", "records")
        if same != tuple(receipt[name] for name in names) or held != said:
            raise Damage("part index does not hold what its receipt says")
        stored = {e["path"]: self.extent(e["location"], e["digest"]) for e in index["entries"]}
        entries = []
        for entry in index["entries"]:
            data = stored[entry["path"]]
            found = {"path": entry["path"], "media_type": entry["media_type"], "size": len(data)}
            found["sha256"] = entry["digest"][7:]
            if entry["media_type"] == JSONL:
                lines = index_stream(stored.get(entry["index"], b""), LINES)
                found["lines"] = [*record_lines(data, lines)]
                if len(lines) != entry["records"]:
                    raise Damage(f"{entry['path']}: another number of records")
            entries.append(found)
        tables = {}
        for table in index["tables"]:
            rows = [row for item in table["segments"] for row in segment_rows(self, item)]
            if len({row["key"] for row in rows}) != len(rows):
                raise Damage(f"{table['name']}: a key repeats")
            tables[table["name"]] = rows
        return entries, tables

    def verify(self) -> list[str]:
        """What is wrong, one line per finding."""
        found = [] if self.canonical else ["snapfmt.json: not in canonical form"]
        for name, number in self.folders():
            files = self.names(f"snapshots/{name}")
            whole = "manifest.json" in files
            known = ["retiring.json", "manifest.json" if whole else "retired.json"]
            extra = [name] if number is None else [file for file in files if file not in known]
            found += [f"{name}: extra {file}" for file in extra if not file.startswith(TOLERATED)]
            if number is not None and whole:
                found += problems(name, self.snapshot, number)
        for key in self.walk(""):
            top, _, rest = key.partition("/")
            temporary = key.rpartition("/")[2].startswith(".") and key.endswith(".tmp")
            place = re.fullmatch("objects/([0-9a-f]{2})/(\\1[0-9a-f]{62})", key)
            known = key == "snapfmt.json" or top in ("snapshots", "pins") or temporary
            known = known or any(step.startswith(TOLERATED) for step in key.split("/"))
            known = known or (top == "attempts" and re.match(r"\.|[0-9a-f]{32}(\.|/)", rest))
            if place:
                found += problems(key, self.object, f"sha256:{place[2]}")
            elif not known:
                found.append(f"{key}: no file of the format")
        return found

    def walk(self, folder: str) -> Iterator[str]:
        for name in self.names(folder):
            key = f"{folder}/{name}" if folder else name
            path = os.path.join(self.root, key)
            if os.path.isdir(path) and not os.path.islink(path):
                yield from self.walk(key)
            else:
                yield key


def record_lines(data: bytes, places: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of a record file (05-records), each where the index says that it is."""
    at, content, position = 0, b"", 0
    for number, place in enumerate(places):
        if number == 0 or place["frame_offset"] != places[number - 1]["frame_offset"]:
            frame = data[at : at + place["frame_size"]] if place["frame_size"] > 0 else b""
            if position != len(content) or place["frame_offset"] != at:
                raise Damage("frames or lines do not follow one another")
            if sha(frame) != place["frame_digest"]:
                raise Damage("a frame differs from its digest")
            content, position = unframe(frame, place["frame_content"]), 0
            at += len(frame)
        end = position + place["line_size"]
        if place["line_offset"] != position or content.find(b"\n", position) != end:
            raise Damage("index does not point at a line")
        json.loads(content[position:end])
        yield content[position:end].decode()
        position = end + 1
    if position != len(content) or at != len(data):
        raise Damage("lines do not cover the entry")


def problems(name: str, action: Callable[[Any], Any], argument: Any) -> list[str]:
    try:
        action(argument)
    except (Damage, Refused, ValueError, struct.error, StopIteration, RuntimeError) as error:
        return [f"{name}: {error}"]
    return []


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("verify", "dump") or len(arguments) > 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        repository = Repository(arguments[1])
        if arguments[0] == "verify":
            found = repository.verify()
            print("\n".join(found) or "whole")
            return 3 if found else 0
        numbers = repository.numbers()
        number = int(arguments[2]) if len(arguments) == 3 else max(numbers, default=0)
        if number not in numbers:
            raise Refused(f"snapshot {number} was not published")
        print(json.dumps(repository.snapshot(number), indent=1, ensure_ascii=False))
    except Refused as error:
        print(f"refused: {error}", file=sys.stderr)
        return 4
    except (Damage, ValueError, struct.error, StopIteration, RuntimeError) as error:
        print(f"damage: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
