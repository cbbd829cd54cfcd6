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
    "joblib", "jsonpickle", "yaml",
}  # fmt: skip
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
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in {"eval", "exec", "__import__"}:
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
