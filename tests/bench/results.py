"""What a benchmark found: ratios by name, each with its lowest and highest round."""

import json
from typing import Any


def exact(result: dict[str, Any], name: str, value: float) -> None:
    """A figure that is the same in every round."""
    result["ratios"][name] = value
    result["spread"][name] = [value, value]


def show(result: dict[str, Any]) -> None:
    """A table, and everything as one JSON object in the last line."""
    for name, value in result["ratios"].items():
        low, high = result["spread"][name]
        print(f"{name:64} {value:9.3f}   ({low:.3f} to {high:.3f})")
    print(json.dumps(result))
