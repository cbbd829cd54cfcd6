"""Canonical JSON of documents: one byte form out, strict bounds in (spec/v1/04-documents.md)."""

import json
import math
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from snapfmt.errors import FormatError, InputError, LimitExceeded, UnsupportedVersion
from snapfmt.format.columns import is_utf8
from snapfmt.limits import DEFAULT_LIMITS, Limits
from snapfmt_schemas.lines import finite, no_constant

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


def check_strict(value: Any, *, what: str, depth: int = DEFAULT_LIMITS.json_depth) -> None:
    """Refuse what JSON would change on the way: other types, other keys, NaN, surrogates.

    Raises:
        InputError: Naming the place.
        LimitExceeded: If it nests too deep.
    """
    todo: list[tuple[Any, str, int]] = [(value, what, depth)]
    while todo:
        node, place, left = todo.pop()
        if left < 0:
            raise LimitExceeded(f"nested deeper than {depth}", what=what)
        if isinstance(node, dict) and type(node) is dict:
            for key, child in node.items():
                _check_leaf(key, f"{place}: key {key!r}", key=True)
                todo.append((child, f"{place}.{key}", left - 1))
        elif isinstance(node, list) and type(node) is list:
            todo += [(child, f"{place}[{row}]", left - 1) for row, child in enumerate(node)]
        else:
            _check_leaf(node, place)


def _check_leaf(node: Any, place: str, *, key: bool = False) -> None:
    kind = type(node)
    plain = node is None or kind in (bool, int) or (kind is float and math.isfinite(node))
    if kind is str:
        if not is_utf8(node):
            raise InputError("text is not valid Unicode", what=place)
    elif key or not plain:
        raise InputError(
            f"{kind.__name__} is not strict JSON" if kind is not float else "NaN is not JSON",
            what=place,
            hint="use text keys, lists, text, numbers, true, false and None",
        )


def parse(data: bytes, *, what: str, size_limit: int, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Any JSON value from bounded bytes; duplicate keys, NaN and deep nesting are refused.

    Raises:
        LimitExceeded: If size, depth or digits pass a limit.
        FormatError: If the bytes are not such JSON.
    """
    if len(data) > size_limit:
        raise LimitExceeded(f"document of {len(data)} bytes, limit {size_limit}", what=what)
    if _is_deeper(data, limits.json_depth):
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
            parse_float=finite,
            parse_constant=no_constant,
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


def _is_deeper(data: bytes, limit: int) -> bool:
    """Whether it nests deeper, which takes as many brackets: small documents have fewer."""
    return data.count(b"[") + data.count(b"{") > limit and _depth(data) > limit


def _depth(data: bytes) -> int:
    """Nesting depth, ignoring brackets inside strings, before anything is built."""
    deepest = depth = 0
    for run in _BRACKETS.findall(_STRING.sub(b"", data)):
        for bracket in run:
            depth += 1 if bracket in b"[{" else -1
            deepest = max(deepest, depth)
    return deepest
