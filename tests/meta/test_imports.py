"""Who may import whom: the contracts hold, and each of them bites."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CONTRACTS = (
    "boxes: coordinator -> snapfmt -> schemas, never back",
    "rooms: inside snapfmt, imports point downwards",
    "format core does no I/O",
    "storage moves bytes and knows no record type",
)
BOXES, ROOMS, FORMAT, STORAGE = CONTRACTS
SCHEMAS = "schemas/snapfmt_schemas"
Run = Callable[..., subprocess.CompletedProcess[str]]


def lint_imports(run: Run, tree: Path) -> tuple[int, str]:
    """Exit code and report of import-linter on `tree`, whatever is installed."""
    code = (
        "import sys; from importlinter.cli import lint_imports;"
        "sys.exit(lint_imports(no_cache=True))"
    )
    paths = [str(tree), str(tree / "schemas"), str(tree / "coordinator")]
    # Ahead of an editable install, which names the checkout itself.
    path = os.pathsep.join(paths)
    done = run([sys.executable, "-c", code], cwd=tree, PYTHONPATH=path, COLUMNS="200")
    return done.returncode, done.stdout + done.stderr


def verdicts(report: str) -> dict[str, str]:
    """KEPT or BROKEN for each contract that the report names."""
    found = (
        re.search(f"^{re.escape(name)} (KEPT|BROKEN)", report, re.MULTILINE) for name in CONTRACTS
    )
    return {name: hit[1] for name, hit in zip(CONTRACTS, found, strict=True) if hit}


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Path:
    """A copy of the importable code, to plant something in."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for folder in ("snapfmt", "schemas", "coordinator"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=ignore)
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_kept(run: Run, tree: Path) -> None:
    code, report = lint_imports(run, tree)
    assert verdicts(report) == dict.fromkeys(CONTRACTS, "KEPT"), report
    assert code == 0, report


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("snapfmt/format/planted.py", "import os", FORMAT),
        ("snapfmt/format/planted.py", "import ray", FORMAT),
        ("snapfmt/format/planted.py", "import snapfmt.storage", FORMAT),
        (f"{SCHEMAS}/planted.py", "import socket", FORMAT),
        (f"{SCHEMAS}/planted.py", "import snapfmt", BOXES),
        (f"{SCHEMAS}/planted.py", "import snapfmt_coordinator", BOXES),
        ("snapfmt/planted.py", "import snapfmt_coordinator", BOXES),
        ("snapfmt/storage/planted.py", "import pydantic", STORAGE),
        ("snapfmt/storage/planted.py", "import pyarrow", STORAGE),
        ("snapfmt/storage/planted.py", "import snapfmt_schemas", STORAGE),
        ("snapfmt/storage/planted.py", "import snapfmt.format", STORAGE),
        ("snapfmt/reading/planted.py", "import snapfmt.writing", ROOMS),
        ("snapfmt/writing/planted.py", "import snapfmt.repository", ROOMS),
        ("snapfmt/reading/planted.py", "import snapfmt.repository", ROOMS),
        ("snapfmt/newroom/__init__.py", "", ROOMS),
    ],
)
def test_a_planted_violation_breaks_its_contract(
    run: Run, tree: Path, file: str, line: str, broken: str
) -> None:
    path = tree / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'"""Planted."""\n{line}\n')
    code, report = lint_imports(run, tree)
    assert code == 1, report
    found = verdicts(report)
    # An exhaustive contract that finds an unlisted room stops before it can print a verdict.
    assert found.get(broken) == "BROKEN" or "newroom" in report, report


@pytest.mark.parametrize("name", ["schemas", "coordinator", "pickle"])
def test_the_linter_bans_these_names(run: Run, tree: Path, name: str) -> None:
    (tree / "snapfmt/format/planted.py").write_text(f'"""Planted."""\n\nimport {name}\n')
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise"]
    done = run([*ruff, "snapfmt/format/planted.py"], cwd=tree)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "TID251" in done.stdout, done.stdout
