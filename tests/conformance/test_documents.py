"""Every case of `documents.json`, in snapfmt and in the second reader."""

import base64
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from snapfmt.errors import FormatError, SnapfmtError
from snapfmt.format import canonical, tagged
from snapfmt.limits import DEFAULT_LIMITS
from snapfmt.repository import Repository
from snapfmt_schemas import lines
from snapfmt_schemas.attempt import Ticket
from snapfmt_schemas.continuation import Continuation
from snapfmt_schemas.part import PartIndex

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "spec" / "vectors" / "v1" / "documents.json").read_text()
)
KINDS = {"manifest", "repository", "part-index", "ticket", "continuation", "tagged"}
GOOD_REPOSITORY = next(case for case in CASES if case["kind"] == "repository" and "ok" in case)


def data_of(case: dict[str, Any]) -> bytes:
    text = case.get("text")
    return base64.b64decode(case["base64"]) if text is None else str(text).encode()


def read(kind: str, data: bytes, folder: Path) -> None:
    """The way on which a reader meets such a document."""
    if kind in ("manifest", "repository"):
        root = data if kind == "repository" else data_of(GOOD_REPOSITORY)
        (folder / "snapfmt.json").write_bytes(root)
        repository = Repository.open(folder)
        if kind == "manifest":
            snapshot = folder / "snapshots" / "snapshot_000001"
            snapshot.mkdir(parents=True)
            (snapshot / "manifest.json").write_bytes(data)
            repository.snapshot(1)
    elif kind == "part-index":
        size = DEFAULT_LIMITS.part_index_size
        canonical.decode(data, PartIndex, what=kind, size_limit=size)
    elif kind == "ticket":
        canonical.decode(data, Ticket, what=kind, size_limit=DEFAULT_LIMITS.lease_size)
    elif kind == "continuation":
        try:
            lines.from_line(Continuation, data)
        except ValueError as error:
            # What `Part.records` does with it.
            raise FormatError(str(error)) from error
    else:
        value = tagged.decode(data)
        assert tagged.encode(value).encode() == data, "one form of each value"


@pytest.mark.req("D-2", "D-3", "D-5", "D-6", "D-7", "D-8", "D-9", "F-1", "F-2", "F-3", "R-5", "R-7")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}: {case['name'][:50]}")
def test_snapfmt_says_what_the_vector_says(case: dict[str, Any], tmp_path: Path) -> None:
    if "ok" in case:
        read(case["kind"], data_of(case), tmp_path)
        return
    with pytest.raises(SnapfmtError) as caught:
        read(case["kind"], data_of(case), tmp_path)
    assert caught.value.code == case["error"]


NAMES = {"manifest": "Manifest", "repository": "Repository", "part-index": "PartIndex"}


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["kind"] in NAMES],
    ids=lambda case: f"{case['kind']}: {case['name'][:50]}",
)
def test_the_second_reader_says_the_same(case: dict[str, Any], minireader: ModuleType) -> None:
    name, data = NAMES[case["kind"]], data_of(case)
    if "ok" in case:
        minireader.document(name, data)
        return
    refused = case["error"] in ("UnsupportedFeature", "UnsupportedVersion")
    with pytest.raises(minireader.Refused if refused else minireader.Damage):
        minireader.document(name, data)


def test_every_kind_has_good_and_bad_cases() -> None:
    assert {case["kind"] for case in CASES if "ok" in case} == KINDS
    assert {case["kind"] for case in CASES if "error" in case} == KINDS
    assert len({(case["kind"], case["name"]) for case in CASES}) == len(CASES)
