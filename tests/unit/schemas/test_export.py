"""Published schema files are fresh, complete and true."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.export import PUBLISHED, file_name, main, render
from snapfmt_schemas.lines import to_value
from snapfmt_schemas.registry import MODELS
from snapfmt_schemas.rows import ROW_SCHEMAS

SCHEMA_IDS = sorted(MODELS)


def published(key: tuple[str, int]) -> dict[str, Any]:
    text = (PUBLISHED / file_name(MODELS[key])).read_text("utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def test_the_published_files_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_there_is_one_file_per_schema() -> None:
    assert len(render()) == len(MODELS) + len(ROW_SCHEMAS)


def test_rendering_is_deterministic() -> None:
    assert render() == render()
    assert all(data.endswith(b"}\n") for data in render().values())


def test_check_names_stale_missing_and_extra_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--directory", str(tmp_path / "v1")]
    assert main(["--check", *where]) == 1
    assert main(where) == 0
    assert main(["--check", *where]) == 0
    stale = tmp_path / "v1" / "snapfmt.continuation.v1.schema.json"
    stale.write_bytes(stale.read_bytes() + b" ")
    (tmp_path / "v1" / "snapfmt.lease.v1.schema.json").unlink()
    (tmp_path / "v1" / "other.json").write_text("{}")
    capsys.readouterr()
    assert main(["--check", *where]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "extra: other.json",
        "missing: snapfmt.lease.v1.schema.json",
        "stale: snapfmt.continuation.v1.schema.json",
    ]
    assert stale.read_bytes().endswith(b" "), "--check writes nothing"


@pytest.mark.parametrize("key", SCHEMA_IDS, ids=lambda key: key[0])
def test_a_published_schema_takes_a_dump(key: tuple[str, int], examples: dict[str, Record]) -> None:
    schema = published(key)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    value = to_value(examples[key[0]])
    validator.validate(value)
    assert not validator.is_valid(value | {"x": 1})
    for name in schema.get("required", []):
        assert not validator.is_valid({k: v for k, v in value.items() if k != name})


@pytest.mark.parametrize("name", sorted(ROW_SCHEMAS))
def test_a_row_description_lists_its_columns(name: str) -> None:
    value = json.loads((PUBLISHED / f"rows.{name}.arrow.json").read_text("utf-8"))
    columns = [rule.name for rule in ROW_SCHEMAS[name].columns]
    assert [column["name"] for column in value["columns"]] == columns
    fields = [field["name"] for field in value["arrow_fields"]]
    assert [field for field in fields if "#" not in field] == columns
