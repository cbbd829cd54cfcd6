"""What is provably good of a damaged repository, in a new one (spec/v1/15-repair.md).

    report = repair("/nvme/run7", "/nvme/run7-repaired", also=["s3://bucket/run7"])
    report.whole                     # numbers that are in the new repository, byte for byte
    report.snapshots[-1].losses      # what of the newest could not be read anywhere

The damaged one is read and never written.
"""

from snapfmt.repair.repairing import repair
from snapfmt.repair.report import Loss, RepairReport, SnapshotRepair

__all__ = ["Loss", "RepairReport", "SnapshotRepair", "repair"]
