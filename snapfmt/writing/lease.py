"""Leases: what a save, or a copy, holds while it runs (spec/v1/07-writing.md, W-11)."""

import secrets
import socket
import time

from snapfmt.writing.owner import current_owner
from snapfmt_schemas.attempt import Lease


def new_lease(
    number: int, *, base: int | None, seconds: float, attempt_id: str | None = None
) -> Lease:
    """A lease of this process that ends in so many seconds."""
    now = time.time_ns()
    return Lease(
        attempt_id=attempt_id or secrets.token_hex(16),
        number=number,
        base=base,
        started_at_ns=now,
        expires_at_ns=now + int(seconds * 1e9),
        owner=current_owner(socket.gethostname()),
    )


def renewed(lease: Lease, seconds: float) -> Lease:
    """The same lease, with so many seconds from now."""
    return lease.model_copy(
        update={
            "expires_at_ns": time.time_ns() + int(seconds * 1e9),
            "generation": lease.generation + 1,
        }
    )
