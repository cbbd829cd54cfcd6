"""One record as one JSON line, byte for byte as upstream writes it (spec/v1/05-records.md).

`json.dumps` with its defaults: `", "` and `": "`, ASCII escapes, fields in declared order.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from snapfmt_schemas._base import Record
from snapfmt_schemas.collector import without_collections
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
        return _encode(_fields(record)).encode("ascii")
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
    return from_value(model, parse(data))


def parse(data: bytes | str) -> Any:
    """The JSON value in a line, or in any other text that is kept as it was given.

    Raises:
        ValueError: If it is not JSON in UTF-8, repeats a key, holds a number that no double is
            near, or is nested too deep.
    """
    try:
        return _DECODER.decode(data if isinstance(data, str) else data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def from_lines(model: type[R], lines: Sequence[bytes]) -> list[R] | None:
    """The records in lines as `to_line` writes them; None when one of them is not such a line.

    The same as `from_line` for each, at a third of its time: parsed and validated in one step,
    which on the way loses a repeated key and takes numbers as it likes. So the records are
    written again, and what comes out must be the lines, white space aside: strings and keys
    begin and end at the same places with or without their spaces.
    """
    read = model.__pydantic_validator__.validate_json
    write = model.__pydantic_serializer__.to_json
    text = b"\n".join(lines)
    escaped = b"\\u" in text
    try:
        with without_collections():
            found = [read(line, context=PARSED) for line in lines]
            again = [write(record, ensure_ascii=escaped, warnings="error") for record in found]
    except (ValueError, RecursionError):
        return None
    return found if b"\n".join(again).replace(b" ", b"") == text.replace(b" ", b"") else None


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
    held, names = vars(value), type(value).__pydantic_fields__
    # What was validated is in declared order already; a copy would cost as much as encoding it.
    return held if [*held] == [*names] else {name: getattr(value, name) for name in names}


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


def finite(text: str) -> float:
    """The double that a number is; Python takes one that none is near for an infinity.

    Raises:
        ValueError: If there is none.
    """
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is larger than a double")
    return value


def no_constant(text: str) -> Any:
    """What a parser does with NaN and the infinities, which Python takes and JSON has not.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{text} is not JSON")


def encoder(
    item: str, key: str, default: Callable[[Any], Any] | None = None
) -> Callable[[Any], str]:
    """As `json.JSONEncoder(separators=(item, key), default=default, allow_nan=False).encode`.

    What contains itself is found by its depth: it raises a RecursionError. `default` says what
    stands for a value that JSON has not.
    """
    plain = json.JSONEncoder(separators=(item, key), default=default, allow_nan=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    # `encode` makes one of these for every value, which takes longer than encoding it. Without
    # marks of what is open: what contains itself is nested too deep.
    text = json.encoder.encode_basestring_ascii
    pieces = make(None, plain.default, text, None, key, item, False, False, False)  # noqa: FBT003
    return lambda value: "".join(pieces(value, 0))


# Made once: `json.dumps` and `json.loads` make one for every call that is given a hook.
_encode: Final = encoder(", ", ": ", _fields)
_DECODER: Final = json.JSONDecoder(object_pairs_hook=unique_pairs, parse_float=finite)
