"""JSON that snapfmt stores and never interprets (spec/v1/05-records.md)."""

from collections.abc import Iterator
from math import isfinite
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, PlainValidator, ValidationInfo, WithJsonSchema

T = TypeVar("T")

PARSED: Final = {"parsed": True}
"""Validation context of a value that a JSON parser made, so that it is not walked again."""


def check_json(value: Any) -> None:
    """Refuse what JSON would change or lose: other keys than text, tuples, NaN, objects, cycles.

    Numbers may pass 64 bit and nesting has no bound here, since agents own these values.

    Raises:
        ValueError: If the value would not come back equal.
    """
    above: list[tuple[int, Iterator[Any]]] = [(0, iter((value,)))]
    open_ids: set[int] = set()
    while above:
        own_id, children = above[-1]
        for node in children:
            if node is None or isinstance(node, str | int):
                continue
            if isinstance(node, float):
                if not isfinite(node):
                    raise ValueError(f"{node} is not JSON")
                continue
            if not isinstance(node, dict | list):
                raise ValueError(f"{type(node).__name__} is not JSON")
            if id(node) in open_ids:
                raise ValueError("a JSON value must not contain itself")
            open_ids.add(id(node))
            above.append((id(node), _children(node)))
            break
        else:
            above.pop()
            open_ids.discard(own_id)


def _children(node: dict[Any, Any] | list[Any]) -> Iterator[Any]:
    if isinstance(node, list):
        return iter(node)
    for key in node:
        if not isinstance(key, str):
            raise ValueError(f"JSON object key {key!r} is not text")
    return iter(node.values())


def _value(value: Any, info: ValidationInfo) -> Any:
    if info.context is not PARSED:
        check_json(value)
    return value


def _object(value: Any, info: ValidationInfo) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    _value(value, info)
    return value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# A plain validator: pydantic neither copies nor recurses, which would cap the depth at 255,
# refuse lone surrogates, and cost a second pass over every conversation.
OpaqueValue = Annotated[Any, PlainValidator(_value), WithJsonSchema({})]
"""Any JSON value, kept as it is: key order, large integers, depth."""
OpaqueObject = Annotated[
    dict[str, Any], PlainValidator(_object), WithJsonSchema({"type": "object"})
]
"""Any JSON object, kept as it is."""
Items = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]
"""An immutable sequence that is also made from a list, as a JSON parser gives one."""
