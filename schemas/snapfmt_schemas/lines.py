"""One record as one JSON line, byte for byte as upstream writes it (spec/v1/05-records.md).

`json.dumps` with its defaults: `", "` and `": "`, ASCII escapes, fields in declared order.
"""

import json
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from snapfmt_schemas._base import Record
from snapfmt_schemas.opaque import PARSED

R = TypeVar("R", bound=Record)


def to_line(record: Record) -> bytes:
    """The line of a record, without a newline.

    Equal to `json.dumps(record.model_dump(mode="json"))` where that works; this one also
    takes values that are nested deeper than pydantic's serializer goes.

    Raises:
        ValueError: If the record is nested too deep, or holds an integer too long, for JSON; or
            NaN or an infinity, which JSON has not (R-1).
    """
    try:
        return _ENCODER.encode(record).encode("ascii")
    except (RecursionError, TypeError) as error:
        raise ValueError(f"{type(record).__name__} cannot be written: {error}") from error


def to_value(record: Record) -> dict[str, Any]:
    """The record as the plain JSON value that its line holds."""
    value: dict[str, Any] = json.loads(to_line(record))
    return value


def from_line(model: type[R], data: bytes) -> R:
    """The record in a line.

    Raises:
        ValueError: If it is not JSON in UTF-8, repeats a key, or breaks the schema.
    """
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError(f"{model.__name__} line is nested too deep") from error
    return from_value(model, value)


def from_value(model: type[R], value: Any) -> R:
    """The record in a value that a JSON parser made.

    Raises:
        ValueError: If it breaks the schema.
    """
    try:
        return model.model_validate(value, context=PARSED)
    except ValidationError as error:
        # The format's own documents declare plain tuples, which strict validation makes
        # from JSON text only.
        if not any(found["type"] == "tuple_type" for found in error.errors()):
            raise
        return model.model_validate_json(json.dumps(value))


def _fields(value: Any) -> dict[str, Any]:
    if not isinstance(value, BaseModel):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return {name: getattr(value, name) for name in type(value).model_fields}


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON parser's pairs; a repeated key would hide a value from readers.

    Raises:
        ValueError: If a key repeats.
    """
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object repeats the key {repeated!r}")
    return result


def no_constant(text: str) -> Any:
    """What a parser does with NaN and the infinities, which Python takes and JSON has not.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{text} is not JSON")


# Made once: `json.dumps` and `json.loads` make one for every call that is given a hook.
_ENCODER: Final = json.JSONEncoder(default=_fields, allow_nan=False)
_DECODER: Final = json.JSONDecoder(object_pairs_hook=unique_pairs)
