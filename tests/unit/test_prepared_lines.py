"""The key of a record's line is a field of the record and nothing else."""

import pytest

from snapfmt.errors import InvalidRecord
from snapfmt.writing.lines import prepare
from snapfmt_schemas.continuation import Continuation

RECORD = Continuation(
    rollout_id="p7_g2",
    attempt_index=1,
    capture_key="p7_g2-a1",
    last_committed_model_call_id="call-1",
)


@pytest.mark.parametrize("redact", [True, False])
def test_the_key_is_that_of_the_field(redact: bool) -> None:
    assert prepare(RECORD, "capture_key", redact=redact).key == RECORD.capture_key


@pytest.mark.parametrize("redact", [True, False])
@pytest.mark.parametrize("name", ["SCHEMA", "attempt_index", "resource_state_revisions", "none"])
def test_what_is_no_text_of_the_record_is_no_key(name: str, redact: bool) -> None:
    with pytest.raises(InvalidRecord, match="missing or not text"):
        prepare(RECORD, name, redact=redact)
