"""Power cuts of a real file system: ext4 on a loop device, shut down in the middle of an operation.

The kernel's EXT4_IOC_SHUTDOWN drops all that was not written, with its journal or without it.
"""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapfmt import Repository
from snapfmt.storage import local
from snapfmt.testing.crashes import InjectedCrash, SystemCalls
from snapfmt.testing.operations import (
    OPERATIONS,
    judge,
    recover,
    run_of,
    snapshots,
)
from snapfmt.testing.shapes import SHAPES, conditions

SHUTDOWN = 0x8004587D
KEEP_JOURNAL, DROP_JOURNAL = 1, 2
OPERATION = {operation.name: operation for operation in OPERATIONS}


class Volume:
    """An ext4 in a file, mounted; `cut` takes its power and mounts it again."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "image"
        self.place = folder / "mounted"
        self.place.mkdir()
        with self.image.open("wb") as file:
            file.truncate(24 << 20)
        self._run("mkfs.ext4", "-q", "-F", str(self.image))

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def mount(self) -> None:
        self._run("mount", "-o", "loop", str(self.image), str(self.place))

    def unmount(self) -> None:
        self._run("umount", str(self.place))

    def cut(self, flags: int) -> None:
        descriptor = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", flags))
        finally:
            os.close(descriptor)
        self.unmount()
        self.mount()


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4 to mount a file system of its own")
    try:
        volume = Volume(tmp_path)
        volume.mount()
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"this machine mounts no loop device: {error}")
    try:
        volume.cut(DROP_JOURNAL)
    except OSError as error:
        volume.unmount()
        pytest.skip(f"this kernel shuts no ext4 down: {error}")
    try:
        yield volume
    finally:
        volume.unmount()


def test_the_cut_loses_what_was_not_synced(volume: Volume) -> None:
    """Or the rest of this file says nothing."""
    descriptor = os.open(volume.place / "synced", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"data")
    os.fsync(descriptor)
    os.close(descriptor)
    (volume.place / "lost").write_bytes(b"data")
    volume.cut(DROP_JOURNAL)
    assert (volume.place / "synced").read_bytes() == b"data"
    lost = volume.place / "lost"
    assert not lost.exists() or lost.read_bytes() == b""


@pytest.mark.req("S-1")
@pytest.mark.parametrize(
    "name", ["save", "save on a base", "keep_latest", "collect", "pin", "push"]
)
def test_no_cut_harms_what_is_published(volume: Volume, name: str) -> None:
    operation, shape = OPERATION[name], SHAPES[0]
    with conditions(shape):
        origin = volume.image.parent / "origin"
        origin.mkdir()
        operation.prepare(origin, shape)
        before = snapshots(run_of(origin))
        trial = volume.image.parent / "trial"
        shutil.copytree(origin, trial)
        act = operation.begin(trial, shape)
        with pytest.MonkeyPatch.context() as patch:
            calls = SystemCalls(trial).install(patch)
            act()
        after = snapshots(run_of(trial))
        total = len(calls.calls)
        # Some calls, those near the end one by one, and none: it is over then.
        steps = sorted({*range(1, total, 37), *range(max(total - 2, 1), total + 2)})
        for step in steps:
            world = volume.place / "world"
            shutil.copytree(origin, world)
            os.sync()
            act = operation.begin(world, shape)
            with pytest.MonkeyPatch.context() as patch:
                SystemCalls(world, crash_at=step).install(patch)
                with contextlib.suppress(InjectedCrash):
                    act()
            over = step > total
            volume.cut(DROP_JOURNAL if step % 2 or over else KEEP_JOURNAL)
            found = snapshots(run_of(world))
            assert judge(found, before, after, over=over) == "", step
            assert Repository.open(run_of(world)).verify().ok, step
            assert recover(world, operation, shape, found, strays=True) == "", step
            shutil.rmtree(world)


def test_a_save_without_its_last_sync_is_noticed(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication that is not synced does not survive."""
    shape = SHAPES[0]
    with conditions(shape):
        world = volume.place / "world"
        world.mkdir()
        OPERATION["save"].prepare(world, shape)
        os.sync()
        monkeypatch.setattr(local, "fsync_directory", lambda _: None)
        monkeypatch.setattr(os, "fsync", lambda _: None)
        OPERATION["save"].begin(world, shape)()
        assert len(snapshots(run_of(world))) == 2
        volume.cut(DROP_JOURNAL)
        assert len(snapshots(run_of(world))) == 1
