"""TransferQueue: save a live queue without stopping it, restore it with any number of units.

    from snapfmt.adapters.transfer_queue import load, save

    report = save("/ckpt/run7", user_metadata={"train_step": 120})
    load(Repository.open("/ckpt/run7").snapshot())

Runs inside the queue's own actors (spec/v1/06-tables.md); torch, ray and transfer_queue are
imported when a function is called, never when this module is.
"""

from snapfmt.adapters.transfer_queue.loading import load
from snapfmt.adapters.transfer_queue.reports import LoadReport, SaveReport
from snapfmt.adapters.transfer_queue.saving import TicketSource, save

__all__ = ["LoadReport", "SaveReport", "TicketSource", "load", "save"]
