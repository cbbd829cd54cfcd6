"""Every stored record is registered, and no name means two things."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import snapfmt_schemas
from snapfmt_schemas._base import Record
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.registry import MODELS, find_media_type, find_model, versions


def all_records() -> set[type[Record]]:
    """Every record class of the package that has a schema id."""
    found: set[type[Record]] = set()
    for info in pkgutil.iter_modules(snapfmt_schemas.__path__):
        module = importlib.import_module(f"snapfmt_schemas.{info.name}")
        found |= {
            thing
            for thing in vars(module).values()
            if isinstance(thing, type) and issubclass(thing, Record) and thing.SCHEMA
        }
    return found


def test_every_stored_record_is_registered() -> None:
    assert set(MODELS.values()) == all_records()
    assert len(MODELS) == len(all_records()) >= 22


def test_ids_and_media_types_are_unique_and_found() -> None:
    assert len({model.document_type() for model in MODELS.values()}) == len(MODELS)
    for (schema_id, version), model in MODELS.items():
        assert schema_id.startswith("snapfmt.")
        assert find_model(schema_id, version) is model
        assert find_media_type(model.document_type()) is model
        assert versions(schema_id) == (version,)


def test_version_is_that_of_the_field() -> None:
    for model in MODELS.values():
        if "schema_version" in model.model_fields:
            assert model.model_fields["schema_version"].default == model.VERSION, model


def test_unknown_names_are_none() -> None:
    assert find_model("snapfmt.continuation", 9) is None
    assert find_model("snapfmt.other", 1) is None
    assert find_media_type("application/json") is None
    assert versions("snapfmt.other") == ()


def test_media_types_are_found_with_parameters() -> None:
    name = Continuation.document_type()
    assert name == "application/vnd.snapfmt.continuation.v1+json"
    assert find_media_type(name.upper() + "; charset=utf-8") is Continuation


def test_every_public_name_resolves() -> None:
    assert snapfmt_schemas.__all__ == sorted(snapfmt_schemas.__all__)
    for name in snapfmt_schemas.__all__:
        assert getattr(snapfmt_schemas, name) is not None
    assert set(snapfmt_schemas.__all__) <= set(dir(snapfmt_schemas))
    with pytest.raises(AttributeError, match="nothing"):
        _ = snapfmt_schemas.nothing


def test_import_is_lazy() -> None:
    code = (
        "import json, sys, snapfmt_schemas\n"
        "first = sorted({'pydantic', 'pyarrow'} & set(sys.modules))\n"
        "[getattr(snapfmt_schemas, name) for name in snapfmt_schemas.__all__]\n"
        "print(json.dumps([first, sorted({'pyarrow', 'numpy', 'torch'} & set(sys.modules))]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], []]
