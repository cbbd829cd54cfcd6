"""Loading a snapshot runs no code from it (I7): no module of ours can unpickle."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
PACKAGES = ("snapfmt", "schemas/snapfmt_schemas", "coordinator/snapfmt_coordinator")
FORBIDDEN = {
    "pickle", "_pickle", "cPickle", "pickletools", "marshal", "shelve", "dill", "cloudpickle",
    "joblib", "jsonpickle", "yaml", "runpy", "imp",
}  # fmt: skip
BUILTINS = {"eval", "exec", "compile", "__import__"}
LOADERS = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("torch", "save")}


def sins(source: str) -> list[str]:
    """What `source` does that could run code out of data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN]
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in FORBIDDEN:
                found.append(str(node.module))
            found += [
                f"{node.module}.{a.name}" for a in node.names if (node.module, a.name) in LOADERS
            ]
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in BUILTINS:
                found.append(function.id)
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                call = (function.value.id, function.attr)
                if call in LOADERS:
                    found.append(".".join(call))
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                found.append("allow_pickle")
        # The name of the module as a string is how a dynamic import would spell it.
        elif isinstance(node, ast.Constant) and node.value in FORBIDDEN:
            found.append(repr(node.value))
    return found


def sources(root: Path) -> list[Path]:
    """Every module that ships, and the second reader in spec/."""
    found = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return found + sorted((root / "spec").rglob("*.py"))


def test_no_module_of_ours_can_unpickle(root: Path) -> None:
    files = sources(root)
    assert len(files) > 20
    guilty = {str(p.relative_to(root)): s for p in files if (s := sins(p.read_text("utf-8")))}
    assert guilty == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "def f():\n    import marshal",
        "import cloudpickle.fast",
        "import numpy as np\nnp.load('x')",
        "import numpy\nnumpy.lib.format.read_array(f, allow_pickle=True)",
        "import torch\ntorch.load('x')",
        "import importlib\nimportlib.import_module('pickle')",
        "__import__('x')",
        "eval('1')",
        "compile('1', '', 'eval')",
        "from torch import load",
        "from numpy import load as read",
    ],
)
def test_a_planted_sin_is_found(source: str) -> None:
    assert sins(source)


def test_importing_the_readers_never_asks_for_pickle(run: Run) -> None:
    """Libraries load pickle for themselves; what must not happen is that we ask for it."""
    code = """
import builtins, importlib, json, pkgutil, sys
real, asked, modules = builtins.__import__, [], []
def spy(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if importer.split(".")[0].startswith("snapfmt") and name.split(".")[0] in FORBIDDEN:
        asked.append((importer, name))
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = spy
import snapfmt.format, snapfmt.reading, snapfmt_schemas
for package in (snapfmt.format, snapfmt.reading, snapfmt_schemas):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        modules.append(importlib.import_module(found.name).__name__)
print(json.dumps([asked, modules]))
"""
    done = run([sys.executable, "-c", f"FORBIDDEN = {FORBIDDEN!r}\n{code}"])
    assert done.returncode == 0, done.stderr
    asked, modules = json.loads(done.stdout)
    assert any(name.startswith("snapfmt.reading.") for name in modules)
    assert any(name.startswith("snapfmt.format.") for name in modules)
    assert asked == []


READS = """
import builtins, contextlib, json, pathlib, pickle, sys
asked, real = [], builtins.__import__
def spy(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if importer.split(".")[0].startswith("snapfmt") and name.split(".")[0] in FORBIDDEN:
        asked.append((importer, name))
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = spy

import _pickle, numpy
from snapfmt import Repository
from snapfmt.adapters import zarr_arrays
from snapfmt.testing import fuzzing, samples
from snapfmt_coordinator.participant import agent_part, model_part, sessions_part

golden, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
own = Repository.create(folder / "run")
samples.save(own, value=1)
with own.begin(base=1) as attempt:
    part = attempt.part("p")
    zarr_arrays.write_array(part, "dense", numpy.arange(9))
    attempt.publish([part.seal()])

def gone(*arguments, **options):
    raise AssertionError("something was unpickled")
for module in (pickle, _pickle):
    for name in ("load", "loads", "Unpickler", "_load", "_loads", "_Unpickler"):
        if hasattr(module, name):
            setattr(module, name, gone)

def read():
    counted = 0
    for place in (golden, folder / "run"):
        repository = Repository.open(place)
        assert repository.verify().ok
        for number in repository.numbers():
            snapshot = repository.snapshot(number)
            counted += len(samples.contents(snapshot))
            for name in snapshot.table_names():
                table = snapshot.table(name)
                counted += sum(len(table.row(key)) for key in table.keys())
    zarr_arrays.read_array(own.snapshot(2).part("p"), "dense")
    return counted

watch = fuzzing.Watch(golden, folder)
first = read()
watch.armed = True
try:
    second = read()
    seen = list(watch.seen)
    watch.seen.clear()
    for deed in (
        lambda: compile("1", "x", "eval"), lambda: __import__("this"),
        lambda: __import__("marshal").loads(b"N"), lambda: open("/etc/hostname").close(),
    ):
        with contextlib.suppress(Exception):
            deed()
finally:
    watch.armed = False
print(json.dumps([asked, first, second, seen, watch.seen]))
"""


def test_reading_and_verifying_loads_and_runs_nothing(root: Path, tmp_path: Path, run: Run) -> None:
    """All of two repositories is read twice: without an unpickler, then without any loading.

    Libraries import pickle for themselves, so that its absence cannot be shown; what they would
    unpickle with is taken away. Once all modules are there, none is imported any more, no code
    is compiled or run, and no file beside the repositories is opened.
    """
    golden = root / "spec/vectors/v1/golden-0.1.0/repository"
    code = f"FORBIDDEN = {FORBIDDEN!r}\n{READS}"
    done = run([sys.executable, "-c", code, str(golden), str(tmp_path)])
    assert done.returncode == 0, done.stderr
    asked, first, second, seen, planted = json.loads(done.stdout)
    assert asked == []
    assert first == second > 100
    assert seen == []
    assert [text.partition("(")[0] for text in planted] == [
        "compile", "import", "marshal.loads", "open",
    ]  # fmt: skip
