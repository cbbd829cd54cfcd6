"""Tagged JSON: plain Python values, exactly (spec/v1/05-records.md, Tagged JSON).

Strict JSON in which what JSON cannot say is an object with one `$` key: `$tuple`, `$set`,
`$frozenset`, `$bytes` (base64), `$float` (16 hex digits of a non-finite double), `$dict` (pairs,
for keys that are not plain strings), `$numpy` (dtype and hex of a scalar's bytes) and `$text`
(UTF-32 in hex, for text whose surrogates a JSON reader would join to one character).
"""

import base64
import json
import math
import re
import struct
from typing import Any

import numpy as np

from snapfmt.errors import FormatError, UnsupportedValue
from snapfmt_schemas.lines import encoder, finite, no_constant, unique_pairs

MAX_DEPTH = 200
"""Deepest nesting of a value; far from where any JSON reader of any language gives up."""

_SCALARS = frozenset(np.dtype(code).name for code in "?bhilqBHILQefd")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_encode = encoder(",", ":")


def encode(value: object) -> str:
    """Tagged JSON text of a value, ASCII only, key order kept.

    Raises:
        UnsupportedValue: If some part of the value has no exact form.
    """
    try:
        return _encode(_lower(value, MAX_DEPTH))
    except ValueError as error:
        if isinstance(error, UnsupportedValue):
            raise
        raise UnsupportedValue(f"a value has no exact JSON form: {error}") from error


def decode(text: str | bytes) -> Any:
    """The value of tagged JSON text.

    Raises:
        FormatError: If the text is not tagged JSON.
    """
    try:
        # `json.loads` would take bytes in UTF-16 or with a mark before them, too.
        return _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8"))
    except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
        raise FormatError(f"not tagged JSON: {error}") from error


def _lower(value: object, room: int) -> Any:
    kind = type(value)
    if isinstance(value, str) and kind is str:
        return {"$text": _code_points(value)} if _has_pair(value) else value
    if value is None or kind in (bool, int):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if room == 0:
        raise UnsupportedValue(f"a value is nested deeper than {MAX_DEPTH}, or is cyclic")
    inner = room - 1
    if isinstance(value, list) and kind is list:
        return [_lower(item, inner) for item in value]
    if isinstance(value, tuple) and kind is tuple:
        return {"$tuple": [_lower(item, inner) for item in value]}
    if isinstance(value, (set, frozenset)) and kind in (set, frozenset):
        items = sorted((_lower(item, inner) for item in value), key=json.dumps)
        return {"$set" if kind is set else "$frozenset": items}
    if isinstance(value, (bytes, bytearray)) and kind in (bytes, bytearray):
        return {f"${kind.__name__}": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict) and kind is dict:
        if all(_is_plain_key(key) for key in value):
            return {key: _lower(item, inner) for key, item in value.items()}
        return {"$dict": [[_lower(key, inner), _lower(item, inner)] for key, item in value.items()]}
    if isinstance(value, np.generic) and value.dtype.name in _SCALARS:
        little = value.dtype.newbyteorder("<")
        return {"$numpy": [value.dtype.name, np.asarray(value, dtype=little).tobytes().hex()]}
    raise UnsupportedValue(
        f"a value of type {kind.__module__}.{kind.__qualname__} has no exact stored form",
        hint="store tensors, numpy arrays, str, bytes or plain Python containers of them",
    )


def _is_plain_key(key: object) -> bool:
    return type(key) is str and not key.startswith("$") and not _has_pair(key)


def _has_pair(text: str) -> bool:
    return not text.isascii() and _PAIR.search(text) is not None


def _code_points(text: str) -> str:
    return text.encode("utf-32-be", "surrogatepass").hex()


def _raise(members: list[tuple[str, Any]]) -> Any:
    """One JSON object whose members were raised already."""
    if len(members) == 1:
        ((tag, content),) = members
        if tag.startswith("$"):
            return _untag(tag, content)
    return unique_pairs(members)


_CONTAINERS = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}


def _whole(found: Any, content: list[Any]) -> Any:
    """What repeats would be lost."""
    if len(found) != len(content):
        raise ValueError("an item or a key repeats")
    return found


def _untag(tag: str, content: Any) -> Any:
    if tag in _CONTAINERS:
        if not isinstance(content, list):
            raise ValueError(f"{tag} needs a list")
        return _whole(_CONTAINERS[tag](content), content)
    if tag == "$dict":
        if not isinstance(content, list) or not all(type(pair) is list for pair in content):
            raise ValueError("$dict needs a list of pairs")
        return _whole(dict(content), content)
    if tag == "$text":
        return bytes.fromhex(content).decode("utf-32-be", "surrogatepass")
    if tag == "$bytes":
        return base64.b64decode(content, validate=True)
    if tag == "$bytearray":
        return bytearray(base64.b64decode(content, validate=True))
    if tag == "$float":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if tag == "$numpy":
        name, data = content
        if name not in _SCALARS:
            raise ValueError(f"unknown scalar dtype {name!r}")
        little = np.dtype(name).newbyteorder("<")
        (scalar,) = np.frombuffer(bytes.fromhex(data), dtype=little).astype(name)
        return scalar
    raise ValueError(f"unknown tag {tag!r}")


# Made once: `json.loads` makes one for every call that is given a hook.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_raise, parse_float=finite, parse_constant=no_constant
)
