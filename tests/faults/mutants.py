"""Takes one safeguard at a time out of the code, and shows that some test then fails.

`python tests/faults/mutants.py [NAME ...] [--list] [--seconds N]` applies the named mutants, or
all, each alone in a copy of the tree, runs the tests that are to notice it, and prints one JSON
object. A mutant is killed when a test fails, or when the tests do not end in time. One whose old
text is not there exactly once is an error, so that the list cannot rot; so is one whose tests fail
without it. About twenty minutes in all on two idle cores.
"""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from snapfmt.testing import s3_servers

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("snapfmt", "schemas", "coordinator", "tests", "spec", "pyproject.toml")

ORDER = ("tests/faults/test_order.py",)
RETIRE_ORDER = ("tests/faults/test_retire_crashes.py", "-k", "order or durable")
POWER = ("tests/faults/test_power_loss.py", "-k", "no_power_cut")
LOCAL = ("tests/conformance/test_store_suite.py", "-k", "TestLocalStore")
MEMORY = ("tests/conformance/test_store_suite.py", "-k", "Object or Memory")
ATTEMPT = ("tests/unit/test_attempt.py",)
RETIRE = ("tests/unit/test_retire.py",)
PART = ("tests/unit/test_part_writer.py",)
BASE = ("tests/unit/test_incremental.py",)
VERIFY = ("tests/unit/test_verify.py",)
TOGETHER = ("tests/unit/test_cells_together.py",)
LIVE = ("tests/unit/test_live_rows.py",)
THREADS = ("tests/unit/test_no_threads.py",)
CALLS = ("tests/unit/test_threads.py",)
STUCK = ("tests/unit/cli/test_stuck.py",)
SINK = ("tests/unit/test_local_sink.py",)
SUITE = ("tests/conformance/test_store_suite.py",)
COPY = ("tests/unit/test_transfer.py",)
REPAIR = ("tests/unit/test_repair.py",)
REPAIR_KILLED = ("tests/faults/test_repair_matrix.py", "-k", "killed")
COLLECT = ("tests/unit/test_collect.py",)
LOOKS = ("tests/unit/test_keeping.py",)
PINS = ("tests/unit/test_pins.py",)
RACES = ("tests/unit/test_pin_races.py",)
COLLECT_ORDER = ("tests/faults/test_collect_crashes.py", "-k", "order")
LATE = ("tests/faults/test_bucket_publications.py",)
REQUESTS = ("tests/faults/test_bucket_faults.py",)
LINKS = ("tests/faults/test_surroundings.py", "-k", "link or safely or vanished")
EXHAUSTION = ("tests/faults/test_exhaustion.py",)
STRICT = ("tests/unit/test_strict_json.py",)
SHUT = ("tests/faults/test_unreadable_folders.py",)
OWNER = ("tests/unit/test_owner.py",)
FOLDERS = ("tests/faults/test_folders.py",)
SAFEGUARDS = ("tests/faults/test_safeguards.py",)
CORRUPT = ("tests/faults/test_corruption.py",)
FUZZ = ("tests/faults/test_fuzz.py", "-k", "sample")
FRAMES = ("tests/unit/test_frames_together.py",)
TAKE_CUT = ("tests/unit/test_transfer_queue_take_cut.py",)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small change of the source, and the tests that are to notice it."""

    name: str
    file: str
    """From `snapfmt/`."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Arguments of pytest."""

    def apply(self, tree: Path) -> str:
        """Change the file; returns what it held."""
        path = tree / "snapfmt" / self.file
        text = path.read_text("utf-8")
        if (count := text.count(self.old)) != 1:
            raise LookupError(f"{self.name}: the old text is {count} times in {self.file}")
        replace_source(path, text.replace(self.old, self.new))
        return text


def replace_source(path: Path, text: str) -> None:
    """Write it, and forget what was compiled of it: changes within one second look the same."""
    path.write_text(text, "utf-8")
    Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


def only(tests: tuple[str, ...], words: str) -> tuple[str, ...]:
    """Those tests of one file whose names have these words."""
    return (tests[0], "-k", words)


STORAGE = (
    Mutant(
        "local-file-sync", "storage/local.py",
        "        write_all(descriptor, data)\n        fsync_file(descriptor)\n",
        "        write_all(descriptor, data)\n", ORDER,
    ),
    Mutant(
        "local-staged-folder-sync", "storage/local.py",
        "            fsync_directory(staged)\n", "", ORDER,
    ),
    Mutant(
        "local-root-sync", "storage/local.py",
        "            fsync_directory(self._root)\n", "", ORDER,
    ),
    Mutant(
        "local-publication-sync", "storage/local.py",
        "        try:\n            fsync_directory(target.parent)\n        except OSError",
        "        try:\n            pass\n        except OSError", ORDER,
    ),
    Mutant(
        "local-document-sync", "storage/local.py",
        "            fsync_directory(target.parent)\n            fsync_directory(target.parent.p",
        "            fsync_directory(target.parent.p", ORDER,
    ),
    Mutant(
        "local-document-parent-sync", "storage/local.py",
        "            fsync_directory(target.parent.parent)\n", "", ORDER,
    ),
    Mutant(
        "local-objects-folder-sync", "storage/local.py",
        "for folder in sorted(folders | {folder.parent for folder in folders}):",
        "for folder in sorted(folders):", ORDER,
    ),
    Mutant(
        "local-fence-sync", "storage/local.py",
        "_FENCED))\n            fsync_directory(path.parent)\n", "_FENCED))\n", ORDER,
    ),
    Mutant(
        "local-unpublish-sync", "storage/local.py",
        "rename(path / kept_as)\n            fsync_directory(path)\n",
        "rename(path / kept_as)\n", ORDER,
    ),
    Mutant(
        "local-create-exclusive", "storage/local.py",
        "self._document(key, data, exclusive=True)", "self._document(key, data, exclusive=False)",
        LOCAL,
    ),
    Mutant(
        "local-conflict", "storage/local.py",
        "if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):", "if False:", LOCAL,
    ),
    Mutant(
        "local-get-limit", "storage/local.py", "            if size > limit:\n",
        "            if size < 0:\n", LOCAL,
    ),
    Mutant(
        "local-range-size", "storage/local.py",
        "            if not piece:\n                raise truncated(key, offset + size, offset + d"
        "one)\n            pieces.append(piece)\n",
        "            pieces.append(piece or bytes(size - done))\n",
        SAFEGUARDS,
    ),
    Mutant(
        "local-closed", "storage/local.py",
        "            if _says_closed(descriptor, key, os.fstat(descriptor).st_size):",
        "            if False:", LOCAL,
    ),
    Mutant(
        "local-probe", "storage/local.py",
        'for name in ("exclusive_rename", "hard_link") if', 'for name in ("hard_link",) if', LINKS,
    ),
    Mutant(
        "local-staged-exists", "storage/local.py",
        "            staged.mkdir()\n            _write_file(staged / name, data)",
        "            target.mkdir(exist_ok=True)\n            staged = target\n"
        "            _write_file(staged / name, data)",
        LOCAL,
    ),
    Mutant(
        "sink-sync", "storage/local_sink.py",
        "            fsync_file(self._descriptor)\n", "", ORDER,
    ),
    Mutant(
        "sink-behind-error", "storage/local_sink.py",
        "            self._check_synced()\n            fsync_file", "            fsync_file", SINK,
    ),
    Mutant(
        "sink-behind-finish", "storage/local_sink.py",
        "        self._flush()\n        self._wait()\n", "        self._flush()\n", SINK,
    ),
    Mutant(
        "sink-behind-discard", "storage/local_sink.py",
        "temporary file.\"\"\"\n        self._wait()\n", "temporary file.\"\"\"\n", SINK,
    ),
    Mutant(
        "sink-journal-first", "storage/local_sink.py",
        "            os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))\n"
        "            self._path.rename(target)\n",
        "            self._path.rename(target)\n"
        "            os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))\n",
        ORDER,
    ),
    Mutant(
        "posix-unnamed-sync", "storage/posix.py",
        "        write_all(descriptor, data)\n        fsync_file(descriptor)\n",
        "        write_all(descriptor, data)\n", ORDER,
    ),
    Mutant(
        "posix-short-write", "storage/posix.py",
        "    while view:\n        view = view[os.write(descriptor, view) :]\n",
        "    os.write(descriptor, view)\n",
        ("tests/faults/test_surroundings.py", "-k", "short_write"),
    ),
    Mutant(
        "posix-sync-error", "storage/posix.py",
        "if error.errno not in _NO_DIRECTORY_SYNC:", "if False:",
        ("tests/unit/test_small_parts.py", "-k", "directory_sync"),
    ),
    Mutant(
        "posix-link-to-file", "storage/posix.py",
        "flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "flags = os.O_RDONLY | os.O_NONBLOC"
        "K", LINKS,
    ),
    Mutant(
        "posix-link-to-folder", "storage/posix.py",
        "os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW |", "os.O_RDONLY | os.O_DIRECTORY |", LINKS,
    ),
    Mutant(
        "posix-regular-file", "storage/posix.py",
        "    if not stat.S_ISREG(os.fstat(descriptor).st_mode):", "    if False:",
        SAFEGUARDS,
    ),
    Mutant(
        "objects-condition", "storage/objects.py",
        "key, data, exclusive=True, metadata={WRITE_ID", "key, data, exclusive=False, metadata={WR"
        "ITE_ID", MEMORY,
    ),
    Mutant(
        "objects-lost-reply", "storage/objects.py",
        "if info.metadata.get(WRITE_ID) == write_id:", "if False:", REQUESTS,
    ),
    Mutant(
        "objects-any-write-id", "storage/objects.py",
        "if info.metadata.get(WRITE_ID) == write_id:", "if True:", MEMORY,
    ),
    Mutant(
        "objects-unknown", "storage/objects.py",
        "        if perhaps:\n            raise outcome_unknown(key, last) from last\n", "", LATE,
    ),
    Mutant(
        "objects-definite-refusal", "storage/objects.py",
        "                if not perhaps:\n                    raise\n", "                raise\n",
        LATE,
    ),
    Mutant(
        "objects-fence-closes", "storage/objects.py",
        "self._create(marker.publishes, CLOSED)", "pass", LATE,
    ),
    Mutant(
        "objects-fence-by-owner", "storage/objects.py",
        "if not by_owner or key in self._unsettled:", "if not by_owner:", REQUESTS,
    ),
    Mutant(
        "objects-publish-fenced", "storage/objects.py",
        "        marker = self.require_workspace(workspace)\n        if",
        "        marker = self._marker(workspace) or Marker(key)\n        if",
        MEMORY,
    ),
    Mutant(
        "objects-publish-other", "storage/objects.py",
        "if marker.publishes != key:", "if False:", SAFEGUARDS,
    ),
    Mutant(
        "objects-put-fenced", "storage/objects.py",
        "        check_key(key)\n        self.require_workspace(workspace)\n\n        def send()",
        "        check_key(key)\n\n        def send()", MEMORY,
    ),
    Mutant(
        "objects-closed", "storage/objects.py",
        "        if may_be_closed(key, len(data)) and data == CLOSED:", "        if False:", MEMORY,
    ),
    Mutant(
        "objects-range-size", "storage/objects.py",
        "            if len(data) != size:\n                raise", "            if False:\n"
        "                raise", MEMORY,
    ),
    Mutant(
        "objects-journal-owner", "storage/objects.py",
        "zip(keys, owners, strict=True) if owner == key)", "zip(keys, owners, strict=True))",
        only(SUITE, "journal_names"),
    ),
    Mutant(
        "objects-journal-skew", "storage/objects.py",
        "item.modified_ns >= opened - _SKEW_NS", "item.modified_ns > opened", LOOKS,
    ),
    Mutant(
        "objects-unpublish-order", "storage/objects.py",
        '        self._put(f"{folder}/{kept_as}", self.get(key, limit=info.size), {})\n'
        "        self._put(key, CLOSED, {})\n",
        "        data = self.get(key, limit=info.size)\n        self._put(key, CLOSED, {})\n"
        '        self._put(f"{folder}/{kept_as}", data, {})\n',
        REQUESTS,
    ),
    Mutant(
        "objects-probe", "storage/probes.py",
        'return f"overwrites an object that a conditional PUT must not touch {ignored}"',
        'return ""', ("tests/conformance/test_store_suite_s3.py", "-k", "refused"),
    ),
    Mutant(
        "s3-condition", "storage/s3.py",
        '{"IfNoneMatch": "*"} if exclusive else {}', "{}",
        ("tests/conformance/test_store_suite_s3.py", "-k", "exclusive"),
    ),
    Mutant(
        "s3-cut-body", "storage/s3.py",
        "if expected is not None and len(data) < min(expected, size):", "if False:",
        ("tests/unit/test_s3_places.py", "-k", "shorter_than_said"),
    ),
    Mutant(
        "s3-stale-client", "storage/s3.py",
        "skip_instance_cache=True", 'skip_instance_cache="key" not in options',
        ("tests/faults/test_bucket_options.py", "-k", "names_later"),
    ),
    Mutant(
        "s3-time-zone", "storage/s3_http.py",
        "parsers.set_parser_defaults(timestamp_parser=instant)", "pass",
        ("tests/unit/test_s3_times.py",),
    ),
    Mutant(
        "s3-perhaps-sent", "storage/s3_errors.py", "sent=not refused", "sent=False",
        ("tests/faults/test_bucket_proxy.py",),
    ),
)  # fmt: skip
WRITING = (
    Mutant(
        "pack-not-synced", "writing/pack.py",
        "            self.keys.append(key)\n            self.stored_bytes += target.size\n",
        "            self.stored_bytes += target.size\n", ORDER,
    ),
    Mutant(
        "pack-failure", "writing/pack.py",
        "        self._stop()\n        self._raise()\n", "        self._stop()\n",
        only(PART, "last_pack_fails"),
    ),
    Mutant(
        "pool-without-threads", "threads.py", "return bool(self._threads)", "raise", THREADS,
    ),
    Mutant(
        "pool-joined-at-exit", "threads.py", "(self._threads)}\", daemon=True",
        "(self._threads)}\", daemon=False", only(CALLS, "hangs"),
    ),
    Mutant(
        "pool-waits-for-what-hangs", "threads.py", "HURRY_S if hurry else None", "None",
        only(STUCK, "head and shallow"),
    ),
    Mutant(
        "pool-waits-for-nothing", "threads.py", "HURRY_S if hurry else None", "0.0",
        only(CALLS, "waits_for_what_runs"),
    ),
    Mutant(
        "pool-never-idle", "threads.py", "            self.unfinished -= 1\n", "            pass\n",
        only(CALLS, "reused"),
    ),
    Mutant(
        "pool-keeps-what-failed", "threads.py",
        "            del call\n        else", "        else",
        only(CALLS, "keeps_nothing"),
    ),
    Mutant(
        "pool-never-dropped", "threads.py",
        "        # Its threads hold the calls only.\n        self._calls.close()\n",
        "        pass\n", only(CALLS, "dropped"),
    ),
    Mutant(
        "lease-renewed-in-vain", "adapters/transfer_queue/hold.py",
        "            deadline, timer = time.monotonic() + seconds, self._armed(seconds)\n",
        "            self._timer.cancel()\n"
        "            deadline, timer = time.monotonic() + seconds, self._armed(seconds)\n",
        only(THREADS, "lease_that"),
    ),
    Mutant(
        "pack-alignment", "writing/pack.py",
        "        self._put(current, padding)\n", "",
        ("tests/conformance/test_golden.py",),
    ),
    Mutant(
        "together-negated", "adapters/torch_values.py",
        "if len(bounds) * _RUN > rows or any(map(torch.Tensor.is_neg, tensors)):",
        "if len(bounds) * _RUN > rows:", only(TOGETHER, "negated"),
    ),
    Mutant(
        "together-order", "adapters/torch_values.py",
        "if signature.ndim and not all(map(torch.Tensor.is_contiguous, tensors)):", "if False:",
        only(TOGETHER, "another_order"),
    ),
    Mutant(
        "together-neighbours", "adapters/torch_values.py",
        "breaks = np.flatnonzero(begins[1:] != (begins + counts * size)[:-1]) + 1",
        "breaks = np.zeros(0, np.int64)", only(TOGETHER, "one_batch"),
    ),
    Mutant(
        "unit-versions-late", "adapters/transfer_queue/unit_rows.py",
        "                self._versions[chosen] = _summed(columns.values(), len(chosen))\n"
        "                yield from _loaded(self._cut.spilled, keys, indexes, columns)\n",
        "                yield from _loaded(self._cut.spilled, keys, indexes, columns)\n"
        "                self._versions[chosen] = _summed(columns.values(), len(chosen))\n",
        ("tests/unit/test_transfer_queue_incremental.py",),
    ),
    Mutant(
        "table-rest-shared", "writing/table.py",
        "(name, column.copy() if isinstance(picked.get(name), WHOLE) else column)",
        "(name, column)", ("tests/unit/test_cells_torch.py", "-k", "overwritten"),
    ),
    Mutant(
        "part-packs-first", "writing/part.py",
        "            self._packs.close()\n            name", "            name",
        only(("tests/unit/test_part_writer.py",), "last_pack"),
    ),
    Mutant(
        "part-sync", "writing/part.py",
        "            self._store.sync(self._packs.keys)\n", "", ORDER,
    ),
    Mutant(
        "part-lease", "writing/part.py",
        "if not self._store.has_workspace(self._workspace):", "if False:",
        only(ATTEMPT, "taken_over"),
    ),
    Mutant(
        "part-deadline", "writing/part.py",
        "if time.time_ns() > self._ticket.deadline_ns:", "if False:", only(PART, "deadline"),
    ),
    Mutant(
        "part-forked-child", "writing/part.py",
        "if not self._done and self._packs.is_owner:", "if not self._done:",
        SAFEGUARDS,
    ),
    Mutant(
        "attempt-lease-ran-out", "writing/attempt.py",
        "if time.time_ns() > self._lease.expires_at_ns:", "if False:",
        ("tests/unit/test_repository.py", "-k", "ran_out"),
    ),
    Mutant(
        "attempt-lease-check", "writing/attempt.py",
        "        self._check_lease()\n        metadata", "        metadata",
        SAFEGUARDS,
    ),
    Mutant(
        "attempt-lost-object", "writing/attempt.py",
        "if size is None or size < end:", "if False:", only(ATTEMPT, "not_whole"),
    ),
    Mutant(
        "attempt-short-object", "writing/attempt.py",
        "if size is None or size < end:", "if size is None:", only(ATTEMPT, "not_whole"),
    ),
    Mutant(
        "attempt-index-digest", "writing/attempt.py",
        "        digest.check(data, receipt.index_digest, what=key)\n", "",
        only(ATTEMPT, "not_whole"),
    ),
    Mutant(
        "attempt-foreign-receipt", "writing/attempt.py",
        "if receipt.attempt_id != self.id:", "if False:", SAFEGUARDS,
    ),
    Mutant(
        "attempt-part-twice", "writing/attempt.py",
        "if len(set(names)) != len(names):", "if False:", SAFEGUARDS,
    ),
    Mutant(
        "attempt-foreign-pack", "writing/attempt.py",
        "        if self._base is not None:\n            check_reach",
        "        if False:\n            check_reach", only(BASE, "does_not_is_refused"),
    ),
    Mutant(
        "attempt-read-back", "writing/attempt.py",
        'if self._read_back(manifest, data, None) != "ours":', "if False:", LINKS,
    ),
    Mutant(
        "attempt-settle", "writing/attempt.py",
        "            self._store.sync([layout.manifest_key(self.number)])\n",
        "            pass\n", only(ATTEMPT, "may_not_be_durable"),
    ),
    Mutant(
        "attempt-whose-manifest", "writing/attempt.py",
        'return "ours" if found.write_id == manifest.write_id else "theirs"', 'return "ours"',
        only(ATTEMPT, "conflict"),
    ),
    Mutant(
        "attempt-unknown", "writing/attempt.py",
        'if outcome == "unknown" or isinstance(error, OutcomeUnknownError):', "if False:",
        only(ATTEMPT, "unknown"),
    ),
    Mutant(
        "attempt-reclaim-fence", "writing/reclaim.py",
        "    store.fence_workspace(workspace, by_owner=by_owner)\n", "",
        only(ATTEMPT, "take_over or taken_over or mid_clean_up"),
    ),
    Mutant(
        "attempt-reclaim-published", "writing/reclaim.py",
        "    if keys and not _published(store, attempt_id, _numbers(store, attempt_id, by_owner)):",
        "    if True:",
        only(ATTEMPT, "keeps_what"),
    ),
    Mutant(
        "attempt-reclaim-damaged-lease", "writing/reclaim.py",
        "        if by_owner:\n            return\n", "        return\n",
        only(RETIRE, "does_not_trust"),
    ),
    Mutant(
        "attempt-reclaim-in-doubt", "writing/reclaim.py",
        "            except SnapfmtError:\n                return True\n",
        "            except SnapfmtError:\n                continue\n", only(ATTEMPT, "in_doubt"),
    ),
    Mutant(
        "attempt-reclaim-retired", "writing/reclaim.py",
        "for document in (layout.MANIFEST, layout.RETIRING, layout.RETIRED):",
        "for document in (layout.MANIFEST,):", only(RETIRE, "clean_up_never_takes"),
    ),
    Mutant(
        "attempt-forked-child", "writing/attempt.py",
        "        if self._pid != os.getpid():\n            return\n", "",
        ("tests/unit/test_refusals.py", "-k", "forked"),
    ),
    Mutant(
        "lease-renewal", "writing/lease.py",
        '"expires_at_ns": time.time_ns() + int(seconds * 1e9)',
        '"expires_at_ns": lease.expires_at_ns',
        ("tests/unit/test_repository.py", "-k", "lease"),
    ),
    Mutant(
        "lease-generation", "writing/lease.py", "lease.generation + 1", "lease.generation",
        SAFEGUARDS,
    ),
    Mutant(
        "lease-owner-namespace", "writing/owner.py", "or not space or space != here", "",
        ("tests/unit/test_small_parts.py", "-k", "owner"),
    ),
    Mutant(
        "lease-owner-strange-proc", "writing/owner.py",
        'if os.readlink("/proc/self") != str(os.getpid()):', "if False:", OWNER,
    ),
    Mutant(
        "lease-owner-shifted-time", "writing/owner.py",
        'if os.readlink("/proc/self/ns/time") != _TIME_SPACE:', "if False:", OWNER,
    ),
    Mutant(
        "lease-owner-started", "writing/owner.py",
        "else started != owner.pid_started", "else False",
        ("tests/unit/test_small_parts.py", "-k", "owner"),
    ),
    Mutant(
        "lease-owner-hidden", "writing/owner.py",
        "_is_gone(owner.pid) if started is None", "True if started is None",
        ("tests/faults/test_exhaustion.py", "-k", "looked_at"),
    ),
    Mutant(
        "verify-shut-folder", "reading/verify.py",
        "            self._blind.add(number or 0)\n        self._failed(error, folder",
        "            pass\n        self._failed(error, folder", SHUT,
    ),
    Mutant(
        "numbers-shut-folder", "storage/posix.py", "yield entry.name, -1", "pass", SHUT,
    ),
    Mutant(
        "repair-shut-folder", "repair/places.py",
        "                members.append(_Read(None, error=error))\n                continue",
        "                continue", SHUT,
    ),
    Mutant(
        "probe-left-behind", "storage/probes.py",
        "and now - modified > _AGE_NS", "and now - modified > 2**63",
        ("tests/unit/test_small_parts.py", "-k", "probes"),
    ),
    Mutant(
        "retire-held", "writing/retire.py",
        "if reason := held.get(number):", "if reason := None:",
        only(RETIRE, "builds_on_is_not_retired or pinned"),
    ),
    Mutant(
        "retire-out-is-durable", "writing/retire.py",
        "        store.sync([layout.snapshot_key(number, layout.RETIRING)])\n", "",
        RETIRE_ORDER,
    ),
    Mutant(
        "retire-packs-first", "writing/retire.py",
        "in (item.objects.keys() - indexes, indexes):", "in (indexes, item.objects.keys() - indexe"
        "s):", ("tests/faults/test_retire_crashes.py", "-k", "order or all_but"),
    ),
    Mutant(
        "retire-removal-sync", "writing/retire.py", "        store.sync(gone)\n", "",
        RETIRE_ORDER,
    ),
    Mutant(
        "retire-shared-objects", "writing/retire.py",
        "sorted(group - stay)", "sorted(group)", only(RETIRE, "only_the_retired or packs_go"),
    ),
    Mutant(
        "retire-held-objects", "writing/retire.py", "stay = kept.union(waiting)", "stay = kept",
        only(RETIRE, "held_stays or running_save_wrote"),
    ),
    Mutant(
        "retire-running-saves", "writing/keeping.py",
        "            if journals:\n", "            if False:\n",
        only(RETIRE, "running_save_wrote"),
    ),
    Mutant(
        "retire-save-without-lease", "writing/keeping.py",
        "elif self.store.has_workspace(workspace):", "elif False:",
        only(RETIRE, "nothing_is_removed or without_a_lease"),
    ),
    Mutant(
        "retire-unknown-feature", "writing/keeping.py",
        '        compat.require(manifest.features, "collect", what=key)\n', "",
        only(RETIRE, "nothing_is_removed"),
    ),
    Mutant(
        "retire-unreadable", "writing/keeping.py",
        "                if self._is_there(number):\n                    raise _unreadable",
        "                if False:\n                    raise _unreadable",
        only(RETIRE, "becomes_unknown or nothing_is_removed"),
    ),
    Mutant(
        "retire-foreign-manifest", "writing/keeping.py",
        "if (manifest.number, manifest.repository_id) != (number, self._repository_id):",
        "if False:", only(RETIRE, "anothers_removes or nothing_is_removed"),
    ),
    Mutant(
        "carry-bitmap", "writing/carry.py",
        "bits[self.kept if live is None else live[self.kept]] = True",
        "bits[self.kept] = True", only(BASE, "selection_of_a_selection"),
    ),
    Mutant(
        "carry-keys", "writing/carry.py",
        "return found if self.kept is None else found.take(pa.array(self.kept))",
        "return found[: self.rows]", only(BASE, "rewritten or died_in_steps"),
    ),
    Mutant(
        "carry-repeated-key", "writing/carry.py",
        "        if len(repeated):", "        if False:", only(BASE, "carried_row_has"),
    ),
    Mutant(
        "carry-twice", "writing/carry.py", "if number in self._taken:", "if False:",
        only(BASE, "carried_once"),
    ),
    Mutant(
        "base-reach", "writing/base.py", "if name not in reached:", "if False:",
        only(BASE, "does_not_is_refused"),
    ),
    Mutant(
        "base-taken-out", "writing/base.py",
        "if (manifest.number, manifest.repository_id) != (number, repository_id):", "if False:",
        SAFEGUARDS,
    ),
    Mutant(
        "base-lease", "writing/base.py", "if lease.attempt_id != ticket.attempt_id:", "if False:",
        SAFEGUARDS,
    ),
)  # fmt: skip
READING = (
    Mutant(
        "segment-select-live", "reading/segment.py",
        "self._batches_of(positions if self.live is None else self.live[positions])",
        "self._batches_of(positions)", only(BASE, "died_in_steps"),
    ),
    Mutant(
        "segment-plan-live", "reading/segment.py",
        "yield from self._batches_of(self.live[start:stop])",
        "yield from self._batches_of(np.arange(start, stop))", LIVE,
    ),
    Mutant(
        "segment-keys-live", "reading/segment.py",
        "return column if self.live is None else column.take(pa.array(self.live))",
        "return column[: self.rows]", LIVE,
    ),
    Mutant(
        "segment-live-count", "reading/segment.py",
        "if len(rows) != document.live_rows:", "if False:", LIVE,
    ),
    Mutant(
        "segment-live-size", "reading/segment.py",
        "if len(data) != (document.rows + 7) // 8:", "if False:", LIVE,
    ),
    Mutant(
        "segment-header-digest", "reading/batch_checks.py",
        "if digest.raw_digest([header]) != place.header_digest:", "if False:",
        VERIFY,
    ),
    Mutant(
        "segment-arrow-header", "reading/batch_checks.py",
        "    if header != arrow_stream.batch_header(", "    if not arrow_stream.batch_header(",
        SAFEGUARDS,
    ),
    Mutant(
        "segment-stored-keys", "reading/batch_checks.py",
        "    same = keys.are(columns[0], place.row_start)\n", "    same = True\n",
        SAFEGUARDS,
    ),
    Mutant(
        "source-digest", "reading/source.py",
        "        digest.check(data, expected, what=what)\n", "", only(CORRUPT, "flipped"),
    ),
    Mutant(
        "source-range", "reading/source.py",
        "if offset < 0 or size < 0 or offset + size > location.size:", "if False:",
        SAFEGUARDS,
    ),
    Mutant(
        "chunk-digest", "format/chunks.py",
        "len(chunk.data) != chunk.place.size or got != chunk.place.digest",
        "len(chunk.data) != chunk.place.size",
        only(CORRUPT, "flipped"),
    ),
    Mutant(
        "snapshot-number", "reading/snapshot.py",
        "if manifest.number != number:", "if False:",
        ("tests/unit/test_repository.py", "-k", "false_number"),
    ),
    Mutant(
        "snapshot-repository", "reading/snapshot.py",
        "if repository_id is not None and manifest.repository_id != repository_id:", "if False:",
        ("tests/unit/test_repository.py", "-k", "false_number"),
    ),
    Mutant(
        "snapshot-record-count", "reading/snapshot.py", "if len(index) != item.records:",
        "if False:", SAFEGUARDS,
    ),
    Mutant(
        "snapshot-frames", "reading/snapshot.py", "if position != item.location.size:",
        "if False:", SAFEGUARDS,
    ),
    Mutant(
        "verify-missing", "reading/verify.py",
        '                self._find("missing", "damage", key, "object is not there", harmed)\n',
        "                pass\n", only(CORRUPT, "missing or findings"),
    ),
    Mutant(
        "verify-truncated", "reading/verify.py",
        "        if end is not None and size < end:", "        if False:",
        only(CORRUPT, "findings"),
    ),
    Mutant(
        "verify-digest", "reading/verify.py",
        "        if mark != layout.object_digest(key):\n            self._find(\n",
        "        if not mark:\n            self._find(\n",
        only(CORRUPT, "grew or flipped"),
    ),
    Mutant(
        "verify-canonical", "reading/verify.py",
        "if data != canonical.encode(snapshot.manifest):", "if False:", VERIFY,
    ),
    Mutant(
        "verify-receipt", "reading/checks.py",
        "if held != said or len(index.entries) != receipt.entries:", "if False:", VERIFY,
    ),
    Mutant(
        "verify-record-sum", "reading/checks.py",
        "if sum(entry.records or 0 for entry in index.entries) != receipt.records:", "if False:",
        VERIFY,
    ),
    Mutant(
        "verify-line-sizes", "reading/checks.py", "if len(line) != place.line_size:", "if False:",
        SAFEGUARDS,
    ),
    Mutant(
        "verify-repeated-key", "reading/verify.py", "if len(keys) != before + item.rows:",
        "if False:", VERIFY,
    ),
    Mutant(
        "newest-whole", "reading/newest.py", "if damage := report.damage:", "if False:",
        ("tests/unit/test_repository.py", "-k", "newest or deep"),
    ),
    Mutant(
        "newest-outage", "reading/newest.py",
        "        except StorageUnavailable:\n", "        except ZeroDivisionError:\n",
        ("tests/faults/test_bucket_outage.py", "-k", "go_back"),
    ),
)  # fmt: skip
TRANSFER = (
    Mutant(
        "copy-digest", "transfer/moving.py", "if got != layout.object_digest(key):", "if False:",
        only(COPY, "damaged"),
    ),
    Mutant(
        "copy-present-size", "transfer/moving.py",
        "if self.target.size(key) != size:", "if self.target.size(key) is None:",
        only(COPY, "wrong_size"),
    ),
    Mutant(
        "copy-source-size", "transfer/moving.py", "        if size < end:", "        if False:",
        only(COPY, "damaged"),
    ),
    Mutant(
        "copy-large", "transfer/moving.py",
        "(keys - small, self.workers)", "(keys - small, together)",
        only(("tests/unit/test_round_trips.py",), "large_objects"),
    ),
    Mutant(
        "copy-deep", "transfer/moving.py",
        "return not deep or self._hash(key, size, stop) == layout.object_digest(key)",
        "return True", only(COPY, "deep"),
    ),
    Mutant(
        "copy-sync", "transfer/copying.py",
        "                self._target.store.sync(self.objects)\n", "",
        only(COPY, "durable"),
    ),
    Mutant(
        "copy-ground-moved", "transfer/copying.py",
        "if self._ground.state(self._number) == state:", "if True:",
        only(COPY, "meanwhile or before_it"),
    ),
    Mutant(
        "copy-hold", "transfer/copying.py", "                claim.hold(base)\n",
        "                pass\n", only(COPY, "held"),
    ),
    Mutant(
        "copy-foreign-save", "transfer/copying.py",
        "if foreign_objects(self._target.store).intersection(self.objects):", "if False:",
        only(COPY, "claims"),
    ),
    Mutant(
        "copy-repair", "transfer/copying.py", "            self._repair(mover)\n", "",
        only(COPY, "last_moment"),
    ),
    Mutant(
        "copy-claim", "transfer/copying.py", "        claim.check()\n", "",
        only(COPY, "taken_over or ran_out or lease"),
    ),
    Mutant(
        "copy-conflict", "transfer/copying.py",
        "        raise self._conflict()\n\n    def _complete", "        return True\n\n    def _com"
        "plete", only(COPY, "conflict"),
    ),
    Mutant(
        "copy-readable", "transfer/copying.py", "if not self._is_readable():", "if False:",
        only(COPY, "read_back"),
    ),
    Mutant(
        "copy-retired", "transfer/copying.py",
        "if {layout.RETIRING, layout.RETIRED}.intersection(names):", "if False:",
        only(COPY, "stays_away"),
    ),
    Mutant(
        "ground-retiring", "transfer/ground.py",
        "if self._may_take(number, needed, safe):", "if False:", only(COPY, "retirement"),
    ),
    Mutant(
        "claim-renewal", "transfer/claim.py",
        "if lease.expires_at_ns - now > self._seconds * 1e9 / 2:", "if True:",
        only(COPY, "renewed"),
    ),
    Mutant(
        "claim-ran-out", "transfer/claim.py",
        "if time.time_ns() > lease.expires_at_ns:", "if False:", SAFEGUARDS,
    ),
    Mutant(
        "claim-sweep-living", "transfer/claim.py",
        "        if is_over(lease):\n            outer",
        "        if True:\n            outer", only(COPY, "sweep"),
    ),
    Mutant(
        "claim-sweep-saves", "transfer/claim.py",
        "if _is_no_save(store, lease.attempt_id) or not store.has_workspace(outer):", "if True:",
        only(COPY, "sweep"),
    ),
)  # fmt: skip
COLLECTING = (
    Mutant(
        "keeping-pins", "writing/keeping.py",
        'found.numbers[pinned(self.store, key, self._limits)] = f"pinned by {name}"',
        "pinned(self.store, key, self._limits)", only(PINS, "stays_until"),
    ),
    Mutant(
        "keeping-bases", "writing/keeping.py",
        "                if lease.base is not None:\n", "                if False:\n",
        only(COLLECT, "began_on"),
    ),
    Mutant(
        "keeping-held-unreadable", "writing/keeping.py",
        "elif number in leaving or number in self.unreadable:", "elif False:",
        only(RETIRE, "went_out_must_be_readable"),
    ),
    Mutant(
        "keeping-not-whole", "writing/keeping.py",
        "whole=None not in parts", "whole=True",
        only(RETIRE, "went_out_must_be_readable"),
    ),
    Mutant(
        "keeping-looked-at-once", "writing/keeping.py",
        "            before = now\n", "            break\n", LOOKS,
    ),
    Mutant(
        "keeping-went-out", "writing/keeping.py",
        "_OPEN = frozenset({layout.MANIFEST, layout.RETIRING})",
        "_OPEN = frozenset({layout.MANIFEST})", LOOKS,
    ),
    Mutant(
        "keeping-went-out-meanwhile", "writing/keeping.py",
        "        if found is not None:\n            return found\n", "        return found or {}\n",
        LOOKS,
    ),
    Mutant(
        "keeping-standing-manifest", "writing/keeping.py",
        "            if layout.RETIRING in self.store.names(folder(number)):\n"
        "                raise",
        "            if False:\n                raise", LOOKS,
    ),
    Mutant(
        "keeping-standing-part", "writing/keeping.py",
        "            except SnapfmtError as error:\n"
        "                raise _unreadable(number, error) from error\n        return found",
        "            except SnapfmtError:\n                continue\n        return found", LOOKS,
    ),
    Mutant(
        "keeping-copied-first", "writing/keeping.py",
        "if document in names and (document == layout.MANIFEST or layout.MANIFEST not in names)",
        "if document in names", LOOKS,
    ),
    Mutant(
        "keeping-lease-unreadable", "writing/keeping.py",
        '        except (CorruptError, RefusedError) as error:\n'
        '            raise _refused("a lease cannot be read", key, error) from error\n',
        "        except (CorruptError, RefusedError):\n            return None\n",
        only(COLLECT, "unknown_is_refused"),
    ),
    Mutant(
        "keeping-closed-for-good", "writing/keeping.py", "self._gone.add(number)", "pass",
        only(RETIRE, "looked_at_once"),
    ),
    Mutant(
        "lease-not-made", "writing/lease.py",
        "        raise\n    except SnapfmtError:\n        give_back(store, lease.attempt_id)\n",
        "        raise\n    except SnapfmtError:\n", only(EXHAUSTION, "cannot_be_synced"),
    ),
    Mutant(
        "lease-given-up", "writing/attempt.py",
        "            give_back(self._store, self.id)\n", "", only(EXHAUSTION, "cannot_be_synced"),
    ),
    Mutant(
        "lease-of-another", "writing/lease.py",
        "    except ConflictError:\n        raise\n", "", only(EXHAUSTION, "lease_of_a_process"),
    ),
    Mutant(
        "tagged-finite", "format/tagged.py",
        "parse_float=finite, ", "", only(STRICT, "bends"),
    ),
    Mutant(
        "tagged-repeats", "format/tagged.py",
        "return unique_pairs(members)", "return dict(members)", only(STRICT, "bends"),
    ),
    Mutant(
        "tagged-repeated-items", "format/tagged.py",
        "if len(found) != len(content):", "if False:", only(STRICT, "repeats"),
    ),
    Mutant(
        "document-finite", "format/canonical.py",
        "            parse_float=finite,\n", "", only(STRICT, "bends"),
    ),
    Mutant(
        "verify-lines", "reading/checks.py",
        "            lines.parse(line)\n", "            pass\n", only(STRICT, "lines_as"),
    ),
    Mutant(
        "folders-emptied", "reading/folders.py",
        "if _is_snapshot(name) and not inside & layout.DOCUMENTS:", "if False:",
        only(FOLDERS, "gone_without_a_word"),
    ),
    Mutant(
        "folders-none-at-all", "writing/collect.py",
        "            check_any(self._store)\n", "            pass\n",
        only(FOLDERS, "gone_without_a_word"),
    ),
    Mutant(
        "keeping-nothing-left", "writing/keeping.py",
        "            self._check_was_there(number, reason)\n", "            pass\n",
        only(FOLDERS, "without_a_word"),
    ),
    Mutant(
        "folders-of-the-root", "repository.py",
        "        check_tops(self._store)\n        gone", "        gone",
        only(FOLDERS, "one_of_the_four"),
    ),
    Mutant(
        "folders-before-a-pin", "repository.py",
        "        check_tops(self._store)\n        return pin(", "        return pin(",
        only(FOLDERS, "one_of_the_four"),
    ),
    Mutant(
        "folders-before-a-copy", "transfer/claim.py",
        "    check_tops(store)\n", "", only(FOLDERS, "one_of_the_four"),
    ),
    Mutant(
        "folders-of-snapshots", "repository.py",
        "        check_all(self._store, self._gone)\n", "",
        only(FOLDERS, "a_snapshots_folder"),
    ),
    Mutant(
        "folders-in-doubt", "writing/reclaim.py",
        "    if hidden(store):\n        return True\n", "", only(FOLDERS, "in_doubt"),
    ),
    Mutant(
        "folders-behind-a-link", "storage/local.py",
        "found = self._listed(names_beneath, prefix)",
        "found = sorted(os.listdir(self._path(prefix) if prefix else self._root))",
        only(FOLDERS, "stranger"),
    ),
    Mutant(
        "folders-unknown-reach", "reading/verify.py",
        '            self._blind.add(layout.snapshot_number(key.rpartition("/")[2]) or 0)\n', "",
        only(FOLDERS, "a_snapshots_folder"),
    ),
    Mutant(
        "pin-without-number", "writing/keeping.py",
        'name = layout.snapshot_name(number) if type(number) is int else ""',
        'name = layout.snapshot_name(number) if isinstance(number, int) else ""',
        only(RETIRE, "unknown_nothing"),
    ),
    Mutant(
        "pin-other-name", "writing/keeping.py",
        'if found is None or not key.endswith(".json"):', "if found is None:",
        only(RETIRE, "unknown_nothing"),
    ),
    Mutant(
        "pin-look-before", "writing/pins.py",
        "    _check_published(store, number)\n    # A", "    # A", only(RACES, "refused_writes"),
    ),
    Mutant(
        "pin-look-after", "writing/pins.py",
        "        _check_published(store, number)\n        _make", "        _make",
        only(RACES, "just_before"),
    ),
    Mutant(
        "pin-lease-first", "writing/pins.py",
        "    take(store, lease)\n    try:\n"
        "        _let_retirements_end(store, number, limits)\n",
        "    _let_retirements_end(store, number, limits)\n"
        "    take(store, lease)\n    try:\n",
        only(RACES, "before_the_lease"),
    ),
    Mutant(
        "pin-lease-names-it", "writing/pins.py",
        "new_lease(0, base=number,", "new_lease(0, base=None,",
        only(RACES, "leaves_it"),
    ),
    Mutant(
        "pin-waits", "writing/pins.py",
        "        _let_retirements_end(store, number, limits)\n", "",
        only(RACES, "may_have_looked or waits_for"),
    ),
    Mutant(
        "pin-gives-up", "writing/pins.py",
        "    if _still(store, running, limits):", "    if False:",
        only(RACES, "may_have_looked"),
    ),
    Mutant(
        "pin-waits-for-those-before", "writing/pins.py",
        "return {item for item in running if store.has_workspace(layout.retire_key(item))}",
        "return present(store, layout.retire_key)", only(RACES, "announced_later"),
    ),
    Mutant(
        "pin-reclaims", "writing/pins.py", "            reclaim(store, attempt_id)\n",
        "            pass\n", only(RACES, "not_block_pins"),
    ),
    Mutant(
        "pin-reclaims-what-is-over", "writing/pins.py",
        "running.intersection(over(store, limits))", "running", only(RACES, "may_have_looked"),
    ),
    Mutant(
        "pin-settles", "writing/pins.py", "        _let_it_settle(store, number)\n", "",
        only(RACES, "two_requests"),
    ),
    Mutant(
        "pin-lease-lost", "writing/pins.py", "        if store.size(held) is None:",
        "        if False:", only(RACES, "taken_away"),
    ),
    Mutant(
        "pin-lease-given-back", "writing/pins.py",
        "        give_back(store, lease.attempt_id)\n", "        pass\n", only(RACES, "leaves_it"),
    ),
    Mutant(
        "pin-lease-to-the-end", "writing/pins.py",
        "        _make(store, found, limits)\n        if store.size(held) is None:",
        "        lost = store.size(held) is None\n        store.delete(held)\n"
        "        _make(store, found, limits)\n        if lost:", only(RACES, "the_lease_goes"),
    ),
    Mutant(
        "retire-announced", "writing/retire.py",
        "        with Presence(self._store, layout.retire_key) as seen:",
        "        with Presence(self._store, layout.collect_key) as seen:",
        only(RACES, "may_have_looked"),
    ),
    Mutant(
        "retire-looks-again", "writing/retire.py",
        "            held = self._held(without=[seen.id])\n", "            held = {}\n",
        only(RACES, "looked_at_again"),
    ),
    Mutant(
        "retire-looks-when-announced", "writing/retire.py",
        "        with Presence(self._store, layout.retire_key) as seen:\n"
        "            held = self._held(without=[seen.id])\n",
        "        held = self._held()\n"
        "        with Presence(self._store, layout.retire_key) as seen:\n",
        only(RACES, "looked_at_again"),
    ),
    Mutant(
        "retire-looks-before-each", "writing/retire.py",
        "                    seen.check()\n                    retired +=",
        "                    retired +=", only(RACES, "taken_for_dead or before_each_step"),
    ),
    Mutant(
        "retire-nothing-announced", "writing/retire.py",
        "self._take_out(spare) if spare else ([], {})", "self._take_out(spare)",
        only(RACES, "nothing_goes"),
    ),
    Mutant(
        "retire-refused-unannounced", "writing/retire.py",
        "        if number not in held:\n            # All", "        if True:\n            # All",
        only(RACES, "nothing_goes"),
    ),
    Mutant(
        "pin-conflict", "writing/pins.py", "if pinned(store, key, limits) != found.number:",
        "if False:", PINS,
    ),
    Mutant(
        "lease-clock-of-others", "writing/lease.py",
        "skew = 0 if has_this_clock(lease.owner) else SKEW_NS", "skew = 0",
        only(COLLECT, "an_hour_off"),
    ),
    Mutant(
        "lease-own-clock", "writing/lease.py",
        "skew = 0 if has_this_clock(lease.owner) else SKEW_NS", "skew = SKEW_NS",
        only(RETIRE, "ran_out_hold_nothing"),
    ),
    Mutant(
        "lease-this-clock", "writing/owner.py",
        "return bool(owner.boot_id) and owner.boot_id == _boot_id()", "return True",
        only(COLLECT, "an_hour_off"),
    ),
    Mutant(
        "lease-dead-owner", "writing/lease.py",
        "    if is_dead(lease.owner):\n        return True\n", "", only(COLLECT, "dry_run"),
    ),
    Mutant(
        "lease-without", "writing/lease.py", "return gone + _without_lease(store, names)",
        "return gone", only(RETIRE, "without_a_lease"),
    ),
    Mutant(
        "lease-listed-once", "writing/lease.py",
        "sorted(bare.difference(_holders(store.names(layout.ATTEMPTS)))) if bare else []",
        "sorted(bare)", only(RETIRE, "while_they_were_listed"),
    ),
    Mutant(
        "retire-indexes-with-packs", "writing/retire.py",
        "for group in (item.objects.keys() - indexes, indexes):",
        "for group in (item.objects.keys(),):", RETIRE_ORDER,
    ),
    Mutant(
        "retire-closed-while-held", "writing/retire.py",
        "        if item.objects.keys().isdisjoint(waiting):\n            _close",
        "        if True:\n            _close", only(COLLECT, "began_on"),
    ),
    Mutant(
        "collect-listed-first", "writing/collect.py",
        "        standing = keeping.standing(leaving)\n        retired",
        "        standing = keeping.standing(leaving)\n"
        "        listed = dict(self._store.walk(layout.OBJECTS))\n        retired",
        only(COLLECT, "after_the_leases"),
    ),
    Mutant(
        "collect-preflight", "writing/collect.py",
        "        plan = self._plan(listed, without=attempts, dry_run=True)\n",
        "        if dry_run:\n"
        "            plan = self._plan(listed, without=attempts, dry_run=True)\n",
        only(COLLECT, "unknown_is_refused"),
    ),
    Mutant(
        "collect-retiring-unreadable", "writing/collect.py", "if keeping.unreadable:", "if False:",
        only(COLLECT, "unknown_is_refused"),
    ),
    Mutant(
        "collect-settle", "writing/collect.py",
        "            settle(self._store, leaving)\n", "            pass\n", COLLECT_ORDER,
    ),
    Mutant(
        "collect-settled-in-a-dry-run", "writing/collect.py",
        "without={*without, *ended}", "without=without", only(COLLECT, "dry_run"),
    ),
    Mutant(
        "collect-clean-up", "writing/collect.py",
        "                reclaim(store, attempt_id)\n", "                pass\n",
        only(COLLECT, "dry_run"),
    ),
    Mutant(
        "collect-not-held-by-itself", "writing/collect.py",
        "without=[seen.id]", "without=()", only(COLLECT, "names_nobody"),
    ),
    Mutant(
        "collect-standing", "writing/collect.py", "if key in standing:", "if False:",
        only(COLLECT, "orphans_go"),
    ),
    Mutant(
        "collect-waiting", "writing/collect.py", "if key in waiting:", "if False:",
        only(COLLECT, "began_on"),
    ),
    Mutant(
        "collect-copies", "writing/collect.py", "if copying:", "if False:",
        only(COLLECT, "see_each_other"),
    ),
    Mutant(
        "collect-saves", "writing/collect.py",
        "if held.running and owners[key] in {None, *held.running}:", "if False:",
        only(COLLECT, "without_its_journal"),
    ),
    Mutant(
        "collect-nobodys", "writing/collect.py", "{None, *held.running}", "held.running",
        only(COLLECT, "names_nobody"),
    ),
    Mutant(
        "collect-own-workspace", "writing/presence.py",
        "            self._store.open_workspace(self._workspace, publishes=key)\n",
        "            pass\n", only(COLLECT, "orphans_go"),
    ),
    Mutant(
        "collect-workspace-seen", "writing/presence.py",
        "and store.has_workspace(workspace(attempt_id))", "and False",
        only(COLLECT, "are_collected"),
    ),
    Mutant(
        "collect-left-behind", "writing/presence.py",
        "        give_back(self._store, self.id)\n", "", only(COLLECT, "orphans_go"),
    ),
    Mutant(
        "collect-workspace-left-behind", "writing/presence.py",
        "            self._store.drop_workspace(self._workspace)\n", "",
        only(COLLECT, "orphans_go"),
    ),
    Mutant(
        "collect-taken-over", "writing/presence.py",
        "if left < 0 or not self._store.has_workspace(self._workspace):", "if left < 0:",
        only(COLLECT, "taken_over"),
    ),
    Mutant(
        "collect-late-unanswered", "writing/presence.py",
        "isinstance(error, StorageUnavailable) or not", "not", only(COLLECT, "may_still_come"),
    ),
    Mutant(
        "collect-late-interrupted", "writing/presence.py",
        " or not isinstance(error, Exception)", "", only(COLLECT, "may_still_come"),
    ),
    Mutant(
        "collect-late-refused", "writing/presence.py",
        "isinstance(error, StorageUnavailable) or not isinstance(error, Exception)", "True",
        only(COLLECT, "was_refused"),
    ),
    Mutant(
        "collect-late-an-hour", "writing/presence.py", "renewed(self._lease, LATE_S)",
        "self._lease", only(COLLECT, "may_still_come"),
    ),
    Mutant(
        "collect-ran-out", "writing/presence.py",
        "if left < 0 or not self._store.has_workspace(self._workspace):",
        "if not self._store.has_workspace(self._workspace):", only(COLLECT, "taken_over"),
    ),
    Mutant(
        "collect-renewal", "writing/presence.py",
        "if left < LEASE_SECONDS * 1e9 / 2:", "if False:",
        only(COLLECT, "renews"),
    ),
    Mutant(
        "collect-sync", "writing/collect.py",
        "                store.sync([item.key for item in gone])\n", "", COLLECT_ORDER,
    ),
    Mutant(
        "reclaim-collectors", "writing/reclaim.py",
        "    for key in layout.inner_keys(attempt_id):\n        store.drop_workspace(key)\n", "",
        only(COLLECT, "taken_over"),
    ),
    Mutant(
        "copy-collectors", "transfer/copying.py",
        "        refuse_collectors(self._target.store)\n", "", only(COLLECT, "are_collected"),
    ),
    Mutant(
        "claim-sweep-collectors", "transfer/claim.py",
        "return any(map(store.has_workspace, layout.inner_keys(attempt_id)))",
        "return is_copier(store, attempt_id)", only(COLLECT, "does_not_stop_copies"),
    ),
)  # fmt: skip
REPAIRING = (
    Mutant(
        "repair-home-digest", "repair/gathered.py",
        "            if self._mark(number, key, size) == wanted:", "            if True:",
        only(REPAIR, "two_copies"),
    ),
    Mutant(
        "repair-misnamed", "repair/gathered.py", "        if stray is not None:",
        "        if False:", only(REPAIR, "wrong_name"),
    ),
    Mutant(
        "repair-longest", "repair/gathered.py", "best = -max(found)[1] if found else 0", "best = 0",
        only(REPAIR, "longest"),
    ),
    Mutant(
        "repair-outage", "repair/gathered.py",
        "            except StorageUnavailable:\n                raise\n            except",
        "            except", only(REPAIR, "outage"),
    ),
    Mutant(
        "repair-audit-deep", "repair/repairing.py",
        "            deep=True,", "            deep=False,", only(REPAIR, "others_whole"),
    ),
    Mutant(
        "repair-closed-number", "repair/repairing.py",
        "                target.store.create(layout.manifest_key(number), CLOSED)\n",
        "                pass\n", only(REPAIR, "others_whole"),
    ),
    Mutant(
        "repair-strange-target", "repair/repairing.py",
        "set(target.numbers()) - set(whole)", "set()", only(REPAIR, "saved_into"),
    ),
    Mutant(
        "repair-sweep", "repair/repairing.py", "            sweep(target)\n", "", REPAIR_KILLED,
    ),
    Mutant(
        "repair-tidy", "repair/repairing.py", "                tidy(place)\n", "", REPAIR_KILLED,
    ),
    Mutant(
        "repair-looked-first", "repair/repairing.py",
        "            place.look(limits)\n", "            pass\n", only(REPAIR, "not_empty"),
    ),
    Mutant(
        "repair-empty", "repair/places.py", "            if strange:", "            if False:",
        only(REPAIR, "not_empty"),
    ),
    Mutant(
        "repair-mark", "repair/places.py", "            made_for != self.of\n",
        "            False\n", only(REPAIR, "not_empty"),
    ),
    Mutant(
        "repair-apart", "repair/places.py",
        "return first.startswith(second) or second.startswith(first)", "return first == second",
        only(REPAIR, "apart"),
    ),
    Mutant(
        "repair-links", "repair/places.py",
        "os.path.realpath(text", "os.path.abspath(text", only(REPAIR, "apart"),
    ),
    Mutant(
        "repair-retired", "repair/places.py",
        "        if number in retired:", "        if False:", only(REPAIR, "brought_back"),
    ),
    Mutant(
        "repair-retired-meanwhile", "repair/repairing.py",
        "if checks.was_retired(self._first, item)]", "if False]", only(REPAIR, "meanwhile"),
    ),
    Mutant(
        "repair-own-id", "repair/places.py",
        "item.manifest and item.manifest.repository_id == own]", "item.manifest]",
        only(REPAIR, "of_another_repository"),
    ),
    Mutant(
        "repair-same-copy", "repair/places.py",
        "        if found is not None and found.repository_id != item.repository_id:",
        "        if False:", only(REPAIR, "not_empty"),
    ),
    Mutant(
        "repair-keys-repeat", "repair/survey.py",
        "reason = _REPEATS if seen.intersection(own) or len({*own}) < len(own) else \"\"",
        "reason = \"\"", only(REPAIR, "repeat"),
    ),
    Mutant(
        "salvage-feature", "repair/pieces.py", "            features=FEATURES,\n", "",
        only(REPAIR, "pieces_of_what"),
    ),
    Mutant(
        "salvage-same", "repair/pieces.py", "        _check_same(pieces, original)\n", "",
        only(REPAIR, "of_that_number"),
    ),
    Mutant(
        "salvage-name-open", "repair/pieces.py",
        "        reclaim(pieces.store, attempt_id, by_owner=True)",
        "        reclaim(pieces.store, attempt_id)", only(REPAIR, "killed_in_a_bucket"),
    ),
    Mutant(
        "salvage-opened", "repository.py", "        if not salvage:", "        if False:",
        only(REPAIR, "takes_pieces"),
    ),
    Mutant(
        "salvage-newest", "repository.py",
        "        compat.refuse_salvage(self._document.features, what=self.location)\n", "",
        only(REPAIR, "takes_pieces"),
    ),
    Mutant(
        "salvage-copied", "transfer/copying.py",
        "    compat.refuse_salvage(source.document.features, what=source.location)\n", "",
        only(REPAIR, "takes_pieces"),
    ),
    Mutant(
        "verify-bad-is-no-claim", "reading/verify.py",
        "                if claim in self._good:\n                    continue\n",
        "                if claim in self._good:\n                    continue\n"
        "                self._good.add(claim)\n",
        only(VERIFY, "share"),
    ),
)  # fmt: skip
HOSTILE = (
    Mutant(
        "hostile-frame-content", "format/zframes.py",
        "size > limits.frame_content or size > len(data) * limits.expansion",
        "size < 0",
        FUZZ,
    ),
    Mutant(
        "hostile-behind-a-frame", "format/zframes.py",
        "    return position + (4 if header.has_checksum else 0) == length\n",
        "    return position + (4 if header.has_checksum else 0) <= length\n",
        FRAMES,
    ),
    Mutant(
        "hostile-empty-frame", "format/zframes.py",
        "full = [frame for frame in frames if frame.content_size > 0]",
        "full = [frame for frame in frames if frame.content_size >= 0]",
        FRAMES,
    ),
    Mutant(
        "hostile-stream-size", "format/arrow_bounds.py",
        "            if total > limits.frame_content or total > len(data) * limits.expansion:",
        "            if total < 0:",
        FUZZ,
    ),
    Mutant(
        "hostile-index-lists", "format/batch_index.py",
        "            if not (lengths == expected).all():", "            if len(lengths) < 0:",
        FUZZ,
    ),
    Mutant(
        "hostile-row-offsets", "format/chunks.py",
        "        len(offsets) != rows + 1\n        or offsets[0] != 0\n", "        False\n",
        FUZZ,
    ),
    Mutant(
        "hostile-shared-offsets", "format/chunks.py",
        "int(last[-1]) == values and part == self._data", "part == self._data",
        ("tests/unit/test_bounds.py", "-k", "same_offsets"),
    ),
    Mutant(
        "hostile-shard-index", "adapters/zarr_layout.py",
        "    if end < 0:\n", "    if False:\n",
        FUZZ,
    ),
    Mutant(
        "hostile-tagged-errors", "format/tagged.py",
        "    except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:",
        "    except (ValueError, KeyError, RecursionError) as error:",
        FUZZ,
    ),
)  # fmt: skip
CUTTING = (
    Mutant(
        "cut-ended-hold", "adapters/transfer_queue/controller.py",
        "    if held is None:\n", "    if False:\n", TAKE_CUT,
    ),
    Mutant(
        "cut-release-always", "adapters/transfer_queue/controller.py",
        "        finally:\n            # Whatever",
        "        except OSError:\n            raise\n        else:\n            # Whatever",
        TAKE_CUT,
    ),
    Mutant(
        "cut-waits-for-units", "adapters/transfer_queue/controller.py",
        "    finally:\n        # Also after",
        "    except OSError:\n        raise\n    else:\n        # Also after", TAKE_CUT,
    ),
    Mutant(
        "cut-units-under-hold", "adapters/transfer_queue/controller.py",
        "    asked = ask(units)\n",
        "    asked = ask(units)\n    _gate(controller).release(\"cut\")\n",
        TAKE_CUT,
    ),
    Mutant(
        "cut-collector-off", "../schemas/snapfmt_schemas/collector.py",
        "    gc.disable()\n", "", TAKE_CUT,
    ),
    Mutant(
        "cut-collector-on-again", "../schemas/snapfmt_schemas/collector.py",
        "        if collecting:\n", "        if False:\n", TAKE_CUT,
    ),
    Mutant(
        "cut-memory-at-hand", "adapters/transfer_queue/controller.py",
        "above = at_hand(copied_sizes(controller))", "above = None",
        only(TAKE_CUT, "no_memory"),
    ),
    Mutant(
        "cut-own-indexes", "adapters/transfer_queue/state.py",
        "active = list(status.global_indexes)", "active = status.global_indexes", TAKE_CUT,
    ),
    Mutant(
        "cut-own-pairs", "adapters/transfer_queue/state.py",
        "return list(items), list(items.values())", "return items, items.values()",
        TAKE_CUT,
    ),
    Mutant(
        "cut-own-allocated", "adapters/transfer_queue/state.py",
        "allocated = list(manager.allocated_indexes)", "allocated = manager.allocated_indexes",
        TAKE_CUT,
    ),
    Mutant(
        "cut-settled-references", "adapters/transfer_queue/unit.py",
        "        gc.collect(1)\n", "",
        only(("tests/unit/test_transfer_queue_incremental.py",), "no_collection"),
    ),
)  # fmt: skip
MUTANTS = STORAGE + WRITING + COLLECTING + READING + TRANSFER + REPAIRING + HOSTILE + CUTTING


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree, in which every mutant takes its turn."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                skip = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(source, tree / name, ignore=skip)
            else:
                shutil.copyfile(source, tree / name)
        yield tree


def run_tests(tree: Path, tests: Sequence[str], seconds: float) -> str:
    """`passed`, `failed`, `endless` or `broken` (no test ran)."""
    packages = (tree, tree / "schemas", tree / "coordinator")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        # They are not in the copy.
        "SNAPFMT_S3_SERVERS": str(s3_servers.programs()),
    }
    # All but the changed file is compiled once, and not for every mutant.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    base = tree.parent / "pytest"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, f"--basetemp={base}", *tests],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "endless"
    return {0: "passed", 1: "failed"}.get(process.returncode, "broken")


def judge(
    tree: Path, mutant: Mutant, seconds: float, sound: dict[tuple[str, ...], str]
) -> dict[str, object]:
    """Apply one mutant, run its tests, and put the file back.

    `sound` keeps what the tests say without a mutant: those that fail anyway kill nothing.
    """
    began = time.monotonic()
    if mutant.tests not in sound:
        sound[mutant.tests] = run_tests(tree, mutant.tests, seconds)
    if sound[mutant.tests] != "passed":
        return said(mutant, "broken", f"{sound[mutant.tests]} without it", began)
    before = mutant.apply(tree)
    try:
        outcome = run_tests(tree, mutant.tests, seconds)
    finally:
        replace_source(tree / "snapfmt" / mutant.file, before)
    killed = outcome in ("failed", "endless")
    word = "killed" if killed else "survived" if outcome == "passed" else "broken"
    return said(mutant, word, outcome, began)


def said(mutant: Mutant, outcome: str, how: str, began: float) -> dict[str, object]:
    """What is reported of one."""
    return {
        "name": mutant.name,
        "file": mutant.file,
        "outcome": outcome,
        "how": how,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the names only")
    parser.add_argument("--seconds", type=float, default=240.0, help="of each mutant's tests")
    given = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if given.list:
        print("\n".join(known))
        return 0
    began = time.monotonic()
    found = []
    sound: dict[tuple[str, ...], str] = {}
    with copied() as tree:
        for name in given.names or known:
            found.append(judge(tree, known[name], given.seconds, sound))
            print(f"{found[-1]['outcome']:9} {name} {found[-1]['seconds']} s", file=sys.stderr)
    survivors = [item["name"] for item in found if item["outcome"] != "killed"]
    print(
        json.dumps(
            {
                "mutants": len(found),
                "killed": len(found) - len(survivors),
                "survivors": survivors,
                "files": len({item["file"] for item in found}),
                "seconds": round(time.monotonic() - began, 1),
                "each": found,
            }
        )
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
