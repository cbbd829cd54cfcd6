"""Makes the vectors again: `python spec/vectors/generate.py [DIR]`.

The golden repository, its expected dumps, the documents, and SHA256SUMS of them, by default under
`v1/`. Time, ids and nonces are fixed, so that two runs give the same bytes with the same versions
of pyarrow and zstandard; with others compressed bytes may differ, and the dumps may not.
"""

import hashlib
import itertools
import json
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import zstandard

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "minireader"))
sys.path.insert(1, str(HERE))
import cases  # noqa: E402
import minireader  # noqa: E402

from snapfmt import MISSING, Repository  # noqa: E402
from snapfmt.format import jsonl  # noqa: E402
from snapfmt.format.columns import Column, Signature, offsets_of  # noqa: E402
from snapfmt.format.dtypes import LOGICAL, storage_dtype  # noqa: E402
from snapfmt.writing import part as part_module  # noqa: E402
from snapfmt.writing import table as table_module  # noqa: E402
from snapfmt.writing.attempt import Attempt  # noqa: E402
from snapfmt.writing.part import PartWriter  # noqa: E402
from snapfmt.writing.rows import Converter  # noqa: E402
from snapfmt_schemas import Continuation  # noqa: E402
from snapfmt_schemas.attempt import Receipt  # noqa: E402
from snapfmt_schemas.fingerprint import Fingerprint  # noqa: E402
from snapfmt_schemas.manifest import TrainerAnchor  # noqa: E402
from snapfmt_schemas.timeline import Phase, PhaseTimeline  # noqa: E402

WRITER = "snapfmt 0.1.0"
"""What wrote this golden repository; a later library makes a new one beside it."""
GOLDEN = "golden-0.1.0"
FLOATS = {"float16", "float32", "float64", "bfloat16"}


@dataclass(frozen=True)
class Bits:
    """A tensor of any logical dtype, without torch: its shape and its little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    raw: bytes


def _column(signature: Signature, values: Sequence[Any]) -> Column:
    dtype = storage_dtype(signature.dtype)
    flat = [np.frombuffer(b"" if v is MISSING else v.raw, dtype) for v in values]
    there = np.array([v is not MISSING for v in values], np.bool_)
    shapes = None
    if signature.ndim > 1:
        gone = (0,) * signature.ndim
        shapes = np.array([gone if v is MISSING else v.shape for v in values], np.int64)
    lengths = np.array([len(piece) for piece in flat], np.int64)
    present = None if there.all() else there
    return Column(signature, np.concatenate(flat), offsets_of(lengths), present, shapes)


_CONVERTER = Converter(
    signature=lambda v: Signature("tensor", v.dtype, len(v.shape)),
    uniform=lambda _: None,
    column=_column,
    sizes=lambda values: np.array([len(v.raw) for v in values], np.int64),
    rows=lambda v: [v],
    together=lambda _: None,
)


def bits(dtype: str, values: Any) -> Bits:
    """A tensor of plain numbers; for floats that numpy lacks, of their bit patterns."""
    stored = np.asarray(values, dtype=np.dtype(LOGICAL[dtype]).newbyteorder("<"))
    return Bits(dtype, stored.shape, stored.tobytes())


def pattern(dtype: str, shape: tuple[int, ...], seed: int) -> Bits:
    """A tensor of that shape whose bits look random and are always the same."""
    size = int(np.prod(shape, dtype=np.int64)) * storage_dtype(dtype).itemsize
    raw = b"".join(hashlib.sha256(f"{dtype} {seed} {i}".encode()).digest() for i in range(99))
    if dtype == "bool":
        raw = bytes(byte & 1 for byte in raw)
    return Bits(dtype, shape, (raw * (size // len(raw) + 1))[:size])


def gym_agent(part: PartWriter) -> Receipt:
    """Continuations, a record file in several frames, opaque bytes."""
    part.records(
        "continuations.jsonl",
        [
            Continuation(
                rollout_id=f"p7_g{n}",
                attempt_index=n,
                capture_key=f"p7_g{n}-a{n}" if n else "p7_g0",
                last_committed_model_call_id=f"call-{n}",
                resource_state_revisions={"shell": n} if n else None,
            )
            for n in range(3)
        ],
        key="capture_key",
    )
    lines = [json.dumps({"n": n, "text": "turn é " * n}).encode() for n in range(24)]
    part.records("turns.jsonl", lines)
    part.records("nothing.jsonl", [])
    part.stage("boundaries/p7_g0.json", b'{"z": 1, "a": 123456789012345678901234567890}')
    part.stage("empty.bin", b"")
    return part.seal()


def unit(part: PartWriter, position: int, rows: int) -> Receipt:
    """A storage unit's rows of one partition, as the TransferQueue adapter lays them out."""
    with part.table("rows/train") as table:
        indexes = range(position, 2 * rows, 2)
        columns: dict[str, list[Any]] = {
            "__global_index__": [bits("int64", i) for i in indexes],
            "input_ids": [
                bits("int64", [(7 * i + j) % 151_000 for j in range(3 + i % 4)]) for i in indexes
            ],
            "generation_logprobs": [pattern("bfloat16", (3 + i % 4,), i) for i in indexes],
            "token_mask": [bits("float32", [1.0] * (3 + i % 4)) for i in indexes],
            "total_reward": [bits("float32", i / 4) for i in indexes],
        }
        # The last row has no reward yet, so that the unit writes it as rows of another kind.
        last = {name: values[-1:] for name, values in columns.items() if name != "total_reward"}
        keys = [f"p7_g{i}" for i in indexes]
        table.append(keys[:-1], {name: values[:-1] for name, values in columns.items()})
        table.append([f"#{indexes[-1]}"], last)
    return part.seal()


def controller(part: PartWriter, rows: int) -> Receipt:
    """The queue's own state, in the shape that the adapter gives it."""
    document = {
        "indexes": {"allocated": [[0, 2 * rows]], "counter": 2 * rows, "reusable": []},
        "partitions": [],
        "sampler": {"name": "sampling:Sequential", "settings": {}, "state": "{}"},
        "schema_version": 1,
        "transfer_queue_version": "0.1.11",
        "units": 2,
        "user_metadata": {},
    }
    media_type = "application/vnd.snapfmt.transfer-queue.v1+json"
    part.stage("controller.json", json.dumps(document).encode(), media_type=media_type)
    with part.table("state/train") as table:
        indexes = list(range(2 * rows))
        table.append(
            [f"p7_g{i}" for i in indexes],
            {
                "global_index": [bits("int64", i) for i in indexes],
                "flags": [bits("bool", [1, 0, 1, 1]) for _ in indexes],
                "produced": [bits("int8", [1, 1, 1, i < 6]) for i in indexes],
                "consumed": [bits("int8", []) for _ in indexes],
                "tag": [
                    {"group": "p7", "weights": (i, 1.5)} if i % 2 else MISSING for i in indexes
                ],
            },
        )
    return part.seal()


def types(part: PartWriter) -> Receipt:
    """Every kind, every logical dtype, every shape, missing cells and mixed types."""
    shapes: tuple[tuple[int, ...], ...] = ((), (0,), (5,), (2, 3), (0, 4), (2, 1, 2))
    with part.table("types/tensor") as table:
        for shape in shapes:
            keys = [f"{len(shape)}d {shape}", f"{len(shape)}d {shape} again"]
            columns = {
                dtype: [pattern(dtype, shape, 1), pattern(dtype, shape, 2)]
                for dtype in (LOGICAL if len(shape) < 3 else ("int64",))
            }
            table.append(keys, columns)
    with part.table("types/ndarray", schema_id="") as table:
        names = ("bool", "int8", "uint64", "float16", "float64")
        for shape in ((), (2, 3)):
            columns = {
                name: [np.frombuffer(pattern(name, shape, 3).raw, np.dtype(name)).reshape(shape)]
                for name in names
            }
            table.append([f"{shape}"], columns)
    exact = np.array([0x80000000, 0x7FC00001, 0xFFC00001, 0x00000001, 0x7F800000], np.uint32)
    with part.table("types/exact") as table:
        table.append(["-0.0, NaN payloads, a denormal, infinity"], {"x": [exact.view("<f4")]})
    with part.table("types/narrow") as table:
        # Each append fits a wider type than the one before; then the narrow one no longer comes.
        for step, top in enumerate((200, 2**31 - 1, 2**63 - 1, 5)):
            columns = {
                "int64": [bits("int64", [0, top, n]) for n in range(4)],
                "int32": [bits("int32", [0, min(top, 2**31 - 1), n]) for n in range(4)],
                "uint64": [bits("uint64", [0, top if top < 256 else 2 * top, n]) for n in range(4)],
                "negative": [bits("int64", -n) for n in range(4)],
            }
            table.append([f"step {step} row {n}" for n in range(4)], columns)
    with part.table("types/mixed") as table:
        values: list[Any] = [
            "text", "", "é😀", b"\x00\xff", b"", None, True, 1, 2**70, -1.5, float("nan"),
            float("-inf"), [1, [2]], (1, ("a",)), {3, 1}, frozenset({"x"}), {"a": {"b": 1}},
            {1: "x", None: 2, (1, 2): 3}, {"$tuple": 1}, b"bytes", bytearray(b"x"), "\ud800",
            "\ud83d\ude00", np.float32(0.1), np.int64(-5), np.bool_(1), MISSING,
            {"in": b"side", "deep": [(float("inf"),)]},
        ]  # fmt: skip
        table.append(
            [f"{n:02d}" for n in range(len(values))],
            {"cell": values, "other": [bits("uint8", n) for n in range(len(values))]},
        )
    with part.table("types/missing") as table:
        columns = {
            "scalar": [bits("float32", n) if n % 2 else MISSING for n in range(9)],
            "vector": [bits("int16", range(n)) if n % 3 else MISSING for n in range(9)],
            "matrix": [pattern("float16", (n, 2), n) if n % 4 else MISSING for n in range(9)],
            "text": [f"row {n}" if n % 5 else MISSING for n in range(9)],
            "bytes": [bytes(n) if n % 2 else MISSING for n in range(9)],
            "value": [{"n": n} if n % 2 else MISSING for n in range(9)],
            "long": [pattern("uint8", (300,), 4) for _ in range(9)],
            "flat": [bits("int32", [n] * 500) for n in range(9)],
        }
        table.append([f"row {n}" for n in range(9)], columns)
    _selection(part)
    return part.seal()


def _selection(part: PartWriter) -> None:
    """A segment with dead rows: no writer of this version makes one, every reader reads it."""
    rows = 11
    with part.table("types/live") as table:
        table.append(
            [f"row {n}" for n in range(rows)], {"n": [bits("int32", n) for n in range(rows)]}
        )
    live = [n % 3 != 1 for n in range(rows)]
    bitmap = np.packbits(live, bitorder="little").tobytes()
    extent = part._packs.entry(bitmap, "live rows")
    whole = table.table

    def selected() -> Any:
        document, first = whole(), 0
        segments = []
        for item in document.segments:
            own = np.packbits(live[first : first + item.rows], bitorder="little").tobytes()
            assert own == bitmap, "one segment"
            digest = "sha256:" + hashlib.sha256(own).hexdigest()
            update = {"live": extent.location(), "live_digest": digest, "live_rows": sum(live)}
            segments.append(item.model_copy(update=update))
            first += item.rows
        return document.model_copy(update={"segments": tuple(segments), "rows": sum(live)})

    table.table = selected  # type: ignore[method-assign]


def first_snapshot(attempt: Attempt) -> None:
    receipts = [
        gym_agent(attempt.part("gym/agent/swe-0", workers=1)),
        unit(attempt.part("rl/tq/unit-0000", workers=1), 0, 4),
        unit(attempt.part("rl/tq/unit-0001", workers=1), 1, 4),
        controller(attempt.part("rl/tq/controller", workers=1), 4),
        types(attempt.part("types", workers=1)),
    ]
    attempt.publish(
        receipts,
        fingerprints=[
            Fingerprint.of("topology", {"participants": ["swe-0", "shell"]}),
            Fingerprint.of("recipe", {"lr": 1e-05, "name": "é", "steps": 100}),
        ],
        anchor=TrainerAnchor(train_step=120, trainer_version=119, epoch=0),
        timeline=PhaseTimeline(
            operation="save",
            phases=(
                Phase(name="cut", actor="rl", started_at_ns=10, ended_at_ns=12, counts={"rows": 8}),
            ),
        ),
        user_metadata={"note": "é\n", "ratio": 0.1, "big": 2**70, "list": [None, True, -0.0]},
    )


def second_snapshot(attempt: Attempt) -> None:
    receipts = [
        unit(attempt.part("rl/tq/unit-0000", workers=1), 0, 6),
    ]
    attempt.publish(receipts, anchor=TrainerAnchor(train_step=140, trainer_version=139, epoch=1))


def _fixed() -> ExitStack:
    """Nothing of this run's time, chance or machine is in the bytes; and small things are cut."""
    numbers = itertools.count()
    # It stands still: how often the library looks at it is nobody's business.
    now = 1_760_000_000_000_000_000

    def token(size: int = 32) -> str:
        return hashlib.sha256(f"snapfmt golden {next(numbers)}".encode()).hexdigest()[: 2 * size]

    found = {"exclusive_rename": True, "hard_link": True, "directory_fsync": True}
    stack = ExitStack()
    for target, name, value in (
        (secrets, "token_hex", token),
        (time, "time_ns", lambda: now),
        (part_module, "converter_for", lambda kind: _CONVERTER if kind is Bits else None),
        (table_module, "BATCH_ROWS", 4),
        (jsonl, "FRAME_TARGET", 512),
    ):
        stack.enter_context(mock.patch.object(target, name, value))
    stack.enter_context(mock.patch("snapfmt.storage.local.probe", return_value=found))
    stack.enter_context(mock.patch("snapfmt.writing.attempt.WRITER", WRITER))
    stack.enter_context(mock.patch("snapfmt.writing.founding.__version__", WRITER.split()[1]))
    return stack


def write_repository(folder: Path) -> None:
    """The golden repository, into a new folder."""
    with _fixed():
        repository = Repository.open(folder, create=True)
        first_snapshot(repository.begin())
        second_snapshot(repository.begin(base=1))
    for name in ("attempts", "pins"):
        # Empty folders are not part of the format, and no version control keeps them.
        if (folder / name).is_dir():
            (folder / name).rmdir()


def write_expected(repository: Path, folder: Path) -> None:
    """What any reader must find in it, as the small reader says."""
    folder.mkdir()
    reader = minireader.Repository(str(repository))
    for number in reader.numbers():
        text = json.dumps(reader.snapshot(number), indent=1, ensure_ascii=False)
        (folder / f"snapshot_{number:06d}.json").write_text(text + "\n", encoding="utf-8")
    made_with = {
        "pyarrow": pa.__version__,
        "zstandard": zstandard.__version__,
        "zstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
    }
    (folder / "made-with.json").write_text(json.dumps(made_with, indent=1) + "\n")


def sums(folder: Path) -> Iterator[str]:
    """Lines of SHA256SUMS for everything below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "SHA256SUMS":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            yield f"{digest}  {path.relative_to(folder).as_posix()}\n"


def main(arguments: list[str]) -> int:
    target = Path(arguments[0]) if arguments else HERE / "v1"
    golden = target / GOLDEN
    if golden.exists():
        shutil.rmtree(golden)
    golden.mkdir(parents=True)
    write_repository(golden / "repository")
    write_expected(golden / "repository", golden / "expected")
    text = json.dumps(cases.documents(), indent=1, ensure_ascii=True)
    (target / "documents.json").write_text(text + "\n")
    (target / "SHA256SUMS").write_text("".join(sums(target)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
