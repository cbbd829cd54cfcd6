"""The text says what the code does: tables, field lists, examples, ids, and links."""

import inspect
import json
import re
import struct
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from snapfmt import errors
from snapfmt._version import FORMAT_VERSION
from snapfmt.cli import exitcodes
from snapfmt.errors import FormatError, MissingObject, SnapfmtError
from snapfmt.format import arrow_stream, batch_index, canonical, compat, jsonl, pack, tagged
from snapfmt.format.dtypes import LOGICAL, widenings
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.reading import report, verify
from snapfmt_coordinator.protocol.codes import STATUS
from snapfmt_schemas import lines, part
from snapfmt_schemas.registry import MODELS
from snapfmt_schemas.rows import ROW_SCHEMAS

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"
PAGES = sorted([*SPEC.glob("*.md"), *(SPEC / "v1").glob("*.md")])
EVERYTHING = sorted(SPEC.rglob("*.md"))
REQUIREMENT = re.compile(r"\*\*\[([A-Z]-\d+)\]")
REFERENCE = re.compile(r"\[([A-Z]-\d+)\]")
MARKED = re.compile(r"^<!-- (table|record|fields): ([\w.-]+) -->\n((?:\|.*\n)+)", re.MULTILINE)
FENCE = re.compile(r"^```json ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]*)`")


def tables() -> dict[tuple[str, str], list[list[str]]]:
    """Every marked table: its rows, each a list of cells, without the two lines of its head."""
    found = {}
    for page in PAGES:
        for kind, name, text in MARKED.findall(page.read_text(encoding="utf-8")):
            rows = [row.strip().strip("|").split("|") for row in text.splitlines()[2:]]
            assert (kind, name) not in found, f"{name} comes twice"
            found[kind, name] = [[cell.strip() for cell in row] for row in rows]
    return found


TABLES = tables()


def table(name: str, kind: str = "table") -> list[list[str]]:
    return TABLES[kind, name]


def code(cell: str) -> str:
    (text,) = CODE.findall(cell)
    return str(text)


def requirements() -> list[str]:
    return [name for page in PAGES for name in REQUIREMENT.findall(page.read_text("utf-8"))]


def test_every_requirement_has_a_number_of_its_own() -> None:
    found = requirements()
    assert len(found) > 50
    assert [name for name, times in Counter(found).items() if times > 1] == []


def test_every_reference_to_a_requirement_finds_it() -> None:
    known = set(requirements())
    lost = {
        f"{page.name}: {name}"
        for page in EVERYTHING
        for name in REFERENCE.findall(page.read_text("utf-8"))
        if name not in known
    }
    assert lost == set()


def test_every_mark_of_a_test_names_a_requirement() -> None:
    known = set(requirements())
    marks = re.compile(r"mark\.req\(([^)]*)\)")
    named = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("*.py")
        for text in marks.findall(path.read_text("utf-8"))
        for name in re.findall(r"\"([^\"]+)\"", text)
    }
    assert len({name for _, name in named}) > 25
    assert {place for place in named if place[1] not in known} == set()


def test_links_and_mentions_of_pages_lead_somewhere() -> None:
    lost = set()
    for page in EVERYTHING:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                lost.add(f"{page.name} -> {target}")
    for folder in ("snapfmt", "schemas", "coordinator"):
        for path in (ROOT / folder).rglob("*.py"):
            for target in re.findall(r"spec/[\w./-]+\.md", path.read_text("utf-8")):
                if not (ROOT / target).exists():
                    lost.add(f"{path.relative_to(ROOT)} -> {target}")
    assert lost == set()


def test_the_newest_text_is_that_of_the_format_version() -> None:
    versions = [int(path.name[1:]) for path in SPEC.glob("v[0-9]*")]
    assert max(versions) == FORMAT_VERSION


@pytest.mark.req("B-1")
def test_limits() -> None:
    said = {code(row[0]): int(row[1]) for row in table("limits")}
    held = {item.name: getattr(DEFAULT_LIMITS, item.name) for item in fields(DEFAULT_LIMITS)}
    assert said == held
    assert {code(row[3]) for row in table("limits")} <= codes().keys()


def test_every_limit_is_used_somewhere() -> None:
    text = "".join(
        path.read_text("utf-8")
        for path in (ROOT / "snapfmt").rglob("*.py")
        if path.name != "limits.py"
    )
    unused = [
        item.name
        for item in fields(DEFAULT_LIMITS)
        if not re.search(rf"limits\.{item.name}\b|_LIMITS\.{item.name}\b|\"{item.name}\"", text)
    ]
    assert unused == []


def codes() -> dict[str, type[SnapfmtError]]:
    kinds = [item for item in vars(errors).values() if isinstance(item, type)]
    held = [item for item in kinds if issubclass(item, SnapfmtError)]
    found = {item.code: item for item in held}
    assert len(found) == len(held), "two errors share a code"
    return found


@pytest.mark.req("E-1")
def test_errors() -> None:
    said = {(code(row[0]), code(row[1]), "".join(CODE.findall(row[2]))) for row in table("errors")}
    held = {
        (
            error.__name__,
            error.code,
            "" if error is SnapfmtError else error.__mro__[1].__name__,
        )
        for error in codes().values()
    }
    assert said == held


@pytest.mark.req("E-2")
def test_exit_codes() -> None:
    said = {code(row[1]): int(row[0]) for row in table("exit-codes")}
    assert said == {item.name: int(item) for item in exitcodes.ExitCode}
    for error in codes().values():
        if issubclass(error, (errors.CorruptError, MissingObject)):
            wanted = 3
        elif issubclass(error, (errors.NotFoundError, errors.RefusedError)):
            wanted = 4
        else:
            wanted = 1
        assert int(exitcodes.of(error("x"))) == wanted


@pytest.mark.req("T-5", "T-6")
def test_dtypes() -> None:
    said = {code(row[0]): (code(row[1]), tuple(CODE.findall(row[2]))) for row in table("dtypes")}
    held = {name: (stored, widenings(name)[:-1]) for name, stored in LOGICAL.items()}
    assert said == held


def test_kinds() -> None:
    said = [code(row[0]) for row in table("kinds")]
    kinds = part.ColumnSpec.model_json_schema()["properties"]["kind"]["enum"]
    assert said == kinds


@pytest.mark.req("R-6")
def test_tags() -> None:
    said = {code(row[0]) for row in table("tags")}
    text = inspect.getsource(tagged)
    assert said == {f"${name}" for name in re.findall(r"[\"`]\$([a-z]+)[\"`]", text)}
    assert set(CODE.findall(table("scalars")[0][0])) == tagged._SCALARS
    for tag in said:
        with pytest.raises(FormatError, match="not tagged JSON"):
            tagged.decode(f'{{"{tag}": 5}}')


@pytest.mark.req("R-7")
def test_a_tag_that_the_text_does_not_list_is_refused() -> None:
    with pytest.raises(FormatError, match="unknown tag"):
        tagged.decode('{"$decimal": "1"}')


def test_verify_rules() -> None:
    said = {(code(row[0]), row[1]) for row in table("verify-rules")}
    assert {severity for _, severity in said} == set(verify.Severity.__args__)  # type: ignore[attr-defined]
    text = inspect.getsource(verify)
    named = set(re.findall(r"_find\(\s*\"([a-z]+)\"", text))
    named |= set(re.findall(r"\brule(?:, text)? = (?:\()?\"([a-z]+)\"", text))
    named |= set(re.findall(r"return \(?\"([a-z]+)\"", inspect.getsource(report.rule_of)))
    assert named == {rule for rule, _ in said}
    listed = re.search(r"Stable name: ([a-z,\s]+)\.", inspect.getsource(report))
    assert listed is not None
    assert set(re.split(r",\s+", listed[1])) == named


def test_registry() -> None:
    said = {(code(row[0]), int(row[1])) for row in table("registry")}
    assert said == set(MODELS)
    published = ROOT / "schemas" / "snapfmt_schemas" / "published" / "v1"
    for name, version in said:
        assert (published / f"{name}.v{version}.schema.json").is_file()


def test_refusals() -> None:
    said = {code(row[0]): int(row[1]) for row in table("refusals")}
    assert said == dict(STATUS)


def test_row_schemas() -> None:
    said = {code(row[0]) for row in table("row-schemas")}
    assert said == {schema.schema_id for schema in ROW_SCHEMAS.values()}


@pytest.mark.req("F-2")
def test_features() -> None:
    said = {row[0]: set(CODE.findall(row[1])) for row in table("features")}
    assert said == {name: set(known) for name, known in compat.KNOWN.items()}


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("jsonl-index", jsonl.INDEX_SCHEMA),
        ("batch-index", batch_index.INDEX_SCHEMA),
        ("keys-index", batch_index.KEYS_SCHEMA),
    ],
)
def test_index_schemas(name: str, schema: pa.Schema) -> None:
    said = [(code(row[0]), row[1]) for row in table(name)]
    held = [(field.name, str(field.type).replace("item: ", "")) for field in schema]
    assert said == held
    assert all(field.nullable for field in schema)


@pytest.mark.req("L-8")
def test_pack_header() -> None:
    rows = [(int(row[0]), int(row[1])) for row in table("pack")]
    assert all(a + b == c for (a, b), (c, _) in pairwise(rows))
    assert sum(rows[-1]) == pack.HEADER_SIZE
    data = pack.header("11" * 16, "22" * 16)
    assert [data[a : a + b] for a, b in rows] == [
        b"SNAPPACK",
        struct.pack("<I", 1),
        struct.pack("<I", 64),
        b"\x11" * 16,
        b"\x22" * 16,
        bytes(16),
    ]


@pytest.mark.req("T-13")
def test_batch_header() -> None:
    nodes = [(3, 0), (3, 1), (7, 0)]
    places = [(0, 0), (0, 40), (64, 11), (128, 64), (192, 16)]
    names = {"BODY": 256, "ROWS": 3, "BUFFERS": 36 + 16 * len(nodes), "NODES": len(nodes)}
    flat = b""
    for row in table("batch-header"):
        assert len(flat) == int(row[0])
        values = [names[word] if word in names else int(word) for word in row[2].split()]
        flat += struct.pack("<" + code(row[1]), *values)
    flat += b"".join(struct.pack("<qq", *node) for node in nodes)
    flat += bytes(4) + struct.pack("<I", len(places))
    flat += b"".join(struct.pack("<qq", *place) for place in places)
    flat += bytes(-(len(flat) + 8) % 64)
    wanted = arrow_stream.batch_header(3, nodes, places, 256)
    assert wanted == struct.pack("<Ii", 0xFFFFFFFF, len(flat)) + flat


RECORDS = {f"{name}": model for (name, _), model in MODELS.items()}


@pytest.mark.parametrize(
    ("kind", "name"), [key for key in TABLES if key[0] in ("record", "fields")], ids=str
)
def test_fields_of_records(kind: str, name: str) -> None:
    model: type[BaseModel] = RECORDS[name] if kind == "record" else getattr(part, name)
    said = {code(row[0]): row[2] for row in table(name, kind)}
    assert set(said) == set(model.model_fields)
    for field, default in said.items():
        info = model.model_fields[field]
        assert info.is_required() == (default == "required"), field
        if default.startswith("`"):
            value = info.get_default(call_default_factory=True, validated_data={})
            value = list(value) if isinstance(value, tuple) else value
            assert json.loads(code(default)) == value, field


def test_every_marked_table_is_compared() -> None:
    text = Path(__file__).read_text("utf-8")
    asked = set(re.findall(r"\btable\(\"([\w-]+)\"", text))
    asked |= set(re.findall(r"^        \(\"([\w-]+)\", \w+\.\w+_SCHEMA\)", text, re.MULTILINE))
    assert {name for kind, name in TABLES if kind == "table"} == asked


def examples() -> list[Any]:
    found = []
    for page in PAGES:
        for head, text in FENCE.findall(page.read_text("utf-8")):
            marks = dict(re.findall(r'(\w+)="([^"]*)"', head))
            assert marks, f"{page.name}: a JSON fence says what it shows"
            name = f"{page.name}: {marks['record']} {marks.get('title', '')}"
            found.append(pytest.param(marks, text, id=name))
    return found


@pytest.mark.parametrize(("marks", "text"), examples())
def test_examples_are_what_they_say(marks: dict[str, str], text: str) -> None:
    model = RECORDS[marks["record"]]

    def read() -> BaseModel:
        if marks["record"] == "snapfmt.continuation":
            try:
                return lines.from_line(model, text.encode())
            except ValueError as error:
                raise FormatError(str(error)) from error
        return canonical.decode(text.encode(), model, what="example", size_limit=1 << 20)

    if "error" not in marks:
        read()
        return
    with pytest.raises(SnapfmtError) as caught:
        read()
    assert caught.value.code == marks["error"]


def test_there_are_good_and_bad_examples() -> None:
    marks = [example.values[0] for example in examples()]
    good = {item["record"] for item in marks if "error" not in item}
    assert good >= {f"snapfmt.{name}" for name in ("repository", "manifest", "receipt", "ticket")}
    assert sum("error" in item for item in marks) >= 4
