"""What users install: three packages, typing marks, published schemas; same bytes again."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
TOP_LEVEL = {"snapfmt", "snapfmt_schemas", "snapfmt_coordinator"}
INPUTS = ("snapfmt", "schemas", "coordinator", "pyproject.toml", "README.md", "LICENSE")


def build(run: Run, root: Path, folder: Path) -> Path:
    """A wheel of a copy of the checkout, made without the network."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in INPUTS:
        if (root / name).is_dir():
            shutil.copytree(
                root / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(root / name, source / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = run([*command, "-d", str(folder / "dist")], cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheels(run: Run, root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two builds, from two folders."""
    first, second = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
    return build(run, root, first), build(run, root, second)


@pytest.fixture(scope="module")
def names(wheels: tuple[Path, Path]) -> list[str]:
    """Files in the wheel."""
    with zipfile.ZipFile(wheels[0]) as archive:
        return archive.namelist()


def test_only_our_three_names_reach_site_packages(names: list[str]) -> None:
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == TOP_LEVEL
    assert len(top) == len(TOP_LEVEL) + 1


def test_every_module_is_in_the_wheel(root: Path, names: list[str]) -> None:
    expected = {
        path.relative_to(base).as_posix()
        for base in (root, root / "schemas", root / "coordinator")
        for package in TOP_LEVEL
        for path in (base / package).rglob("*.py")
    }
    assert len(expected) > 20
    assert expected == {name for name in names if name.endswith(".py")}


def test_typing_marks_and_licence_ship(names: list[str]) -> None:
    assert {f"{package}/py.typed" for package in TOP_LEVEL} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_published_schemas_ship(root: Path, names: list[str]) -> None:
    base = root / "schemas"
    published = {
        path.relative_to(base).as_posix()
        for path in (base / "snapfmt_schemas/published").rglob("*")
        if path.is_file()
    }
    assert any(name.endswith(".schema.json") for name in published)
    assert published <= set(names)


def test_the_command_is_declared(wheels: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(wheels[0]) as archive:
        (entry,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "snapfmt = snapfmt.cli:main" in archive.read(entry).decode()


def test_two_builds_are_the_same_bytes(wheels: tuple[Path, Path]) -> None:
    first, second = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    assert first == second


def test_the_wheel_works_without_a_checkout(
    run: Run, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(tmp_path)
    code = (
        "import snapfmt, snapfmt_schemas, snapfmt_coordinator;"
        "print(snapfmt.__file__); print(snapfmt.__version__)"
    )
    done = run([sys.executable, "-c", code], cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
