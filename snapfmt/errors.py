"""Every error that snapfmt raises (spec/v1/10-errors.md).

    SnapfmtError
    ├── NotFoundError        the thing is not there
    │     StoreNotFound, NotPublished, MissingObject, NoMatch
    ├── ConflictError        somebody else did it first
    │     SnapshotExists, CommitConflict
    ├── OutcomeUnknownError  it may or may not have happened: keep everything, look again
    │     CommitOutcomeUnknown
    ├── CorruptError         bytes are not what they must be
    │     CorruptObject, FormatError
    ├── RefusedError         this will not be done; nothing was touched
    │     UnsupportedFeature, UnsupportedVersion, UnsupportedFilesystem, FingerprintMismatch,
    │     RestoreRefused, LimitExceeded, ControlRefused, SnapshotBusy
    ├── InputError           the caller's value cannot be stored
    │     UnsupportedValue, InvalidRecord
    ├── StorageError         the storage backend failed
    │     StorageFull, StorageReadOnly, StorageDenied, StorageUnavailable
    └── AttemptError         this save attempt is over
          LeaseExpired, AttemptClosed, CutInconsistent, DeadlineExceeded, ParticipantFailed

The class says what a handler would do; `code` says what happened and never changes. A message
says what happened, to which path, and what to do.
"""

from collections.abc import Collection
from itertools import islice
from typing import ClassVar

_NAMED = 20
"""Names that a message lists."""


def some_of(names: Collection[str]) -> str:
    """Names for a message, that there may be thousands of: the first of them, and how many more."""
    more = len(names) - _NAMED
    listed = ", ".join(islice(names, _NAMED))
    return listed if more <= 0 else f"{listed} and {more} more"


class SnapfmtError(Exception):
    """Root of the tree. `code` is stable; `what` names the path, row or rollout."""

    code: ClassVar[str] = "SnapfmtError"

    def __init__(self, message: str, *, what: str = "", hint: str = "") -> None:
        text = message if not what else f"{message}: {what!r}"
        super().__init__(f"{text} ({hint})" if hint else text)
        self.message = message
        self.what = what
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Ray, multiprocessing) and must arrive whole.
        return (_rebuild, (type(self), self.message, self.what, self.hint, dict(self.__dict__)))


def _rebuild(
    cls: type[SnapfmtError], message: str, what: str, hint: str, state: dict[str, object]
) -> SnapfmtError:
    error = cls.__new__(cls)
    SnapfmtError.__init__(error, message, what=what, hint=hint)
    error.__dict__.update(state)
    return error


class NotFoundError(SnapfmtError, KeyError):
    """The thing is not there."""

    code = "NotFound"
    __str__ = Exception.__str__


class StoreNotFound(NotFoundError):
    """No repository at this location."""

    code = "StoreNotFound"


class NotPublished(NotFoundError):
    """No published snapshot of that number."""

    code = "NotPublished"


class MissingObject(NotFoundError):
    """A published snapshot reaches an object that is not there."""

    code = "MissingObject"


class NoMatch(NotFoundError):
    """No part, entry, table, key or snapshot matches the request."""

    code = "NoMatch"


class ConflictError(SnapfmtError):
    """Somebody else did it first; nothing was changed."""

    code = "Conflict"


class SnapshotExists(ConflictError):
    """The snapshot number is taken by a published snapshot."""

    code = "SnapshotExists"


class CommitConflict(ConflictError):
    """Another attempt published this snapshot number first."""

    code = "CommitConflict"


class OutcomeUnknownError(SnapfmtError):
    """The write may or may not have happened."""

    code = "OutcomeUnknown"


class CommitOutcomeUnknown(OutcomeUnknownError):
    """The publication may or may not have happened; nothing was deleted."""

    code = "CommitOutcomeUnknown"


class CorruptError(SnapfmtError):
    """Bytes are not what they must be."""

    code = "Corrupt"


class CorruptObject(CorruptError):
    """Stored bytes differ from what their reference says."""

    code = "CorruptObject"

    def __init__(
        self, message: str, *, what: str = "", hint: str = "", expected: str = "", got: str = ""
    ) -> None:
        if expected or got:
            message = f"{message}, expected {expected}, got {got}"
        super().__init__(message, what=what, hint=hint)
        self.expected = expected
        self.got = got


class FormatError(CorruptError):
    """The bytes are intact but do not follow the format."""

    code = "FormatError"


class RefusedError(SnapfmtError):
    """This will not be done; nothing was touched."""

    code = "Refused"


class UnsupportedFeature(RefusedError):
    """The document needs a feature that this library does not have."""

    code = "UnsupportedFeature"


class UnsupportedVersion(RefusedError):
    """The document has a format or schema version that this library does not read."""

    code = "UnsupportedVersion"


class UnsupportedFilesystem(RefusedError):
    """The file system lacks something that a safe publication needs."""

    code = "UnsupportedFilesystem"


class FingerprintMismatch(RefusedError):
    """The snapshot was taken by a run that differs; `differences` says field by field."""

    code = "FingerprintMismatch"

    def __init__(
        self, message: str, *, what: str = "", hint: str = "", differences: tuple[str, ...] = ()
    ) -> None:
        if differences:
            message = f"{message} [{'; '.join(differences)}]"
        super().__init__(message, what=what, hint=hint)
        self.differences = differences


class RestoreRefused(RefusedError):
    """The live system is not in a state that a restore may touch."""

    code = "RestoreRefused"


class LimitExceeded(RefusedError):
    """A size in the input passes a limit of snapfmt.limits."""

    code = "LimitExceeded"


class ControlRefused(RefusedError):
    """A participant refused a request; `reason` is the protocol's word for why."""

    code = "ControlRefused"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        status: int = 409,
        what: str = "",
        hint: str = "",
    ) -> None:
        text = f"{reason}: {message}" if reason else message
        super().__init__(text, what=what, hint=hint)
        self.detail = message
        self.reason = reason
        self.status = status


class SnapshotBusy(RefusedError):
    """A retirement runs that may take the snapshot out; try again when it is over."""

    code = "SnapshotBusy"


class InputError(SnapfmtError, ValueError):
    """The caller's value cannot be stored; nothing was stored."""

    code = "Input"


class UnsupportedValue(InputError):
    """A row holds a value that no column type keeps exactly; names the row and the field."""

    code = "UnsupportedValue"


class InvalidRecord(InputError):
    """A record breaks its schema or one of its rules."""

    code = "InvalidRecord"


class StorageError(SnapfmtError, OSError):
    """The storage backend failed."""

    code = "Storage"
    __str__ = Exception.__str__


class StorageFull(StorageError):
    """No space or quota left."""

    code = "StorageFull"


class StorageReadOnly(StorageError):
    """The file system is read-only."""

    code = "StorageReadOnly"


class StorageDenied(StorageError):
    """The process lacks a permission."""

    code = "StorageDenied"


class StorageUnavailable(StorageError):
    """No usable answer came, also after trying again; `sent`: it may have been carried out."""

    code = "StorageUnavailable"

    def __init__(self, message: str, *, what: str = "", hint: str = "", sent: bool = True) -> None:
        super().__init__(message, what=what, hint=hint)
        self.sent = sent


class AttemptError(SnapfmtError):
    """This save attempt is over; the run goes on without this snapshot."""

    code = "Attempt"


class LeaseExpired(AttemptError):
    """The attempt's lease ran out or was taken away; nothing was published."""

    code = "LeaseExpired"


class AttemptClosed(AttemptError):
    """The attempt or the part was already sealed, published or abandoned."""

    code = "AttemptClosed"


class CutInconsistent(AttemptError):
    """The writers' cuts do not fit together; the save is abandoned."""

    code = "CutInconsistent"


class DeadlineExceeded(AttemptError, TimeoutError):
    """A step did not finish before its absolute deadline."""

    code = "DeadlineExceeded"
    __str__ = Exception.__str__


class ParticipantFailed(AttemptError):
    """A participant refused, failed or vanished."""

    code = "ParticipantFailed"
