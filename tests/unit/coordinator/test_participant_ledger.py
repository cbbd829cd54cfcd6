"""Lines of the model's ledger: made once, and the same as those of the records."""

from collections.abc import Callable
from typing import Any

from snapfmt_coordinator.participant.ledger import Ledger
from snapfmt_schemas.lines import to_line


def test_the_line_of_a_row_is_made_once(lineage_row: Callable[..., Any]) -> None:
    ledger = Ledger()
    ledger.append(("a", 0), lineage_row("a", "call-0"))
    row = ledger.append(("a", 0), lineage_row("a", "call-1", "call-0"))
    assert row.staging_chain
    run = ledger.cut({}).runs["a", 0]
    line = run.line(row)
    assert line.data == to_line(row.model_copy(update={"staging_chain": None}))
    assert line.key == row.staging_key
    assert run.line(row) is line
    ledger.forget("a", 0)
    assert len(ledger) == 0
