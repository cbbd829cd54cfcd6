"""Tagged JSON: plain Python values, exactly (spec/v1/05-records.md, Tagged JSON).

Strict JSON in which what JSON cannot say is an object with one `$` key: `$tuple`, `$set`,
`$frozenset`, `$bytes` (base64), `$float` (16 hex digits of a non-finite double), `$dict` (pairs,
for keys that are not plain strings) and `$numpy` (dtype and hex of a scalar's bytes).
"""

import base64
import json
import math
import struct
from typing import Any

import numpy as np

from snapfmt.errors import FormatError, UnsupportedValue

_SCALARS = frozenset(np.dtype(code).name for code in "?bhilqBHILQefd")


def encode(value: object) -> str:
    """Tagged JSON text of a value, ASCII only, key order kept.

    Raises:
        UnsupportedValue: If some part of the value has no exact form.
    """
    try:
        return json.dumps(_lower(value), separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise UnsupportedValue("value nested too deeply or cyclic") from error


def decode(text: str | bytes) -> Any:
    """The value of tagged JSON text.

    Raises:
        FormatError: If the text is not tagged JSON.
    """
    try:
        return _raise(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
        raise FormatError(f"not tagged JSON: {error}") from error


def _lower(value: object) -> Any:
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, list) and kind is list:
        return [_lower(item) for item in value]
    if isinstance(value, tuple) and kind is tuple:
        return {"$tuple": [_lower(item) for item in value]}
    if isinstance(value, (set, frozenset)) and kind in (set, frozenset):
        items = sorted((_lower(item) for item in value), key=json.dumps)
        return {"$set" if kind is set else "$frozenset": items}
    if isinstance(value, (bytes, bytearray)) and kind in (bytes, bytearray):
        return {f"${kind.__name__}": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict) and kind is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _lower(item) for key, item in value.items()}
        return {"$dict": [[_lower(key), _lower(item)] for key, item in value.items()]}
    if isinstance(value, np.generic) and value.dtype.name in _SCALARS:
        little = value.dtype.newbyteorder("<")
        return {"$numpy": [value.dtype.name, np.asarray(value, dtype=little).tobytes().hex()]}
    raise UnsupportedValue(
        f"a value of type {kind.__module__}.{kind.__qualname__} has no exact stored form",
        hint="store tensors, numpy arrays, str, bytes or plain Python containers of them",
    )


def _raise(value: Any) -> Any:
    if isinstance(value, list):
        return [_raise(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, content),) = value.items()
        if tag.startswith("$"):
            return _untag(tag, content)
    return {key: _raise(item) for key, item in value.items()}


def _untag(tag: str, content: Any) -> Any:
    if tag == "$tuple":
        return tuple(_raise(content))
    if tag == "$set":
        return set(_raise(content))
    if tag == "$frozenset":
        return frozenset(_raise(content))
    if tag == "$bytes":
        return base64.b64decode(content, validate=True)
    if tag == "$bytearray":
        return bytearray(base64.b64decode(content, validate=True))
    if tag == "$float":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if tag == "$dict":
        return {_raise(key): _raise(item) for key, item in content}
    if tag == "$numpy":
        name, data = content
        if name not in _SCALARS:
            raise ValueError(f"unknown scalar dtype {name!r}")
        little = np.dtype(name).newbyteorder("<")
        return np.frombuffer(bytes.fromhex(data), dtype=little).astype(name)[0]
    raise ValueError(f"unknown tag {tag!r}")
