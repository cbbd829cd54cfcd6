"""Whoever reads an error is told what to do."""

import ast
from pathlib import Path

import pytest

import snapfmt_coordinator

HOME = Path(snapfmt_coordinator.__file__).parent
ERRORS = {
    "refused",
    "ControlRefused",
    "DeadlineExceeded",
    "FormatError",
    "InputError",
    "InvalidRecord",
    "LimitExceeded",
    "ParticipantFailed",
    "RestoreRefused",
    "UnsupportedFeature",
}
PLACES = [
    *sorted((HOME / "gym").glob("*.py")),
    *(HOME / "participant" / f"{name}.py" for name in ("agent", "model", "model_part", "ledger")),
    *(HOME / "participant" / f"{name}.py" for name in ("bodies", "calls", "naming", "restoring")),
    *(HOME / "participant" / f"{name}.py" for name in ("fence", "holding", "parts")),
    HOME / "participant" / "sessions_part.py",
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.parent.name}/{place.name}")
def test_every_error_has_a_hint(place: Path) -> None:
    silent = [
        call.lineno
        for call in ast.walk(ast.parse(place.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ERRORS
        and "hint" not in {keyword.arg for keyword in call.keywords}
    ]
    assert silent == []
