"""Writes and checks the published schema files: `python -m snapfmt_schemas.export`.

One JSON Schema (draft 2020-12) per record, and one description per row schema. The files
say what JSON Schema can say; the rules between fields are in the models' docstrings and in
the specification.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from snapfmt_schemas._base import Record
from snapfmt_schemas.registry import MODELS
from snapfmt_schemas.rows import ROW_SCHEMAS, RowSchema, arrow_schema

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
"""The dialect of every published JSON Schema."""
PUBLISHED: Final = Path(__file__).parent / "published" / "v1"
"""Where the files of format version 1 lie."""


def file_name(model: type[Record]) -> str:
    """Name of a record's published file."""
    return f"{model.SCHEMA}.v{model.VERSION}.schema.json"


def json_schema(model: type[Record]) -> dict[str, Any]:
    """The JSON Schema of a record."""
    return {
        "$schema": DIALECT,
        "$id": f"urn:snapfmt:schema:{model.SCHEMA}:v{model.VERSION}",
        "x-media-type": model.document_type(),
        **model.model_json_schema(mode="validation"),
    }


def row_description(rows: RowSchema) -> dict[str, Any]:
    """A row schema as JSON: the named columns, and the Arrow fields that store them."""
    return {
        "schema_id": rows.schema_id,
        "key": rows.key,
        "columns": [
            {
                "name": rule.name,
                "dtype": rule.dtype,
                "also": list(rule.also),
                "ndim": rule.ndim,
                "ragged": rule.ragged,
                "length": rule.length,
                "required": rule.required,
            }
            for rule in rows.columns
        ],
        "arrow_fields": [
            {
                "name": field.name,
                "type": _type_name(field.type),
                "nullable": field.nullable,
                "metadata": {
                    key.decode(): value.decode() for key, value in (field.metadata or {}).items()
                },
            }
            for field in arrow_schema(rows.name)
        ],
    }


def _type_name(kind: Any) -> str:
    """Name of an Arrow type; Arrow's own text differs between its versions."""
    import pyarrow as pa

    if pa.types.is_large_list(kind):
        return f"large_list<{kind.value_type}>"
    if pa.types.is_fixed_size_list(kind):
        return f"fixed_size_list<{kind.value_type}, {kind.list_size}>"
    return str(kind)


def render() -> dict[str, bytes]:
    """Every published file by name, in its one byte form."""
    documents = {file_name(model): json_schema(model) for model in MODELS.values()}
    documents |= {
        f"rows.{name}.arrow.json": row_description(rows) for name, rows in ROW_SCHEMAS.items()
    }
    return {
        name: json.dumps(documents[name], sort_keys=True, indent=2).encode() + b"\n"
        for name in sorted(documents)
    }


def compare(directory: Path) -> list[str]:
    """What is wrong with the files in a directory, as `<fault>: <name>`."""
    wanted = render()
    found = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    problems = [f"missing: {name}" for name in wanted if name not in found]
    problems += [f"extra: {name}" for name in found if name not in wanted]
    problems += [
        f"stale: {name}"
        for name, data in wanted.items()
        if name in found and (directory / name).read_bytes() != data
    ]
    return sorted(problems)


def write(directory: Path) -> None:
    """Make the files in a directory the rendered ones; others are left alone."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in render().items():
        (directory / name).write_bytes(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 when all is well, 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m snapfmt_schemas.export")
    parser.add_argument("--check", action="store_true", help="write nothing, name differences")
    parser.add_argument("--directory", type=Path, default=PUBLISHED)
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.directory)
    problems = compare(options.directory)
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
