"""The audit: every way in which a repository breaks the spec (spec/v1/08-reading.md, Verify).

Damage never raises here: all of it is listed. An outage of the storage does.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from snapfmt.errors import NotFoundError, NotPublished, SnapfmtError, StorageUnavailable
from snapfmt.format import canonical, jsonl, layout, pack
from snapfmt.format.reach import extents, objects
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt.reading import checks
from snapfmt.reading.folders import files, hidden, names
from snapfmt.reading.report import Finding, Severity, VerifyReport, rule_of
from snapfmt.reading.segment import SegmentReader
from snapfmt.reading.snapshot import Part, Snapshot
from snapfmt.storage.base import Store
from snapfmt.threads import WORKERS, Begun
from snapfmt_schemas.manifest import Manifest, RepositoryDocument

Progress = Callable[[int, str], None]
"""Called with the bytes that were just checked and what they belong to."""
_Look = Callable[[], tuple[int | None, str]]
"""Tells what was seen of an object, or raises what went wrong."""
_ROOT = {layout.REPOSITORY_KEY, *layout.FOLDERS}


def verify(
    store: Store,
    snapshots: Sequence[int | Snapshot] | None = None,
    *,
    deep: bool = True,
    decode: bool = True,
    progress: Progress | None = None,
    repository_id: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> VerifyReport:
    """Check the given snapshots, or with None the whole repository and what lies beside them.

    Shallow reads manifests and part indexes and looks at sizes; deep reads and hashes every
    byte that a snapshot reaches and, unless `decode` is off, decodes every record and row.
    """
    # Shallow ones are single requests.
    workers = WORKERS if deep else max(WORKERS, store.at_once)
    with Begun[_Look](workers) as looks:
        audit = _Audit(store, deep, deep and decode, progress, repository_id, limits, looks)
        if snapshots is None:
            audit.repository()
        else:
            for item in snapshots:
                audit.snapshot(item)
        audit.objects()
    if snapshots is None:
        audit.retired_since()
        audit.beside()
    audit.report.findings.sort(key=lambda item: (item.path, item.rule, item.message))
    return audit.report


class _Audit:
    def __init__(
        self,
        store: Store,
        deep: bool,
        decode: bool,
        progress: Progress | None,
        repository_id: str | None,
        limits: Limits,
        looks: Begun[_Look],
    ) -> None:
        self._store = store
        self._looks = looks
        self._progress = progress or (lambda size, what: None)
        self._repository_id = repository_id
        self._limits = limits
        self._reach: dict[str, set[int]] = {}
        """Object key -> snapshots that reach it."""
        self._ends: dict[str, int] = {}
        """Pack key -> end of its last extent."""
        self._attempts: set[str] = set()
        self._good: set[bytes] = set()
        """All that is claimed of bytes that were checked; what was bad harms each snapshot."""
        self._keys: dict[str, set[str]] = {}
        """Table -> keys of the snapshot that is being read, over all its parts."""
        self._blind: set[int] = set()
        """Snapshots of which not all that they reach could be read."""
        self._shut_folders: set[str] = set()
        """Those that could not be looked into."""
        self.report = VerifyReport(deep=deep, decoded=decode)

    def repository(self) -> None:
        """The root document, and every folder under snapshots/."""
        key, size = layout.REPOSITORY_KEY, self._limits.lease_size
        try:
            if not checks.is_canonical(self._store, key, RepositoryDocument, size_limit=size):
                self._find("format", "damage", key, "document is not in canonical form")
        except SnapfmtError as error:
            self._failed(error, key)
        behind = hidden(self._store, self._shut)
        for key in behind:
            # What is there may reach anything.
            self._blind.add(layout.snapshot_number(key.rpartition("/")[2]) or 0)
            self._find("unreadable", "damage", key, "no folder stands where one must be")
        for name in names(self._store, layout.SNAPSHOTS, self._shut):
            number = layout.snapshot_number(name)
            folder = f"{layout.SNAPSHOTS}/{name}"
            inside = [key for key, _ in files(self._store, folder, self._shut)]
            if number is None:
                if not checks.tolerated(name):
                    self._find("extra", "extra", folder, "not the name of a snapshot")
                continue
            if folder in self._shut_folders:
                self.report.snapshots.append(number)
                continue
            published = layout.manifest_key(number) in inside
            # Where a name cannot be moved, a retirement makes the copy first.
            named = layout.DOCUMENTS - ({layout.RETIRED} if published else set())
            known = {layout.snapshot_key(number, name) for name in named}
            for key in inside:
                if key not in known and not checks.tolerated(key.rpartition("/")[2]):
                    self._find("extra", "extra", key, "no file of the format", (number,))
            if published:
                self.snapshot(number)
            elif known.isdisjoint(inside) and folder not in behind:
                self._find("leftover", "leftover", folder, "folder without a manifest")
            self._retired(sorted(known.intersection(inside) - {layout.manifest_key(number)}))

    def _shut(self, folder: str, error: SnapfmtError) -> None:
        """A folder that cannot be looked into: a snapshot of it, or any, may reach anything."""
        if folder in self._shut_folders:
            return
        self._shut_folders.add(folder)
        top, _, name = folder.partition("/")
        number = layout.snapshot_number(name) if top == layout.SNAPSHOTS else None
        if top != layout.OBJECTS:
            self._blind.add(number or 0)
        self._failed(error, folder, *([] if number is None else [number]))

    def _retired(self, keys: list[str]) -> None:
        """What a retirement leaves: one document, or two if it did not come to its end."""
        size = self._limits.manifest_size
        for key in keys:
            try:
                if not checks.is_canonical(self._store, key, Manifest, size_limit=size):
                    self._find("format", "damage", key, "document is not in canonical form")
            except NotFoundError:
                continue
            except SnapfmtError as error:
                self._failed(error, key)
            if key.endswith(layout.RETIRING):
                self._find("leftover", "leftover", key, "retired, but not removed entirely")

    def snapshot(self, item: int | Snapshot) -> None:
        """One snapshot, without the bytes of its packs."""
        number = item if isinstance(item, int) else item.number
        self.report.snapshots.append(number)
        key = layout.manifest_key(number)
        try:
            snapshot = (
                Snapshot.open(
                    self._store, number, repository_id=self._repository_id, limits=self._limits
                )
                if isinstance(item, int)
                else item
            )
        except SnapfmtError as error:
            self._blind.add(number)
            self._failed(error, key, number)
            return
        self._keys = {}
        self._attempts.add(snapshot.manifest.attempt_id)
        with _Catch(self, key, number, snapshot.name):
            data = self._store.get(key, limit=self._limits.manifest_size)
            if data != canonical.encode(snapshot.manifest):
                self._find("format", "damage", key, "manifest is not in canonical form", (number,))
        snapshot.prefetch()
        for part in snapshot.parts():
            self._part(part, number)

    def _part(self, part: Part, number: int) -> None:
        receipt = part.receipt
        key = layout.object_key(receipt.index_digest)
        self._reach.setdefault(key, set()).add(number)
        try:
            index = part.index
            problem = checks.receipt_problem(part, receipt)
        except SnapfmtError as error:
            self._blind.add(number)
            self._failed(error, key, number)
            return
        if problem:
            self._find("format", "damage", key, problem, (number,))
        for name, end in extents(index).items():
            self._pack(layout.object_key(name), end, number)
        if self.report.decoded:
            self._contents(part, number)

    def _pack(self, key: str, end: int, number: int) -> None:
        self._reach.setdefault(key, set()).add(number)
        self._ends[key] = max(self._ends.get(key, 0), end)
        self._look(key)

    def _look(self, key: str) -> None:
        """Begin to look at an object; what is decoded meanwhile leaves a processor free."""
        end = self._ends.get(key, 0)
        self._looks.begin(
            key, partial(checks.look_at, self._store, key, end, deep=self.report.deep)
        )

    def _contents(self, part: Part, number: int) -> None:
        for entry in part.entries():
            where = f"{part.name}/{entry.path}"
            with _Catch(self, layout.object_key(entry.location.pack), number, where):
                beside = part.entry(entry.index).digest if entry.index is not None else ""
                claim = checks.claim(entry.model_dump_json() + beside)
                if claim in self._good:
                    continue
                part.stored(entry.path)
                if entry.media_type == jsonl.MEDIA_TYPE:
                    checks.check_records(part, entry.path)
                self._count(entry.location.size, where)
                self._good.add(claim)
        for name in part.table_names():
            where = f"{part.name}/{name}"
            with _Catch(self, layout.object_key(part.receipt.index_digest), number, where):
                self._table(name, part.segments(name), where, number)

    def _table(self, name: str, segments: Sequence[SegmentReader], where: str, number: int) -> None:
        keys = self._keys.setdefault(name, set())
        with checks.reading(segments, self._good) as claims:
            for item, claim in zip(segments, claims, strict=True):
                key = layout.object_key(item.document.data.pack)
                with _Catch(self, key, number, where):
                    before = len(keys)
                    keys.update(item.keys)
                    if len(keys) != before + item.rows:
                        self._find("format", "damage", key, f"{where}: a key repeats", (number,))
                    if claim not in self._good:
                        for size, label in item.check():
                            self._count(size, label)
                        self._good.add(claim)

    def objects(self) -> None:
        """Every object that a snapshot reaches: there, long enough, and deep its own digest."""
        reach = sorted(self._reach.items())
        for key, _ in reach:
            self._look(key)
        for key, numbers in reach:
            self.report.objects += 1
            harmed = tuple(sorted(numbers))
            try:
                self._object(key, harmed, *self._looks.result(key)())
            except SnapfmtError as error:
                self._failed(error, key, *harmed)

    def _object(self, key: str, harmed: tuple[int, ...], size: int | None, mark: str) -> None:
        if size is None:
            if not any(f.path == key and f.rule == "missing" for f in self.report.findings):
                self._find("missing", "damage", key, "object is not there", harmed)
            return
        end = self._ends.get(key)
        if end is not None and size < end:
            message = f"object has {size} bytes, its entries reach to {end}"
            self._find("truncated", "damage", key, message, harmed)
            return
        if not self.report.deep:
            return
        self._count(size, key)
        if mark != layout.object_digest(key):
            self._find(
                "digest", "damage", key, "object differs from the digest in its name", harmed
            )
        elif end is not None:
            writer = pack.check_header(self._store.get_range(key, 0, pack.HEADER_SIZE), what=key)
            # In an older attempt's pack other snapshots may reach more, or have reached it.
            if end != size and writer in self._attempts:
                message = f"object has {size} bytes, its entries end at {end}"
                self._find("leftover", "leftover", key, message, harmed)

    def beside(self) -> None:
        """Whatever lies in the repository that no snapshot reaches."""
        strays: list[tuple[str, int]] = []
        for key, size in files(self._store, "", self._shut):
            top, name = key.split("/")[0], key.rpartition("/")[2]
            if key in _ROOT or top == layout.SNAPSHOTS or key in self._reach:
                continue
            if top == layout.OBJECTS and layout.object_digest(key) is not None:
                strays.append((key, size))
            elif top == layout.ATTEMPTS:
                self._attempt(key)
            elif top != layout.PINS and not any(checks.tolerated(step) for step in key.split("/")):
                rule, text = ("extra", "no file of the format")
                if name.startswith(".") and name.endswith(".tmp"):
                    rule, text = ("leftover", "temporary file of a crashed write")
                self._find(rule, "leftover" if rule == "leftover" else "extra", key, text)
        live = checks.live_objects(self._store, self._shut)
        self._reach_since()
        for key, size in strays:
            if key not in live and key not in self._reach:
                self._stray(key, size)

    def _reach_since(self) -> None:
        """What snapshots reach that were published while the audit ran.

        Journals are read before: an object leaves its journal only after its publication.
        """
        for name in names(self._store, layout.SNAPSHOTS, self._shut):
            number = layout.snapshot_number(name)
            if number is None or number in self.report.snapshots:
                continue
            try:
                for part in Snapshot.open(self._store, number, limits=self._limits).parts():
                    self._reach |= {key: {number} for key in objects(part.receipt, part.index)}
            except NotPublished:
                continue
            except SnapfmtError:
                self._blind.add(number)

    def retired_since(self) -> None:
        """Forget what was found of snapshots that were retired while they were looked at."""
        report = self.report
        gone = {number for number in report.snapshots if checks.was_retired(self._store, number)}
        self._blind -= gone
        report.snapshots = [number for number in report.snapshots if number not in gone]
        report.findings = [
            item for item in report.findings if not item.snapshots or set(item.snapshots) - gone
        ]

    def _attempt(self, key: str) -> None:
        owner = key.split("/")[1].removesuffix(".json").removesuffix(".fenced")
        if layout.is_attempt_id(owner):
            if not key.endswith(".json"):
                self._find("leftover", "leftover", key, "file of a save that is not finished")
        elif not owner.startswith("."):
            self._find("extra", "extra", key, "no file of the format")

    def _stray(self, key: str, size: int) -> None:
        """An object that nothing reaches: a leftover, or a copy or a swap under a false name."""
        if self.report.deep:
            try:
                mark = checks.hash_of(self._store, key, size)
                self._count(size, key)
                if mark != layout.object_digest(key):
                    text = "object differs from the digest in its name; nothing reaches it"
                    self._find("misplaced", "extra", key, text)
                    return
            except SnapfmtError as error:
                self._failed(error, key)
                return
        if self._blind:
            text = "no snapshot that could be read reaches it; do not delete it"
            self._find("unreached", "unknown", key, text)
        else:
            self._find("leftover", "leftover", key, "no snapshot reaches it")

    def _failed(self, error: SnapfmtError, path: str, *numbers: int) -> None:
        if isinstance(error, StorageUnavailable):
            raise error  # an outage is no damage
        self._find(*rule_of(error), path, str(error), numbers)

    def _find(
        self,
        rule: str,
        severity: Severity,
        path: str,
        message: str,
        numbers: Iterable[int] = (),
    ) -> None:
        harmed = tuple(sorted(numbers))
        self.report.findings.append(
            Finding(rule=rule, severity=severity, path=path, message=message, snapshots=harmed)
        )

    def _count(self, size: int, what: str) -> None:
        self.report.bytes += size
        self._progress(size, what)


class _Catch:
    """Turns an error while checking one thing into a finding, so that the audit goes on."""

    def __init__(self, audit: _Audit, key: str, number: int, where: str) -> None:
        self._audit = audit
        self._key = key
        self._number = number
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, SnapfmtError):
            return False
        error.args = (f"{self._where}: {error}",)
        self._audit._failed(error, self._key, self._number)
        return True
