"""What users may import, listed a second time, so that a change is a decision."""

import ast
from pathlib import Path

import snapfmt
from snapfmt.errors import SnapfmtError

PUBLIC = [
    "FORMAT_VERSION",
    "MISSING",
    "Attempt",
    "PartWriter",
    "Repository",
    "SnapfmtError",
    "Snapshot",
    "__version__",
]
PACKAGES = ("snapfmt", "schemas/snapfmt_schemas", "coordinator/snapfmt_coordinator")


def test_the_front_door_has_these_names() -> None:
    assert snapfmt.__all__ == PUBLIC
    assert len(PUBLIC) <= 12


def test_every_name_resolves() -> None:
    for name in snapfmt.__all__:
        assert getattr(snapfmt, name) is not None, name


def undocumented(source: str, name: str) -> list[str]:
    """Public modules, classes, functions and methods of `source` without a docstring."""
    found = []

    def visit(node: ast.Module | ast.ClassDef, prefix: str) -> None:
        if not (ast.get_docstring(node) or "").strip():
            found.append(prefix)
        for child in node.body:
            if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                visit(child, f"{prefix}.{child.name}")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                marks = {ast.unparse(mark).split(".")[-1] for mark in child.decorator_list}
                if child.name.startswith("_") or marks & {"overload", "setter", "override"}:
                    continue
                if not (ast.get_docstring(child) or "").strip():
                    found.append(f"{prefix}.{child.name}")

    visit(ast.parse(source), name)
    return found


def test_every_public_name_says_what_it_is(root: Path) -> None:
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    assert len(files) > 20
    silent = [
        line
        for path in files
        for line in undocumented(path.read_text("utf-8"), str(path.relative_to(root)))
    ]
    assert silent == []


def test_a_missing_docstring_is_found() -> None:
    source = '"""M."""\nclass A:\n    """A."""\n    def b(self): ...\ndef c(): ...\ndef _d(): ...\n'
    assert undocumented(source, "m") == ["m.A.b", "m.c"]


def errors() -> list[type[SnapfmtError]]:
    """Every class of the tree; one that a module keeps to itself goes by its parent's code."""
    found, queue = [], [SnapfmtError]
    while queue:
        error = queue.pop()
        if not error.__name__.startswith("_"):
            found.append(error)
        queue += error.__subclasses__()
    return found


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in errors()]
    assert len(codes) > 20
    assert sorted(codes) == sorted(set(codes))
