"""Fuzz targets: JSON documents, records, tagged values, names and URLs."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from snapfmt.errors import SnapfmtError
from snapfmt.format import canonical, compat, digest, layout, reach, tagged
from snapfmt.reading.snapshot import _record
from snapfmt.storage import s3_url
from snapfmt.testing.forgery import canonical as canonical_json
from snapfmt.testing.fuzzing import LIMITS, Ground, Prepared, Target, Wrong
from snapfmt.testing.golden import Golden
from snapfmt_schemas import lines
from snapfmt_schemas._base import Record
from snapfmt_schemas.agent import AgentBoundaryRecord, BoundaryHead, PendingModel
from snapfmt_schemas.attempt import Lease, Receipt, Ticket
from snapfmt_schemas.completion import CompletionReceipt
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.lineage import ModelLineageRow
from snapfmt_schemas.manifest import Manifest, RepositoryDocument
from snapfmt_schemas.part import PartIndex
from snapfmt_schemas.pin import Pin
from snapfmt_schemas.registry import MODELS
from snapfmt_schemas.replay import KVBatchMeta, ReplayGroup, ReplayIndex

WHAT = "hostile"
D = TypeVar("D", Manifest, RepositoryDocument)
Seeds = Callable[[Golden], list[bytes]]
ID = "0" * 32


def targets() -> Iterator[Target]:
    """Every target of this module."""
    yield Target(name="json", prepare=_json, json=True)
    yield Target(name="tagged", prepare=_tagged, json=True)
    for name, model, seeds in _DOCUMENTS:
        yield Target(name=name, prepare=_document(model, seeds), json=True)
    roots = {
        "manifest": _root("manifest", Manifest),
        "repository": _root("repository", RepositoryDocument),
    }
    for name, prepare in roots.items():
        yield Target(name=name, prepare=prepare, json=True, longest=16 * 1024, cost=2)
    yield Target(name="part-index", prepare=_part_index, json=True, longest=32 * 1024, cost=4)
    for (schema, version), model in sorted(MODELS.items()):
        name = f"line:{schema.removeprefix('snapfmt.')}.v{version}"
        yield Target(name=name, prepare=_line(model), json=True)
    yield Target(name="names", prepare=_names)
    yield Target(name="s3-url", prepare=_s3_url)


def same(first: object, second: object) -> None:
    """What was read is what is written and read again."""
    if first != second:
        raise Wrong(f"read {first!r:.300}, written and read again {second!r:.300}")


def _json(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        value = canonical.parse(data, what=WHAT, size_limit=LIMITS.manifest_size, limits=LIMITS)
        canonical.check_strict(value, what=WHAT, depth=LIMITS.json_depth)
        text = canonical_json(value)
        again = canonical.parse(text, what=WHAT, size_limit=len(text), limits=LIMITS)
        same(text, canonical_json(again))

    golden = Golden(ground.vectors)
    odd = [b'{"a":[1,-0.0,1e-5,true,null,"\\ud83d\\ude00"]}', b"[" * 63 + b"]" * 63, b"1" * 4300]
    return Prepared(run, [*odd, *golden.documents("continuation"), *golden.documents("tagged")])


def _tagged(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        text = tagged.encode(tagged.decode(data))
        same(text, tagged.encode(tagged.decode(text)))

    seeds = Golden(ground.vectors).documents("tagged")
    return Prepared(run, [*seeds, b'{"$numpy":["float16","0000"]}', "é".encode("utf-16")])


_DOCUMENTS: tuple[tuple[str, type[Record], Seeds], ...] = (
    ("ticket", Ticket, lambda golden: golden.documents("ticket")),
    ("receipt", Receipt, lambda golden: [_dump(receipt) for receipt, _ in golden.parts]),
    ("lease", Lease, lambda _: [_dump(_lease())]),
    ("pin", Pin, lambda _: [_dump(Pin(name="best", number=7, created_at_ns=1))]),
)


def _dump(record: Record) -> bytes:
    return canonical.encode(record)


def _lease() -> Lease:
    text = {
        "attempt_id": ID,
        "number": 1,
        "base": None,
        "started_at_ns": 1,
        "expires_at_ns": 2,
        "owner": {"host": "node-3", "boot_id": "b", "pid": 4711, "pid_started": "x:1"},
        "schema_version": 1,
    }
    return Lease.model_validate(text)


def _document(model: type[Record], seeds: Seeds) -> Callable[[Ground], Prepared]:
    def run(data: bytes) -> None:
        found = canonical.decode(
            data, model, what=WHAT, size_limit=LIMITS.lease_size, limits=LIMITS
        )
        text = canonical.encode(found)
        again = canonical.decode(text, model, what=WHAT, size_limit=len(text), limits=LIMITS)
        same(found, again)

    return lambda ground: Prepared(run, seeds(Golden(ground.vectors)))


def _root(kind: str, model: type[D]) -> Callable[[Ground], Prepared]:
    def decode(data: bytes) -> D:
        return compat.decode_root(
            data, model, what=WHAT, size_limit=LIMITS.manifest_size, limits=LIMITS
        )

    def run(data: bytes) -> None:
        try:
            value = json.loads(data.decode("utf-8"))
            sealed = _sealed(value) if isinstance(value, dict) else data
        except (ValueError, RecursionError):
            sealed = data
        found = decode(sealed)
        same(found, decode(canonical.encode(found)))
        same(found, found.sealed())

    return lambda ground: Prepared(run, Golden(ground.vectors).documents(kind))


def _sealed(value: dict[str, Any]) -> bytes:
    """With the checksum of the content; fields that a reader fills in count as filled in."""
    try:
        plain = {name: item for name, item in value.items() if name != "checksum"}
        model = Manifest if "parts" in value else RepositoryDocument
        mark = model.model_validate_json(json.dumps(plain)).content_digest()
    except ValueError:
        mark = digest.digest_of(canonical_json(plain))
    return canonical_json(plain | {"checksum": mark})


def _part_index(ground: Ground) -> Prepared:
    golden = Golden(ground.vectors)
    receipts = {(item.part, item.attempt_id): item for item, _ in golden.parts}

    def run(data: bytes) -> None:
        # The receipt says what the index says, so that more than its digest is looked at.
        for receipt in receipts.values():
            if receipt.part.encode() in data:
                break
        made = receipt.model_copy(
            update={"index_digest": digest.digest_of(data), "index_size": len(data)}
        )
        found = reach.decode_index(data, made, LIMITS)
        reach.objects(made, found)
        text = canonical.encode(found)
        again = canonical.decode(
            text, PartIndex, what=WHAT, size_limit=max(len(text), 1), limits=LIMITS
        )
        same(found, again)

    return Prepared(run, [data for _, data in golden.parts if len(data) < 32 * 1024])


def _line(model: type[Record]) -> Callable[[Ground], Prepared]:
    def run(data: bytes) -> None:
        together = lines.from_lines(model, [data])
        try:
            found = _record(data, model, WHAT)
        except SnapfmtError as error:
            if together is not None:
                raise Wrong(f"{data!r:.300} is refused alone and not among others") from error
            raise
        try:
            line = lines.to_line(found)
        except ValueError as error:
            # A number beyond a double is read as an infinity, which is never written.
            if "Out of range float" not in str(error):
                raise
            return
        again = lines.from_line(model, line)
        for record in together or ():
            same(line, lines.to_line(record))
        same(line, lines.to_line(again))

    return lambda ground: Prepared(run, [*_examples(model, Golden(ground.vectors))])


def _examples(model: type[Record], golden: Golden) -> list[bytes]:
    kind = model.SCHEMA.removeprefix("snapfmt.")
    found = [text.replace(b"\n", b" ") for text in golden.documents(kind)]
    found += [lines.to_line(record) for record in records() if type(record) is model]
    return [*found, json.dumps(example(model.model_json_schema())).encode(), b"{}"]


def records() -> Iterator[Record]:
    """Those whose rules no schema tells."""
    run: dict[str, Any] = {"rollout_id": "p7_g0", "attempt_index": 1}
    boundary = AgentBoundaryRecord(
        **run,
        boundary_index=2,
        turn_index=2,
        boundary_kind="pending_model",
        pending_model=PendingModel(model_call_id="c2", response={"id": [1, 1e5, None]}),
        output_items=({"role": "user", "n": 10**30},),
        last_committed_model_call_id="c1",
        resource_state_revisions={"shell": 2},
        agent_state={"deep": [[[{}]]]},
        created_at=1.5,
    )
    yield boundary
    yield BoundaryHead.of(boundary)
    yield CompletionReceipt(
        **run, execution_generation=1, result_identity="r", result_digest="0" * 64
    )
    yield Fingerprint.of("recipe", {"model": "m", "steps": [1, 2.5]})
    yield ModelLineageRow(
        model_call_id="c1", staging_key="p7_g0-a1/c1", weight_version=1, prev_len=3, delta_len=4,
        cum_len=7, mode="token_in", parent_call_id="c0", staging_chain=("p7_g0-a1/c0",),
    )  # fmt: skip
    meta = KVBatchMeta(partition_id="train", sample_ids=("g_g0", "g_g1"), sequence_lengths=(3, 4))
    group = ReplayGroup(meta=meta, start_weight=1, end_weight=2, group_id="g")
    yield ReplayIndex.of([group], partition_id="train", saved_capacity=4)


def example(schema: dict[str, Any], node: Any = None, room: int = 12) -> Any:
    """A value of a JSON Schema's form; rules between fields it does not know."""
    node = schema if node is None else node
    if "$ref" in node:
        return example(schema, schema["$defs"][node["$ref"].rpartition("/")[2]], room - 1)
    for name in ("const", "default"):
        if name in node:
            return node[name]
    for name in ("enum", "anyOf", "oneOf", "allOf", "prefixItems"):
        if node.get(name):
            first = node[name][0]
            return first if name == "enum" else example(schema, first, room - 1)
    kind = node.get("type")
    if kind == "object":
        members = node.get("properties", {}) if room > 0 else {}
        return {name: example(schema, item, room - 1) for name, item in members.items()}
    if kind == "array":
        few = range(max(node.get("minItems", 1), 1) if room > 0 else 0)
        return [example(schema, node.get("items", {}), room - 1) for _ in few]
    if kind in ("integer", "number"):
        return max(node.get("minimum", 1), node.get("exclusiveMinimum", 0) + 1)
    return _text(node) if kind == "string" else {"integer": 1, "boolean": True}.get(kind or "")


def _text(node: dict[str, Any]) -> str:
    pattern = node.get("pattern", "")
    for text in ("sha256:" + "0" * 64, ID, "gym/agent/swe", "name", "1"):
        if not pattern or re.search(pattern, text):
            return text
    return "x" * int(node.get("minLength", 1))


def _names(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        number = layout.snapshot_number(text)
        if number is not None:
            same(text, layout.snapshot_name(number))
        mark = layout.object_digest(text)
        if mark is not None:
            same(text, layout.object_key(mark))
        if layout.is_attempt_id(text):
            same(text, bytes.fromhex(text).hex())

    keys = [layout.manifest_key(7), layout.snapshot_name(42), ID, "objects/ab/" + "ab" * 32]
    return Prepared(run, [key.encode() for key in keys])


def _s3_url(ground: Ground) -> Prepared:
    def run(data: bytes) -> None:
        url, _, options = data.decode("utf-8", "surrogatepass").partition("\n")
        try:
            given = json.loads(options) if options else None
        except (ValueError, RecursionError):
            given = options
        place = s3_url.parse(url, given)
        location = place.location
        same(location, s3_url.parse(location, None).location)

    seeds = [
        b"s3://bucket/a/b?endpoint_url=http://host:9000&anon=true",
        b"s3a://bucket",
        b's3://bucket/run\n{"client_kwargs": {"endpoint_url": "http://[::1]:9"}, "anon": "no"}',
        b's3://b1/%C3%A9?profile=x%20y\n{"key": "k", "config_kwargs": {"s3": {}}}',
    ]

    def guarded(data: bytes) -> None:
        try:
            data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return
        run(data)

    return Prepared(guarded, seeds)
