"""The cases of `documents.json`: bytes of a document, and what every reader must say of them.

Each case names a kind (`manifest`, `repository`, `part-index`, `ticket`, `continuation`, `tagged`),
the bytes as text (or as base64), and either `"ok": true` or the code of the error. The answers are
written here by hand; the tests compare the code with them.
"""

import base64
import copy
import hashlib
import json
from typing import Any

ZERO, ONE, TWO = (f"{n:032x}" for n in (0, 1, 2))
DIGEST = "sha256:" + "ab" * 32
Case = dict[str, Any]


def text(value: Any) -> str:
    """Canonical JSON."""
    body = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return body + "\n"


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """With its checksum."""
    rest = {name: item for name, item in value.items() if name != "checksum"}
    return {**rest, "checksum": "sha256:" + hashlib.sha256(text(rest).encode()).hexdigest()}


FINGERPRINT = {
    "schema_version": 1,
    "name": "recipe",
    "content": {"é": [1, 0.1, 1e-05, None], "a": True},
    "digest": "sha256:" + hashlib.sha256(b'{"a":true,"\\u00e9":[1,0.1,1e-05,null]}').hexdigest(),
}
RECEIPT = {
    "schema_version": 1,
    "part": "gym/agent/swe-0",
    "attempt_id": ONE,
    "index_digest": DIGEST,
    "index_size": 300,
    "entries": 2,
    "records": 3,
    "tables": [{"name": "rows/train", "rows": 5, "logical_bytes": 40}],
    "stored_bytes": 4096,
    "new_objects": 2,
    "extensions": {},
}
MANIFEST = {
    "format_version": 1,
    "features": {"read": [], "write": [], "collect": []},
    "repository_id": ZERO,
    "number": 1,
    "attempt_id": ONE,
    "write_id": TWO,
    "base": None,
    "created_at_ns": 1_760_000_000_000_000_000,
    "writer": "snapfmt 0.1.0",
    "parts": [RECEIPT],
    "fingerprints": [FINGERPRINT],
    "anchor": {"train_step": 1, "trainer_version": 0, "epoch": 0, "bootstrap_fingerprint": None},
    "timeline": None,
    "user_metadata": {},
    "extensions": {},
}
REPOSITORY = {
    "format_version": 1,
    "repository_id": ZERO,
    "features": {"read": [], "write": [], "collect": []},
    "created_at_ns": 1,
    "writer": "snapfmt 0.1.0",
    "capabilities": {"exclusive_rename": True},
    "extensions": {},
}
LOCATION = {"pack": DIGEST, "offset": 64, "size": 10}
SEGMENT = {
    "rows": 5,
    "columns": [{"name": "x", "kind": "tensor", "dtype": "int64", "ndim": 1, "physical": "int32"}],
    "data": LOCATION,
    "head_size": 10,
    "head_digest": DIGEST,
    "batches": LOCATION,
    "batches_digest": DIGEST,
    "keys": LOCATION,
    "keys_digest": DIGEST,
    "live": None,
    "live_digest": None,
    "live_rows": 5,
    "logical_bytes": 40,
}
ENTRY = {
    "path": "turns.jsonl",
    "media_type": "application/vnd.snapfmt.jsonl+zstd",
    "location": LOCATION,
    "digest": DIGEST,
    "records": 3,
    "index": "turns.jsonl.index",
}
INDEX = {
    "schema_version": 1,
    "part": "gym/agent/swe-0",
    "attempt_id": ONE,
    "entries": [ENTRY, {**ENTRY, "path": "turns.jsonl.index", "records": None, "index": None}],
    "tables": [{"name": "rows/train", "schema_id": "", "rows": 5, "segments": [SEGMENT]}],
}
TICKET = {
    "schema_version": 1,
    "location": "/ckpt/run7",
    "repository_id": ZERO,
    "attempt_id": ONE,
    "number": 1,
    "part": "rl/capture",
    "deadline_ns": 1,
}
CONTINUATION = {
    "schema_version": 1,
    "rollout_id": "p7_g2",
    "attempt_index": 1,
    "capture_key": "p7_g2-a1",
    "last_committed_model_call_id": "call-3",
    "resource_state_revisions": {"shell": 2},
}
BASES: dict[str, dict[str, Any]] = {
    "manifest": MANIFEST,
    "repository": REPOSITORY,
    "part-index": INDEX,
    "ticket": TICKET,
    "continuation": CONTINUATION,
}
GONE = object()


def changed(kind: str, path: str, value: Any, *, seal: bool = True) -> str:
    """The kind's good document with one member changed, added or taken out."""
    document = copy.deepcopy(BASES[kind])
    place: Any = document
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        place = place[step]
    if value is GONE:
        del place[last]
    else:
        place[last] = value
    return text(sealed(document) if seal and kind in ("manifest", "repository") else document)


CHANGES: tuple[tuple[str, str, Any, str], ...] = (
    ("manifest", "extra", 1, "FormatError"),
    ("manifest", "extensions.anything", {"goes": ["here", None]}, ""),
    ("manifest", "parts.0.extensions.x", 1, ""),
    ("manifest", "parts.0.extra", 1, "FormatError"),
    ("manifest", "parts.0.schema_version", 2, "FormatError"),
    ("manifest", "format_version", 2, "UnsupportedVersion"),
    ("manifest", "format_version", "1", "UnsupportedVersion"),
    ("manifest", "format_version", True, "UnsupportedVersion"),
    ("part-index", "schema_version", 1.0, "UnsupportedVersion"),
    ("manifest", "features.write", ["unknown-to-all"], ""),
    ("manifest", "features.write", ["Not A Name"], "FormatError"),
    ("manifest", "number", -1, "FormatError"),
    ("manifest", "number", 1.0, "FormatError"),
    ("manifest", "created_at_ns", 2**63 - 1, ""),
    ("manifest", "created_at_ns", 2**63, "FormatError"),
    ("manifest", "number", True, "FormatError"),
    ("manifest", "number", "1", "FormatError"),
    ("manifest", "parts.0.stored_bytes", 2**70, "FormatError"),
    ("manifest", "user_metadata.big", 2**70, ""),
    ("manifest", "number", GONE, "FormatError"),
    ("manifest", "parts", GONE, "FormatError"),
    ("manifest", "parts", [], ""),
    ("manifest", "parts", [RECEIPT, {**RECEIPT, "part": "GYM/agent/SWE-0"}], "FormatError"),
    ("manifest", "parts.0.part", "../up", "FormatError"),
    ("manifest", "parts.0.part", "a//b", "FormatError"),
    ("manifest", "parts.0.part", "a/.hidden", "FormatError"),
    ("manifest", "parts.0.part", "a\n", "FormatError"),
    ("manifest", "parts.0.part", "a" * 256, "FormatError"),
    ("manifest", "parts.0.part", "a" * 255, ""),
    ("manifest", "parts.0.index_digest", "md5:" + "ab" * 16, "FormatError"),
    ("manifest", "parts.0.index_digest", "sha256:" + "AB" * 32, "FormatError"),
    ("manifest", "write_id", "0" * 31, "FormatError"),
    ("manifest", "fingerprints.0.content.a", False, "FormatError"),
    ("manifest", "fingerprints", [FINGERPRINT, FINGERPRINT], "FormatError"),
    ("manifest", "user_metadata", {"big": 2**80, "float": -0.0, "text": "é\u2028"}, ""),
    ("manifest", "base", {"number": 1, "write_id": ZERO}, ""),
    ("manifest", "base", {"number": 1}, "FormatError"),
    ("manifest", "anchor.epoch", None, "FormatError"),
    (
        "manifest",
        "timeline",
        {
            "schema_version": 1,
            "operation": "save",
            "phases": [{"name": "cut", "started_at_ns": 2, "ended_at_ns": 1}],
        },
        "FormatError",
    ),
    ("repository", "capabilities.exclusive_rename", 1, "FormatError"),
    ("repository", "format_version", 0, "UnsupportedVersion"),
    ("part-index", "schema_version", 2, "UnsupportedVersion"),
    ("part-index", "entries.0.path", "TURNS.jsonl.index", "FormatError"),
    ("part-index", "entries.0.index", "not-there", "FormatError"),
    ("part-index", "entries.0.media_type", "", "FormatError"),
    ("part-index", "entries.0.location.offset", -64, "FormatError"),
    ("part-index", "entries.0.location.size", 2**63 - 1, ""),
    ("part-index", "entries.0.location.size", 2**63, "FormatError"),
    ("part-index", "entries.0.path", "a" * 1024, ""),
    ("part-index", "entries.0.path", "a" * 1025, "FormatError"),
    ("part-index", "tables.0.rows", 4, "FormatError"),
    ("part-index", "tables.0.segments.0.live_rows", 4, "FormatError"),
    ("part-index", "tables.0.segments.0.live", LOCATION, "FormatError"),
    ("part-index", "tables.0.segments.0.columns.0.kind", "object", "FormatError"),
    (
        "part-index",
        "tables.0.segments.0.columns",
        [SEGMENT["columns"][0]] * 2,  # type: ignore[index]
        "FormatError",
    ),
    ("part-index", "tables.0.segments.0.columns", [], ""),
    ("ticket", "part", "", "FormatError"),
    ("ticket", "deadline_ns", GONE, "FormatError"),
    ("ticket", "secret", "x", "FormatError"),
    ("ticket", "attempt_id", "g" * 32, "FormatError"),
    ("continuation", "capture_key", "p7_g2", "FormatError"),
    ("continuation", "resource_state_revisions", None, ""),
    ("continuation", "resource_state_revisions", {"shell": -1}, "FormatError"),
    ("continuation", "resource_state_revisions", {"": 1}, "FormatError"),
    ("continuation", "rollout_id", "-p7", "FormatError"),
    ("continuation", "attempt_index", True, "FormatError"),
    ("continuation", "extra", 1, "FormatError"),
)

TAGGED: tuple[tuple[str, str], ...] = (
    ("null", ""),
    ('"text"', ""),
    ("[1,-2.5,1e+300,true]", ""),
    ('{"$tuple":[1,{"$tuple":[]}]}', ""),
    ('{"$set":[1,2]}', ""),
    ('{"$frozenset":["a"]}', ""),
    ('{"$bytes":"AP8="}', ""),
    ('{"$bytearray":""}', ""),
    ('{"$float":"7ff8000000000000"}', ""),
    ('{"$float":"fff0000000000000"}', ""),
    ('{"$dict":[[1,"x"],[{"$tuple":[1,2]},null]]}', ""),
    ('{"$dict":[["$tuple",1]]}', ""),
    ('{"$numpy":["float32","cdcccc3d"]}', ""),
    ('{"$numpy":["bool","01"]}', ""),
    ('{"$text":"0000d83d0000de00"}', ""),
    ('"\\ud800"', ""),
    ('{"plain":{"$tuple":[1]}}', ""),
    ("", "FormatError"),
    ("[1,", "FormatError"),
    ("NaN", "FormatError"),
    ("[-Infinity]", "FormatError"),
    ('{"$unknown":1}', "FormatError"),
    ('{"$tuple":{"a":1}}', "FormatError"),
    ('{"$tuple":5}', "FormatError"),
    ('{"$bytes":"AP8"}', "FormatError"),
    ('{"$bytes":"A P8="}', "FormatError"),
    ('{"$float":"7ff8"}', "FormatError"),
    ('{"$dict":[[1]]}', "FormatError"),
    ('{"$dict":[[[1],2]]}', "FormatError"),
    ('{"$set":[[1]]}', "FormatError"),
    ('{"$numpy":["float32","cdcc"]}', "FormatError"),
    ('{"$numpy":["int64",""]}', "FormatError"),
    ('{"$numpy":["int32","0100000002000000"]}', "FormatError"),
    ('{"$numpy":["object","00"]}', "FormatError"),
    ('{"$numpy":["float32"]}', "FormatError"),
    ('{"$text":"00110000"}', "FormatError"),
    ("[" * 5_000, "FormatError"),
)


def _raw() -> list[tuple[str, str, bytes, str]]:
    """Kind, name, bytes, code: what no change of one member says."""
    good = text(sealed(MANIFEST))
    deep = '{"user_metadata":' + "[" * 70 + "]" * 70 + "}"
    open_checksum = text({**MANIFEST, "checksum": DIGEST})
    endless = text(MANIFEST).replace('"user_metadata":{}', '"user_metadata":{"x":1e999}')
    digits = b'{"number":' + b"9" * 5000 + b"}"
    twice = good.replace("{", '{"number":2,', 1)
    renamed = text(sealed(REPOSITORY)).replace("snap", "snbp")
    short = {name: item for name, item in sealed(REPOSITORY).items() if name != "extensions"}
    unversioned = {name: item for name, item in MANIFEST.items() if name != "format_version"}
    features = {"read": ["a-feature"], "write": [], "collect": []}
    return [
        ("manifest", "not JSON", b"{", "FormatError"),
        ("manifest", "empty", b"", "FormatError"),
        ("manifest", "closed", b'{"closed":true}\n', "NotPublished"),
        ("manifest", "closed, otherwise", b'{"closed":true} ', "FormatError"),
        ("manifest", "an array", b"[]\n", "FormatError"),
        ("manifest", "two documents", (good + good).encode(), "FormatError"),
        ("manifest", "a repeated key", twice.encode(), "FormatError"),
        ("manifest", "not UTF-8", good.replace("swe", "sw\xe9").encode("latin-1"), "FormatError"),
        ("manifest", "NaN", good.replace('"number":1', '"number":NaN').encode(), "FormatError"),
        ("manifest", "an infinity", endless.encode(), "FormatError"),
        ("manifest", "nested too deep", deep.encode(), "LimitExceeded"),
        ("manifest", "an integer of 5000 digits", digits, "LimitExceeded"),
        ("manifest", "white space", good.replace(",", ", ").encode(), ""),
        ("manifest", "other order of keys", json.dumps(sealed(MANIFEST)).encode(), ""),
        ("manifest", "no checksum", text(MANIFEST).encode(), "FormatError"),
        ("manifest", "no version", text(sealed(unversioned)).encode(), "FormatError"),
        ("manifest", "another checksum", open_checksum.encode(), "FormatError"),
        ("manifest", "one digit changed", good.replace("176", "177").encode(), "FormatError"),
        ("repository", "a default left out", text(short).encode(), ""),
        ("repository", "and sealed without it", text(sealed(short)).encode(), "FormatError"),
        (
            "manifest",
            "an unknown feature to read, and an unknown field",
            text({**MANIFEST, "features": features, "field_of_it": 1}).encode(),
            "UnsupportedFeature",
        ),
        ("repository", "one letter changed", renamed.encode(), "FormatError"),
        ("continuation", "two spaces", json.dumps(CONTINUATION, indent=1).encode(), ""),
        ("continuation", "a repeated key", b'{"rollout_id":"a","rollout_id":"a"}', "FormatError"),
    ]  # fmt: skip


def _bytes(data: bytes) -> Case:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def documents() -> list[Case]:
    """Every case, in order."""
    found: list[tuple[str, str, bytes, str]] = []
    for kind, base in BASES.items():
        value = sealed(base) if kind in ("manifest", "repository") else base
        found.append((kind, "good", text(value).encode(), ""))
    for kind, path, value, code in CHANGES:
        shown = "taken out" if value is GONE else json.dumps(value)[:60]
        shown += f" ({len(value)})" if isinstance(value, str | list) else ""
        found.append((kind, f"{path}: {shown}", changed(kind, path, value).encode(), code))
    found += _raw()
    for line, code in TAGGED:
        found.append(("tagged", line[:60], line.encode(), code))
    return [
        {"kind": kind, "name": name, **_bytes(data), **({"error": code} if code else {"ok": True})}
        for kind, name, data, code in found
    ]
