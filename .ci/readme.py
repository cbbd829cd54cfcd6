"""Runs the Python examples of README.md, in a folder of its own."""

import os
import re
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
EXAMPLE = re.compile(r"^```python title=\"[^\"]+\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(text: str) -> list[str]:
    """Source of each Python fence that carries a title."""
    return EXAMPLE.findall(text)


def main() -> int:
    """Run them in order; an example that fails raises."""
    found = examples(README.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for source in found:
            exec(compile(source, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102
        os.chdir("/")
    print(f"README.md: {len(found)} example(s) ran")  # noqa: T201
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
