"""Exit codes, and how errors are told: by code, never as a traceback."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snapfmt import Repository, cli, errors
from snapfmt.cli import exitcodes
from snapfmt.cli.exitcodes import ExitCode

Snapfmt = Callable[..., Any]
Damage = Callable[..., str]
PART = "gym/agent/swe-0"


def tree(error: type[errors.SnapfmtError]) -> list[type[errors.SnapfmtError]]:
    """The class and everything below it."""
    return [error, *(item for below in error.__subclasses__() for item in tree(below))]


def test_numbers_never_change() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "DAMAGE": 3,
        "NOTHING": 4,
        "INTERRUPTED": 130,
    }
    assert set(exitcodes.MEANINGS) == set(ExitCode)


def test_every_typed_error_has_the_code_that_the_table_says() -> None:
    for kind in tree(errors.SnapfmtError):
        needed = {"reason": "busy"} if kind is errors.ControlRefused else {}
        code = exitcodes.of(kind("x", **needed))
        if issubclass(kind, (errors.CorruptError, errors.MissingObject)):
            assert code is ExitCode.DAMAGE, kind
        elif issubclass(kind, (errors.NotFoundError, errors.RefusedError)):
            assert code is ExitCode.NOTHING, kind
        else:
            assert code is ExitCode.FAILED, kind


@pytest.mark.parametrize("command", ["", *(item.name for item in cli.COMMANDS)])
def test_help_shows_the_table(snapfmt: Snapfmt, command: str) -> None:
    ran = snapfmt(*([command] if command else []), "--help")
    assert ran.code == 0
    assert ran.err == ""
    for code, meaning in exitcodes.MEANINGS.items():
        assert f"{int(code):>3}  {meaning}" in ran.out
    assert f"usage: snapfmt{' ' if command else ''}{command}" in ran.out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["ls"],
        ["ls", "a", "b"],
        ["ls", "--nonsense", "x"],
        ["ls", "--js", "x"],
        ["show", "x", "newest"],
        ["show", "x", "-1"],
        ["show", "x", "1.5"],
        ["show", "x", "snapshot_"],
        ["show", "x", "\u0663"],
        ["show", "x", "9" * 13],
        ["cat", "x", "1"],
        ["rows", "x", "1"],
        ["demo-queue", "--units", "0"],
        ["verify"],
    ],
)
def test_wrong_usage(snapfmt: Snapfmt, arguments: list[str]) -> None:
    ran = snapfmt(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("snapfmt: Usage: ")
    assert "--help" in ran.err
    told = snapfmt("--json", *arguments)
    assert told.code == 2
    assert told.json["error"]["code"] == "Usage"


REPOSITORY_COMMANDS = [
    ["ls", "{}"],
    ["show", "{}"],
    ["report", "{}"],
    ["tree", "{}"],
    ["cat", "{}", "latest", "p/e"],
    ["rows", "{}", "latest", "t"],
    ["verify", "{}"],
    ["attempts", "{}"],
]


@pytest.mark.parametrize("arguments", REPOSITORY_COMMANDS, ids=lambda item: item[0])
def test_no_repository(snapfmt: Snapfmt, tmp_path: Path, arguments: list[str]) -> None:
    for path in (tmp_path / "absent", tmp_path):
        filled = [item.format(path) for item in arguments]
        ran = snapfmt(*filled)
        assert (ran.code, ran.out) == (4, "")
        assert ran.err.startswith("snapfmt: StoreNotFound: ")
        assert ran.err.count("\n") == 1
        told = snapfmt(*filled, "--json")
        assert told.code == 4
        assert told.json["ok"] is False
        assert set(told.json["error"]) == {"code", "message", "what", "hint"}
        assert told.json["error"]["code"] == "StoreNotFound"
        assert told.json["error"]["what"] == str(path)
        assert told.err == ran.err
    assert not (tmp_path / "absent").exists()


def test_a_file_is_no_repository(snapfmt: Snapfmt, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for command in ("ls", "verify"):
        ran = snapfmt(command, str(file))
        assert ran.code == 4
        assert ran.err == (
            "snapfmt: StoreNotFound: this is a file, not the folder of a repository: "
            f"{str(file)!r} (check the path)\n"
        )


def test_hints_are_not_in_python(snapfmt: Snapfmt, tmp_path: Path) -> None:
    ran = snapfmt("verify", str(tmp_path))
    assert ran.code == 4
    assert "create=True" not in ran.err


def test_a_url_without_a_backend_is_refused(snapfmt: Snapfmt) -> None:
    ran = snapfmt("ls", "gs://bucket/run")
    assert ran.code == 4
    assert "UnsupportedFeature" in ran.err


@pytest.mark.parametrize("name", ["latest", "7", "snapshot_000007"])
def test_none_published(snapfmt: Snapfmt, empty: str, name: str) -> None:
    for arguments in (
        ["show", empty, name],
        ["report", empty, name],
        ["tree", empty, name],
        ["cat", empty, name, "p/e"],
        ["rows", empty, name, "t"],
        ["verify", empty, name],
    ):
        ran = snapfmt(*arguments)
        assert ran.code == 4, arguments
        assert ran.err.startswith("snapfmt: NotPublished: ")
        assert snapfmt(*arguments, "--json").json["error"]["code"] == "NotPublished"


def test_a_number_that_was_not_published(snapfmt: Snapfmt, repo: str) -> None:
    for command in ("show", "tree", "verify"):
        assert snapfmt(command, repo, "7").code == 4


def test_nothing_published_is_no_damage(snapfmt: Snapfmt, empty: str) -> None:
    assert snapfmt("verify", empty).code == 0
    assert snapfmt("show", empty).code == 4


def test_verify_of_a_sound_repository(snapfmt: Snapfmt, repo: str) -> None:
    ran = snapfmt("verify", repo)
    assert (ran.code, ran.err) == (0, "")
    assert "result     good" in ran.out
    found = snapfmt("verify", repo, "--json").json
    assert (found["ok"], found["deep"], found["snapshots"]) == (True, True, [1, 2])
    assert found["findings"] == []
    assert found["bytes"] > 0
    shallow = snapfmt("verify", repo, "2", "--shallow", "--json").json
    assert (shallow["deep"], shallow["snapshots"]) == (False, [2])
    assert shallow["bytes"] < found["bytes"]


@pytest.mark.parametrize("what", ["notes.txt", "table", "index", "manifest"])
def test_verify_finds_a_flipped_byte(snapfmt: Snapfmt, damage: Damage, what: str) -> None:
    repo = damage(what)
    ran = snapfmt("verify", repo)
    assert ran.code == 3
    assert "result     DAMAGED" in ran.out
    assert "Findings" in ran.out
    told = snapfmt("verify", repo, "--json")
    assert told.code == 3
    assert told.json["ok"] is False
    assert any(finding["severity"] == "damage" for finding in told.json["findings"])
    assert snapfmt("verify", repo, "1").code == 0
    assert snapfmt("verify", repo, "2").code == 3
    # Shallow does not read the bytes of the data, and says so.
    shallow = snapfmt("verify", repo, "--shallow")
    assert shallow.code == (0 if what in ("notes.txt", "table") else 3)
    assert "shallow" in shallow.out
    # What was hashed need not be decoded to be found.
    hashed = snapfmt("verify", repo, "--hashes")
    assert hashed.code == 3
    assert "hashes: every byte, not decoded" in hashed.out


def test_leftovers_are_told_and_are_no_damage(snapfmt: Snapfmt, repo: str) -> None:
    attempt = Repository.open(repo).begin()
    part = attempt.part("p")
    part.stage("e", b"x")
    ran = snapfmt("verify", repo, "--json")
    assert ran.code == 0
    assert [finding["severity"] for finding in ran.json["findings"]] == ["leftover"]
    part.abandon()
    attempt.abandon()


def test_reading_damage_ends_with_its_code(snapfmt: Snapfmt, damage: Damage) -> None:
    repo = damage("notes.txt")
    ran = snapfmt("cat", repo, "2", f"{PART}/notes.txt")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("snapfmt: CorruptObject: ")
    assert snapfmt("cat", repo, "1", f"{PART}/notes.txt").out == "hello\n"


def test_rows_of_a_damaged_table(snapfmt: Snapfmt, damage: Damage) -> None:
    repo = damage("table")
    ran = snapfmt("rows", repo, "2", "rows/train", "--limit", "0", "--json")
    assert ran.code == 3
    # The last line says that the lines before it are not all.
    assert ran.lines[-1]["ok"] is False
    assert ran.lines[-1]["error"]["code"] == "CorruptObject"
    assert snapfmt("rows", repo, "2", "rows/train", "--limit", "0").code == 3


def test_records_that_are_damaged(snapfmt: Snapfmt, damage: Damage) -> None:
    repo = damage("continuations.jsonl")
    assert snapfmt("cat", repo, "2", f"{PART}/continuations.jsonl").code == 3
    assert snapfmt("cat", repo, "2", f"{PART}/continuations.jsonl", "--record", "r1").code == 3


def test_an_object_that_is_gone(snapfmt: Snapfmt, repo: str) -> None:
    shutil.rmtree(Path(repo, "objects"))
    Path(repo, "objects").mkdir()
    for arguments in (
        ["show", repo],
        ["tree", repo],
        ["rows", repo, "2", "rows/train"],
        ["cat", repo, "2", f"{PART}/notes.txt"],
    ):
        ran = snapfmt(*arguments)
        assert ran.code == 3, arguments
        assert "MissingObject" in ran.err
    assert snapfmt("verify", repo).code == 3
    assert snapfmt("ls", repo).code == 0


def test_ls_lists_the_sound_snapshots_beside_a_damaged_one(
    snapfmt: Snapfmt, damage: Damage
) -> None:
    repo = damage("manifest")
    ran = snapfmt("ls", repo)
    assert ran.code == 3
    _, first, second = ran.out.splitlines()
    assert "topology:" in first
    assert second.split()[0] == "2"
    assert second.split()[-1] in ran.err
    told = snapfmt("ls", repo, "--json")
    assert told.code == 3
    assert told.json["ok"] is False
    assert told.json["snapshots"][0]["rows"] == 26
    assert told.json["snapshots"][1]["error"]["code"] == second.split()[-1]


def test_a_newer_format_is_refused(snapfmt: Snapfmt, repo: str) -> None:
    path = Path(repo, "snapshots/snapshot_000002/manifest.json")
    path.chmod(0o644)
    text = path.read_text()
    changed = text.replace('"format_version":1', '"format_version":2')
    assert changed != text
    path.write_text(changed)
    ran = snapfmt("show", repo)
    assert ran.code in (3, 4)
    assert snapfmt("ls", repo).code == ran.code
    assert snapfmt("show", repo, "1").code == 0


def test_a_manifest_that_may_not_be_read(snapfmt: Snapfmt, repo: str) -> None:
    manifest = Path(repo, "snapshots/snapshot_000002/manifest.json")
    manifest.chmod(0)
    if os.geteuid() == 0:
        # Root reads everything: look as somebody else, from a folder that everybody may enter.
        here = tempfile.mkdtemp()
        os.chmod(here, 0o755)
        shutil.copytree(repo, Path(here, "repo"))
        repo = str(Path(here, "repo"))
        os.seteuid(65534)
    try:
        ran = snapfmt("show", repo)
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
            shutil.rmtree(here)
    assert ran.code == 1
    assert "StorageDenied" in ran.err


def test_a_failing_disk_is_code_one(
    snapfmt: Snapfmt, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise errors.StorageError("input/output error", what="objects/ab", hint="see dmesg")

    monkeypatch.setattr(Repository, "numbers", fail)
    ran = snapfmt("ls", repo)
    assert ran.code == 1
    assert ran.err == "snapfmt: Storage: input/output error: 'objects/ab' (see dmesg)\n"


@pytest.mark.parametrize("debug", [False, True])
def test_a_bug_is_one_line_unless_asked(
    snapfmt: Snapfmt, repo: str, monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh\x1b[2J no")

    monkeypatch.setattr(Repository, "numbers", fail)
    ran = snapfmt("ls", repo, *(["--debug"] if debug else []))
    assert ran.code == 1
    assert ("Traceback" in ran.err) is debug
    last = ran.err.splitlines()[-1]
    assert last.startswith("snapfmt: ZeroDivisionError: oh\\x1b[2J no")
    told = snapfmt("--json", "ls", repo)
    assert told.json["error"]["code"] == "ZeroDivisionError"


def test_a_typed_error_shows_its_traceback_on_demand(snapfmt: Snapfmt, tmp_path: Path) -> None:
    where = str(tmp_path / "absent")
    assert "Traceback" in snapfmt("--debug", "ls", where).err
    assert "Traceback" not in snapfmt("ls", where).err


def test_an_interrupt_within_the_process(
    snapfmt: Snapfmt, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.output, "drop_stdout", lambda: None)
    monkeypatch.setattr(cli, "drop_stdout", lambda: None)
    monkeypatch.setattr(Repository, "numbers", interrupt)
    ran = snapfmt("ls", repo)
    assert (ran.code, ran.err) == (130, "snapfmt: interrupted\n")
