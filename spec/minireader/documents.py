"""The documents of spec/v1/04-documents.md: JSON within bounds, closed records, their rules."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

KIB, MIB = 1024, 1024 * 1024
MANIFEST_SIZE, PART_INDEX_SIZE, SMALL_SIZE = 16 * MIB, 256 * MIB, 64 * KIB
JSON_DEPTH, JSON_DIGITS = 64, 4300


class Damage(Exception):
    """Bytes are missing, or are not what they must be."""


class Refused(Exception):
    """Nothing is there, or this reader may not read it."""


def parse(data: bytes, limit: int) -> Any:
    """A JSON value within the bounds of 11-limits."""
    if len(data) > limit:
        raise Damage(f"document of {len(data)} bytes")
    depth = deepest = 0
    for token in re.findall(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', data, re.DOTALL):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token, 0)
        deepest = max(deepest, depth)
    if deepest > JSON_DEPTH:
        raise Damage(f"JSON nested {deepest} deep")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("an object repeats a key")
        return dict(pairs)

    def integer(digits: str) -> int:
        if len(digits) > JSON_DIGITS:
            raise ValueError("an integer is too long")
        return int(digits)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(
            data.decode(), object_pairs_hook=unique, parse_int=integer, parse_constant=constant
        )
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise Damage(f"not a JSON document: {error}") from error
    return value


def canonical(value: Any) -> bytes:
    """The one byte form of a document."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


STEP = r"[A-Za-z0-9][A-Za-z0-9._@%+=-]*"
# Leaf types: a pattern, the smallest and the largest length in characters; 04-documents.
TEXTS = {
    "text": (r".*", 0, 1 << 62),
    "text128": (r".*", 1, 128),
    "text255": (r".*", 1, 255),
    "text1024": (r".*", 1, 1024),
    "writer": (r".*", 0, 255),
    "hex": (r"[0-9a-f]{32}", 32, 32),
    "digest": (r"sha256:[0-9a-f]{64}", 71, 71),
    "name": (rf"{STEP}(/{STEP})*", 1, 255),
    "path": (rf"{STEP}(/{STEP})*", 1, 1024),
    "kind": (r"tensor|ndarray|text|bytes|value", 1, 7),
    "operation": (r"save|restore", 1, 7),
    "feature": (r"[a-z0-9][a-z0-9.-]*", 1, 64),
    "fingerprint": (r"[a-z][a-z0-9_-]*", 1, 64),
}
# Records: `name:type`; `type?` also null and by default null, `type*` array, `type%` object of
# such values, `=x` default. No other field may be there.
RECORDS = {
    "Location": "pack:digest offset:count size:count",
    "Entry": "path:path media_type:text255 location:Location digest:digest records:count? "
    "index:path?",
    "Column": 'name:text1024 kind:kind dtype:text="" ndim:count=0 physical:text',
    "Segment": "rows:count columns:Column* data:Location head_size:count head_digest:digest "
    "batches:Location batches_digest:digest keys:Location keys_digest:digest live:Location? "
    "live_digest:digest? live_rows:count logical_bytes:count",
    "Table": 'name:name schema_id:text="" rows:count segments:Segment*',
    "PartIndex": "schema_version:one=1 part:name attempt_id:hex entries:Entry*=[] tables:Table*=[]",
    "Summary": "name:name rows:count logical_bytes:count",
    "Receipt": "schema_version:one=1 part:name attempt_id:hex index_digest:digest index_size:count "
    "entries:count records:count tables:Summary*=[] stored_bytes:count new_objects:count "
    "extensions:any%={}",
    "Features": "read:feature*=[] write:feature*=[] collect:feature*=[]",
    "Phase": 'name:text128 actor:writer="" started_at_ns:count ended_at_ns:count waited:text*=[] '
    "counts:count%={}",
    "Timeline": "schema_version:one=1 operation:operation phases:Phase*=[]",
    "Fingerprint": "schema_version:one=1 name:fingerprint digest:digest content:any%",
    "Anchor": "train_step:count trainer_version:count epoch:count bootstrap_fingerprint:text?",
    "Base": "number:count write_id:hex",
    "Manifest": "format_version:one=1 features:Features={} repository_id:hex number:count "
    "attempt_id:hex write_id:hex checksum:digest? base:Base? created_at_ns:count "
    "writer:writer parts:Receipt* "
    "fingerprints:Fingerprint*=[] anchor:Anchor? timeline:Timeline? user_metadata:any%={} "
    "extensions:any%={}",
    "Repository": "format_version:one=1 checksum:digest? repository_id:hex features:Features={} "
    "created_at_ns:count writer:writer capabilities:flag%={} extensions:any%={}",
}


def check(value: Any, kind: str, at: str) -> Any:
    """The value with its defaults filled in, if it is of that type."""
    if kind.endswith("?"):
        return None if value is None else check(value, kind[:-1], at)
    if kind.endswith("*") and isinstance(value, list):
        return [check(item, kind[:-1], f"{at}.{i}") for i, item in enumerate(value)]
    if kind.endswith("%") and isinstance(value, dict):
        return {key: check(item, kind[:-1], f"{at}.{key}") for key, item in value.items()}
    if kind in RECORDS and isinstance(value, dict):
        rest, result = dict(value), {}
        for field in RECORDS[kind].split():
            name, _, form = field.partition(":")
            form, given, default = form.partition("=")
            if name not in rest and not given and not form.endswith("?"):
                raise Damage(f"{at}.{name}: missing")
            other = json.loads(default) if given else None
            result[name] = check(rest.pop(name, other), form, f"{at}.{name}")
        if rest:
            raise Damage(f"{at}: unknown field {min(rest)!r}")
        if problem := RULES.get(kind, lambda _: "")(result):
            raise Damage(f"{at}: {problem}")
        return result
    if kind in TEXTS and isinstance(value, str):
        pattern, least, most = TEXTS[kind]
        good = least <= len(value) <= most and re.fullmatch(pattern, value, re.DOTALL)
    else:
        whole = type(value) is int and 0 <= value < 2**63
        flag = isinstance(value, bool)
        good = {"count": whole, "one": whole and value == 1, "flag": flag, "any": True}.get(kind)
    if not good:
        raise Damage(f"{at}: not a {kind}")
    return value


def repeats(values: list[str]) -> bool:
    return len({value.casefold() for value in values}) != len(values)


def part_rule(value: dict[str, Any]) -> str:
    paths = [entry["path"] for entry in value["entries"]]
    if repeats(paths) or repeats([table["name"] for table in value["tables"]]):
        return "a path or a table repeats"
    lost = [e for e in value["entries"] if e["index"] is not None and e["index"] not in paths]
    return "an index is not an entry" if lost else ""


def segment_rule(value: dict[str, Any]) -> str:
    whole, rows, live = value["live"] is None, value["rows"], value["live_rows"]
    names = [column["name"] for column in value["columns"]]
    fits = whole == (value["live_digest"] is None) and (live == rows if whole else live <= rows)
    return "" if fits and len(set(names)) == len(names) else "live rows or columns do not fit"


def root_rule(value: dict[str, Any]) -> str:
    rest = {name: item for name, item in value.items() if name != "checksum"}
    good = value["checksum"] == tagged(sha(canonical(rest)))
    return "" if good else "checksum is not that of the content"


def manifest_rule(value: dict[str, Any]) -> str:
    kinds = [item["name"] for item in value["fingerprints"]]
    bad = repeats([receipt["part"] for receipt in value["parts"]]) or len({*kinds}) != len(kinds)
    return "a part or a fingerprint repeats" if bad else root_rule(value)


def fingerprint_rule(value: dict[str, Any]) -> str:
    content = json.dumps(value["content"], sort_keys=True, separators=(",", ":")).encode()
    return "" if value["digest"] == tagged(sha(content)) else "digest is not that of the content"


def table_rule(value: dict[str, Any]) -> str:
    total = sum(item["live_rows"] for item in value["segments"])
    return "" if total == value["rows"] else "rows is not the sum of the live rows"


RULES: dict[str, Callable[[dict[str, Any]], str]] = {
    "PartIndex": part_rule,
    "Segment": segment_rule,
    "Manifest": manifest_rule,
    "Repository": root_rule,
    "Fingerprint": fingerprint_rule,
    "Table": table_rule,
    "Phase": lambda v: "" if v["started_at_ns"] <= v["ended_at_ns"] else "ends before it starts",
}


def document(kind: str, data: bytes, limit: int = MANIFEST_SIZE) -> dict[str, Any]:
    """A document of one kind; features and versions are looked at before anything else."""
    value = parse(data, limit)
    if isinstance(value, dict):
        features = value.get("features")
        for name in features.get("read") or [] if isinstance(features, dict) else []:
            raise Refused(f"it needs the feature {name!r} to be read")
        for name in ("format_version", "schema_version"):
            if f"{name}:" not in RECORDS[kind]:
                continue
            if name not in value:
                raise Damage(f"{kind} has no {name}")
            version = value[name]
            if type(version) is not int or version != 1:
                raise Refused(f"{name} is {version!r}, this reader knows 1")
    result: dict[str, Any] = check(value, kind, kind)
    return result


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def tagged(raw: bytes) -> str:
    return f"sha256:{raw.hex()}"
