"""Times that a bucket's server tells: of a zone that is known, or refused."""

import warnings
from datetime import UTC, datetime, timedelta, timezone

import pytest

from snapfmt.errors import StorageError
from snapfmt.storage.s3_http import instant
from snapfmt.testing.fuzz_s3 import Server, client_of

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Fri, 02 Jan 2026 03:04:05 GMT", WHEN),
        ("Fri, 02 Jan 2026 03:04:05 +0000", WHEN),
        ("2026-01-02T03:04:05.000Z", WHEN),
        ("2026-01-02T03:04:05+01:00", WHEN.replace(tzinfo=timezone(timedelta(hours=1)))),
        (1767323045, WHEN),
        ("1767323045", WHEN),
    ],
    ids=str,
)
def test_a_time_with_a_zone_is_taken(text: str, expected: datetime) -> None:
    assert instant(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02T03:04:05",
        "Fri, 02 Jan 2026 03:04:05",
        "Fri, 02 Jan 2026 03:04:05 GUT",
        "Fri, 02 Jan 2026 03:04:05 -0000",
        "",
        "nan",
        "inf",
        "1e99",
        "yesterday",
    ],
)
def test_any_other_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        instant(text)


@pytest.mark.parametrize("zone", ["GUT", "", "EST5EDT"])
def test_a_server_of_no_known_zone_is_an_error_and_no_guess(zone: str) -> None:
    """It would count as this machine's time, and a warning would read a library's source."""
    server = Server()
    client = client_of(server)
    text = f"Fri, 02 Jan 2026 03:04:05 {zone}"
    server.headers = b"content-length: 3\nlast-modified: " + text.encode()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(StorageError):
            client.head("a")
    assert told == []


def test_a_server_that_says_it_as_http_does_is_understood() -> None:
    server = Server()
    client = client_of(server)
    server.headers = b"content-length: 3\nlast-modified: Fri, 02 Jan 2026 03:04:05 GMT"
    info = client.head("a")
    assert info is not None
    assert info.modified_ns == WHEN.timestamp() * 1e9
