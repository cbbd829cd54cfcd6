"""TransferQueue: save a live queue without stopping it, restore it with any number of units.

    from snapfmt.adapters.transfer_queue import load, save

    report = save("/ckpt/run7", user_metadata={"train_step": 120})
    load(Repository.open("/ckpt/run7").snapshot())

A caller that saves other parts with the rows takes the cut and writes it in two steps:

    with take_cut() as cut:
        receipts, _ = cut.write(attempt)

A save writes only what changed since the newest snapshot that the running queue published in the
same repository; an attempt of one's own is begun on it by
`repository.begin(base=cut.base_in(repository))`.

Runs inside the queue's own actors (spec/v1/06-tables.md); torch, ray and transfer_queue are
imported when a function is called, never when this module is.
"""

from snapfmt.adapters.transfer_queue.held_cut import CutTimes, HeldCut, TicketSource
from snapfmt.adapters.transfer_queue.loading import load
from snapfmt.adapters.transfer_queue.reports import LoadReport, SaveReport
from snapfmt.adapters.transfer_queue.saving import PreparedCut, prepare_cut, save, take_cut

__all__ = [
    "CutTimes",
    "HeldCut",
    "LoadReport",
    "PreparedCut",
    "SaveReport",
    "TicketSource",
    "load",
    "prepare_cut",
    "save",
    "take_cut",
]
