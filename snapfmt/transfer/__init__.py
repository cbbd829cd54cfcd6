"""Copies of snapshots from one repository to another: the same snapshot, byte for byte.

    source = Repository.open("/nvme/run7")
    target = open_target("s3://bucket/run7", source)
    copy_snapshot(source, target, 42)

    with BackgroundPush(source, target) as push:   # while a run saves
        push.notify()
    push.state().behind                            # what did not get there in `drain_s`

What holds, also after a crash, is in spec/v1/14-copies.md.
"""

from snapfmt.transfer.background import BackgroundPush
from snapfmt.transfer.copying import CopyReport, copy_snapshot, open_target
from snapfmt.transfer.push_state import PushState

__all__ = ["BackgroundPush", "CopyReport", "PushState", "copy_snapshot", "open_target"]
