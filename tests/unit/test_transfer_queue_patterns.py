"""Rows of a storage unit by the fields that they have."""

import numpy as np
import pytest

from snapfmt.adapters.transfer_queue.unit_rows import patterns_of


@pytest.mark.parametrize("fields", [1, 7, 8, 9, 64, 65, 130])
@pytest.mark.parametrize("kinds", [1, 2, 9])
def test_every_row_comes_once_with_its_own_fields(fields: int, kinds: int) -> None:
    random = np.random.default_rng(fields * 100 + kinds)
    some = random.integers(0, 2, (kinds, fields)).astype(np.bool_)
    produced = some[random.integers(0, kinds, 200)]
    seen = np.zeros(200, np.int64)
    found = list(patterns_of(produced))
    for pattern, rows in found:
        assert (produced[rows] == pattern).all()
        assert (np.diff(rows) > 0).all()
        seen[rows] += 1
    assert (seen == 1).all()
    assert len(found) == len(np.unique(produced, axis=0))


def test_no_rows_have_no_pattern() -> None:
    assert list(patterns_of(np.zeros((0, 5), np.bool_))) == []
