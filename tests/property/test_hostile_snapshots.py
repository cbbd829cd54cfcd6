"""Snapshots that are signed correctly and lie: read or refused with a typed error, never else."""

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapfmt import Repository
from snapfmt.errors import SnapfmtError
from snapfmt.testing.forgery import forge
from snapfmt.testing.fuzz_repository import PARTS, edit_index, edit_pack, edit_root, look
from snapfmt.testing.samples import contents, save


@pytest.fixture(scope="module")
def origin() -> Iterator[Path]:
    """A snapshot to forge."""
    with tempfile.TemporaryDirectory() as folder:
        save(Repository.create(Path(folder) / "run"), value=1, rows=5)
        yield Path(folder) / "run"


def read(root: Path) -> None:
    """Look at everything; an error that has no type fails the test."""
    with contextlib.suppress(SnapfmtError):
        look(root)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=120, suppress_health_check=list(HealthCheck))
def test_a_part_index_that_lies(origin: Path, seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        shutil.copytree(origin, root)

        try:
            edit_index(root, rng)
        except (RecursionError, ValueError):
            return
        read(root)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
def test_a_root_document_that_lies(origin: Path, seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        shutil.copytree(origin, root)
        try:
            edit_root(root, rng)
        except (RecursionError, ValueError):
            return
        read(root)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_indexes_inside_a_pack_that_lie(origin: Path, seed: int) -> None:
    """Batch indexes, keys and record indexes: Arrow streams from a hostile writer."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        shutil.copytree(origin, root)

        edit_pack(root, rng)
        read(root)


def test_a_forgery_without_a_change_is_a_good_snapshot(origin: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(origin, root)
    before = contents(Repository.open(root).snapshot())
    for part in PARTS:
        forge(root, 1, part, lambda index, packs: None)
    repository = Repository.open(root)
    assert repository.verify().findings == []
    assert contents(repository.snapshot()) == before

    def rename(index: dict[str, Any], packs: dict[str, bytearray]) -> None:
        index["entries"][0]["path"] = "renamed.txt"

    forge(root, 1, PARTS[0], rename)
    assert repository.snapshot().part(PARTS[0]).read("renamed.txt") == b"note 1"
