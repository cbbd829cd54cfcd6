"""What backends have in common to say when something fails."""

import errno

from snapfmt.errors import (
    CorruptObject,
    LeaseExpired,
    MissingObject,
    OutcomeUnknownError,
    SnapfmtError,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
)


def typed(error: OSError, what: str) -> SnapfmtError:
    """The typed error for an OSError on `what`."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "free space or raise the quota; nothing published was harmed"
        return StorageFull(f"no space left: {reason}", what=what, hint=hint)
    if error.errno == errno.EROFS:
        hint = "remount it writable or choose another location"
        return StorageReadOnly(f"file system is read-only: {reason}", what=what, hint=hint)
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "check the owner and the mode of the folder"
        return StorageDenied(f"permission denied: {reason}", what=what, hint=hint)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        hint = "run `snapfmt verify` to see what else is missing"
        return MissingObject("not there", what=what, hint=hint)
    if error.errno == errno.ELOOP:
        hint = "snapfmt never follows links inside a repository"
        return StorageError("a link stands where a file must be", what=what, hint=hint)
    return StorageError(f"storage failed: {reason}", what=what)


def truncated(key: str, expected: int, got: int) -> CorruptObject:
    """The error for an object that ends before a range does."""
    return CorruptObject(
        "object is truncated",
        what=key,
        expected=f"at least {expected} bytes",
        got=f"{got} bytes",
        hint="run `snapfmt verify`; restore an older snapshot",
    )


def workspace_gone(workspace: str) -> LeaseExpired:
    """The error for a workspace that is not there, or not any more."""
    return LeaseExpired(
        "the attempt was abandoned or taken over; nothing was published",
        what=workspace,
        hint="start a new save",
    )


def outcome_unknown(key: str, cause: BaseException | None) -> OutcomeUnknownError:
    """The error of a write of which no answer told."""
    return OutcomeUnknownError(
        f"no answer tells whether it was written ({cause})",
        what=key,
        hint="look again when the server is well; nothing was deleted",
    )
