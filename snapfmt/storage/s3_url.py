"""URLs and options of buckets: what they may hold, and what is refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from snapfmt.errors import InputError

SCHEMES: Final = ("s3", "s3a")
PLAIN_OPTIONS: Final = ("endpoint_url", "profile", "anon")
"""Options that hold no secret: they may stand in the URL's query, and do in `location`."""
MAX_PREFIX: Final = 800
"""Bytes of a prefix; a key has at most 1024, and snapfmt's own names need the rest."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")
_OURS: Final = frozenset(
    {"asynchronous", "loop", "session", "skip_instance_cache", "use_listings_cache"}
)
_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True, repr=False)
class Place:
    """A prefix in a bucket, and how it is reached."""

    bucket: str
    prefix: str
    options: Mapping[str, Any]

    @property
    def location(self) -> str:
        """The URL, with the options that hold no secret."""
        path = f"/{self.prefix}" if self.prefix else ""
        plain = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name in PLAIN_OPTIONS
            if (value := self.options.get(name)) not in (None, "", False)
        }
        query = f"?{urlencode(plain, quote_via=quote, safe=':/')}" if plain else ""
        return f"s3://{self.bucket}{path}{query}"


def parse(url: str, given: Mapping[str, Any] | None) -> Place:
    """The place that a URL and storage options name.

    Raises:
        InputError: If one of them is not what it must be; shows no secret that it may hold.
    """
    address, _, query = url.partition("?")
    scheme, _, rest = address.partition("://")
    bucket, _, path = rest.partition("/")
    if scheme not in SCHEMES or not _BUCKET.match(bucket):
        shown = f"{scheme}://..." if set(rest) & set("@:[") else f"{scheme}://{rest}"
        raise InputError("not a URL of a bucket", what=shown, hint="s3://bucket/prefix")
    prefix = path.removesuffix("/")
    _check_prefix(prefix)
    return Place(bucket, prefix, _options(query, {} if given is None else given))


def _check_prefix(prefix: str) -> None:
    """Servers clean up odd paths, each in its own way: then listings and reads disagree."""
    steps = prefix.split("/") if prefix else []
    odd = any(step in ("", ".", "..") for step in steps)
    if odd or any(ord(letter) < 32 or letter in "\\#\x7f" for letter in prefix):
        raise InputError(
            "a prefix is plain steps joined by single slashes, without \\ and #",
            what=prefix,
            hint="is a variable in it empty?",
        )
    try:
        size = len(prefix.encode())
    except UnicodeEncodeError as error:
        raise InputError("a prefix is text that UTF-8 can hold", what=repr(prefix)) from error
    if size > MAX_PREFIX:
        raise InputError(f"a prefix has at most {MAX_PREFIX} bytes", what=f"{prefix[:40]}...")


def _options(query: str, given: Mapping[str, Any]) -> dict[str, Any]:
    names: list[Any] = [*given] if hasattr(given, "keys") else [None]
    if not all(isinstance(name, str) for name in names):
        raise InputError("storage_options map names to values", what=type(given).__name__)
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in PLAIN_OPTIONS:
            raise InputError(
                "not an option for a URL",
                what=name,
                hint=f"a URL may hold {', '.join(PLAIN_OPTIONS)}; the rest are storage_options",
            )
        found[name] = value
    found |= given
    for name in ("client_kwargs", "config_kwargs"):
        if not hasattr(found.get(name) or {}, "keys"):
            raise InputError("this option maps names to values", what=name)
    if not hasattr((found.get("config_kwargs") or {}).get("s3") or {}, "keys"):
        raise InputError("this option maps names to values", what="config_kwargs: s3")
    if ours := _OURS & found.keys():
        raise InputError("snapfmt sets this option itself", what=", ".join(sorted(ours)))
    client = dict(found.get("client_kwargs") or {})
    if "endpoint_url" in client:
        # To where the location shows it, so that a ticket leads to the same server.
        found.setdefault("endpoint_url", client.pop("endpoint_url"))
        found["client_kwargs"] = client
    if (endpoint := found.get("endpoint_url")) is not None:
        _check_endpoint(endpoint)
    if "anon" in found:
        found["anon"] = _truth(found["anon"])
    return found


def _check_endpoint(endpoint: object) -> None:
    try:
        parts = urlsplit(endpoint) if isinstance(endpoint, str) else None
        plain = (
            parts is not None
            and parts.scheme in ("http", "https")
            and parts.hostname
            and not (parts.username or parts.password or parts.query or parts.fragment)
            and (parts.port or True)
        )
    except ValueError:
        plain = False
    if not plain:
        # Not shown: a user, a password or a token may stand in it.
        raise InputError(
            "an endpoint is http:// or https://, a host and perhaps a port", what="endpoint_url"
        )


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    found = _TRUTH.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise InputError("this option is true or false", what="anon")
    return found
