"""Canonical JSON of documents: one byte form out, strict bounds in (spec/v1/04-documents.md)."""

import json
import math
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from snapfmt.errors import FormatError, LimitExceeded, UnsupportedVersion
from snapfmt.limits import DEFAULT_LIMITS, Limits

M = TypeVar("M", bound=BaseModel)

# Possessive, and with an optional end: time stays linear also where a quote is never closed.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]+")


def encode(document: BaseModel) -> bytes:
    """Canonical bytes: UTF-8, keys sorted, no white space, no NaN, a final newline."""
    value = document.model_dump(mode="json")
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8") + b"\n"


def parse(data: bytes, *, what: str, size_limit: int, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Any JSON value from bounded bytes; duplicate keys, NaN and deep nesting are refused.

    Raises:
        LimitExceeded: If size, depth or digits pass a limit.
        FormatError: If the bytes are not such JSON.
    """
    if len(data) > size_limit:
        raise LimitExceeded(f"document of {len(data)} bytes, limit {size_limit}", what=what)
    if _depth(data) > limits.json_depth:
        raise LimitExceeded(f"JSON nested deeper than {limits.json_depth}", what=what)

    def integer(text: str) -> int:
        if len(text) > limits.json_digits:
            raise LimitExceeded(f"integer of more than {limits.json_digits} digits", what=what)
        return int(text)

    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_pairs,
            parse_int=integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a JSON document: {error}", what=what) from error


def decode(
    data: bytes, model: type[M], *, what: str, size_limit: int, limits: Limits = DEFAULT_LIMITS
) -> M:
    """A typed document from its bytes.

    Raises:
        LimitExceeded: If a bound is passed.
        UnsupportedVersion: If it is of another format or schema version.
        FormatError: If it does not follow its schema.
    """
    value = parse(data, what=what, size_limit=size_limit, limits=limits)
    if isinstance(value, dict):
        _check_version(value, model, what=what)
    try:
        # JSON mode: arrays become tuples, which strict Python mode would refuse.
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise FormatError(f"{model.__name__}: {place}: {first['msg']}", what=what) from error


def _check_version(value: dict[str, Any], model: type[BaseModel], *, what: str) -> None:
    for name in ("format_version", "schema_version"):
        if name in model.model_fields:
            if name not in value:
                raise FormatError(f"{model.__name__} has no {name}", what=what)
            known = model.model_fields[name].default
            # True == 1 and 1.0 == 1, but neither is a version.
            if value[name] != known or type(value[name]) is not type(known):
                raise UnsupportedVersion(
                    f"{model.__name__} has {name} {value[name]!r}, this library reads {known}",
                    what=what,
                    hint="upgrade snapfmt to the version that wrote it",
                )


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object repeats a key")
    return result


def _finite(text: str) -> float:
    # 1e999 reads as an infinity, which no canonical form has.
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _depth(data: bytes) -> int:
    """Nesting depth, ignoring brackets inside strings, before anything is built."""
    deepest = depth = 0
    for run in _BRACKETS.findall(_STRING.sub(b"", data)):
        for bracket in run:
            depth += 1 if bracket in b"[{" else -1
            deepest = max(deepest, depth)
    return deepest
