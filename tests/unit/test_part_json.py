"""One JSON document in a part: strict, without secrets, refused with a typed error."""

import json

import pytest

from snapfmt import Repository
from snapfmt.errors import InputError


def test_a_document_is_stored_sorted_and_without_secrets(tmp_path):
    attempt = Repository.open(tmp_path, create=True).begin()
    part = attempt.part("rl/controller")
    part.json("place.json", {"b": 1, "a": {"api_key": "hunter2"}})
    attempt.publish([part.seal()])
    data = Repository.open(tmp_path).snapshot().part("rl/controller").read("place.json")
    assert json.loads(data) == {"a": {"api_key": "[redacted]"}, "b": 1}
    assert data.index(b'"a"') < data.index(b'"b"')


@pytest.mark.parametrize("redact", [True, False])
@pytest.mark.parametrize("value", [{1: "a", "b": 2}, {"x": float("nan")}, {"x": {1, 2}}])
def test_what_is_not_strict_json_is_refused(tmp_path, value, redact):
    part = Repository.open(tmp_path, create=True).begin().part("rl/controller")
    with pytest.raises(InputError):
        part.json("x.json", value, redact=redact)
