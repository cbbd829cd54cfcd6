"""A sample of the mutants; all of them: `python tests/faults/mutants.py`."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

SAMPLE = (
    "local-file-sync",
    "sink-journal-first",
    "objects-condition",
    "segment-select-live",
    "keeping-looked-at-once",
)
"""One of each kind of safeguard that quick tests notice."""


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    path = Path(__file__).with_name("mutants.py")
    spec = importlib.util.spec_from_file_location("mutants", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tree(mutants: ModuleType) -> Iterator[Path]:
    """Made once, so that it is compiled once."""
    with mutants.copied() as tree:
        yield tree


def test_every_mutant_is_a_change_that_can_be_made(mutants: ModuleType, tmp_path: Path) -> None:
    """The list follows the code: each old text is there exactly once."""
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 40
    for mutant in mutants.MUTANTS:
        source = mutants.ROOT / "snapfmt" / mutant.file
        copy = tmp_path / "snapfmt" / mutant.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(source.read_text("utf-8"), "utf-8")
        before = mutant.apply(tmp_path)
        changed = copy.read_text("utf-8")
        assert before != changed, mutant.name
        compile(changed, mutant.file, "exec")
        for test in mutant.tests:
            assert not test.startswith("tests/") or (mutants.ROOT / test).exists(), mutant.name


def test_an_old_text_that_is_not_there_is_an_error(mutants: ModuleType, tmp_path: Path) -> None:
    mutant = replace(mutants.MUTANTS[0], old="no such text")
    path = tmp_path / "snapfmt" / mutant.file
    path.parent.mkdir(parents=True)
    path.write_text("x\n", "utf-8")
    with pytest.raises(LookupError, match="0 times"):
        mutant.apply(tmp_path)


def test_a_sample_is_killed(mutants: ModuleType, tree: Path) -> None:
    known = {mutant.name: mutant for mutant in mutants.MUTANTS}
    for name in SAMPLE:
        # Whoever runs this one runs the tests without a mutant as well.
        verdict = mutants.judge(tree, known[name], 200, {known[name].tests: "passed"})
        assert verdict["how"] == "failed", verdict


def test_a_change_without_effect_survives(mutants: ModuleType, tree: Path) -> None:
    """Or a broken copy would count as killing everything."""
    mutant = mutants.Mutant(
        "no-effect",
        "storage/posix.py",
        "def write_all(",
        "\ndef write_all(",
        ("tests/unit/test_keeping.py",),
    )
    assert mutants.judge(tree, mutant, 200, {})["outcome"] == "survived"


def test_tests_that_fail_anyway_kill_nothing(mutants: ModuleType, tree: Path) -> None:
    test = tree / "tests" / "test_fails.py"
    test.write_text("def test_fails():\n    assert False\n", "utf-8")
    mutant = replace(mutants.MUTANTS[0], tests=("tests/test_fails.py",))
    verdict = mutants.judge(tree, mutant, 200, {})
    assert (verdict["outcome"], verdict["how"]) == ("broken", "failed without it")
