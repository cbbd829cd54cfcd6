"""`snapfmt demo-queue` hands its options on and says what is missing."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from snapfmt.cli import build_parser, demo_queue

Snapfmt = Callable[..., Any]


@dataclass(frozen=True)
class Report:
    """What the demonstration gives back."""

    rows: int
    repository: Path


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the demonstration; holds what it was called with."""
    seen: dict[str, Any] = {}
    module = ModuleType("snapfmt.demo")

    def run(directory: str, *, out: Callable[[str], None], **options: Any) -> Report:
        seen.update(options, directory=directory)
        out("first\nsecond \x1b[31m")
        return Report(rows=5, repository=Path(directory))

    monkeypatch.setattr(module, "run", run, raising=False)
    monkeypatch.setitem(sys.modules, "snapfmt.demo", module)
    monkeypatch.setattr(demo_queue, "find_spec", lambda _: object())
    return seen


def test_options_are_handed_on(snapfmt: Snapfmt, story: dict[str, Any], tmp_path: Any) -> None:
    where = str(tmp_path)
    ran = snapfmt("demo-queue", "--directory", where, "--units", "4", "--rows", "9")
    assert ran.code == 0
    assert ran.out == "first\nsecond \\x1b[31m\n"
    assert where in ran.err
    assert story == {"directory": where, "units": 4, "restore_units": 3, "rows": 9}


def test_json_keeps_stdout_for_the_document(
    snapfmt: Snapfmt, story: dict[str, Any], tmp_path: Any
) -> None:
    ran = snapfmt("demo-queue", "--directory", str(tmp_path), "--json")
    result = {"rows": 5, "repository": str(tmp_path)}
    assert ran.json == {"ok": True, "directory": str(tmp_path), "result": result}
    assert "first" in ran.err
    assert story["units"] == 2


def test_the_defaults_are_those_of_the_demonstration() -> None:
    source = inspect.signature(import_module("snapfmt.demo").run).parameters
    parsed = build_parser().parse_args(["demo-queue"])
    for name in ("units", "restore_units", "rows"):
        assert getattr(parsed, name) == source[name].default
    assert source["out"].kind is inspect.Parameter.KEYWORD_ONLY


def test_a_missing_package_names_the_extra(
    snapfmt: Snapfmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        demo_queue, "find_spec", lambda name: None if name == "transfer_queue" else real(name)
    )
    ran = snapfmt("demo-queue")
    assert (ran.code, ran.out) == (4, "")
    assert "transfer_queue" in ran.err
    assert "snapfmt[transfer-queue]" in ran.err
    assert snapfmt("demo-queue", "--json").json["error"]["code"] == "UnsupportedFeature"


@pytest.mark.parametrize(("name", "code"), [("ray.util", 4), ("somebody", 1)])
def test_an_import_that_fails_inside(
    snapfmt: Snapfmt, story: dict[str, Any], name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys.modules["snapfmt.demo"], "run", run)
    assert snapfmt("demo-queue", "--directory", "unused").code == code
    assert story == {}
