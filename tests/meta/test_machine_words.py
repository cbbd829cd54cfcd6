"""Nothing in the repository depends on the machine that it was written on."""

import re
import subprocess
from pathlib import Path

import pytest

# Spelled in pieces, so that this file does not find itself.
FOLDERS = ("work", "root", r"opt/(?:wheels|pypi[\w-]*)", r"home/\w+", r"Users/\w+")
PATH = re.compile(r"(?<![\w./~-])/(?:" + "|".join(FOLDERS) + r")(?=[/\s\"'`),:;]|$)", re.MULTILINE)
HOSTS = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("download", "pytorch", "org"),
            ("registry", "npmjs", "org"),
            ("registry", "yarnpkg", "com"),
            ("deb", "debian", "org"),
            ("crates", "io"),
            ("conda", "anaconda", "org"),
        )
    )
)
BINARY = {".arrow", ".bin", ".png", ".gif", ".zst", ".whl", ".gz"}
SKIPPED = {".git", ".venv", "dist", "build", "__pycache__", "objects", ".hypothesis"}


def tracked(root: Path) -> list[Path]:
    """Files that are or would be committed; a tree without git is walked instead."""
    if (root / ".git").exists():
        done = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        paths = [root / name for name in done.stdout.split("\0") if name]
    else:
        paths = [
            path
            for path in root.rglob("*")
            if not SKIPPED & set(path.relative_to(root).parts)
            and not any(part.endswith("_cache") for part in path.relative_to(root).parts)
        ]
    return [path for path in paths if path.is_file() and path.suffix not in BINARY]


def words(text: str) -> list[str]:
    """Machine paths and registry hosts in `text`."""
    return PATH.findall(text) + HOSTS.findall(text)


def test_no_file_names_a_folder_of_a_machine_or_a_registry(root: Path) -> None:
    files = tracked(root)
    assert len(files) > 30
    guilty = {}
    for path in files:
        text = path.read_bytes().decode("utf-8", errors="replace")
        if found := words(text):
            guilty[str(path.relative_to(root))] = found
    assert guilty == {}


@pytest.mark.parametrize(
    "text",
    [
        "see /" + "work/main",
        '"/' + 'root/.cache"',
        "--find-links /" + "opt/wheels",
        "https://" + "pypi" + ".org/simple",
    ],
)
def test_a_planted_word_is_found(text: str) -> None:
    assert words(text)


@pytest.mark.parametrize("text", ["gym/work/x", "a/root/b", "$PWD/work", "the/root"])
def test_other_words_are_left_alone(text: str) -> None:
    assert not words(text)
