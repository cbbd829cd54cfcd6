"""A module is small enough to be read in one sitting."""

from pathlib import Path

MAX_LINES = 400
PACKAGES = ("snapfmt", "schemas/snapfmt_schemas", "coordinator/snapfmt_coordinator")


def test_modules_stay_small(root: Path) -> None:
    lengths = {
        str(path.relative_to(root)): len(path.read_text("utf-8").splitlines())
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
    }
    assert len(lengths) > 20
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}
