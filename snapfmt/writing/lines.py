"""Lines of record files: from a record or from its bytes to what is stored."""

import json
from typing import Any, NamedTuple

from snapfmt.errors import InvalidRecord
from snapfmt.format.columns import is_utf8
from snapfmt_schemas import lines, redaction
from snapfmt_schemas._base import Record


class PreparedLine(NamedTuple):
    """A line that is stored as it is; its maker answers for its form and for what is in it.

    For a record that is saved again and again: it is made once.
    """

    data: bytes
    """The JSON object, without a newline."""
    key: str
    """Finds the record within its file."""
    hidden: tuple[str, ...] = ()
    """Paths of what redaction replaced."""


def prepare(
    item: Record | bytes, key: str | None, *, redact: bool = True, what: str = ""
) -> PreparedLine:
    """The line to store; its key is that of the named field, empty without one.

    A record is written in upstream's own form: declared order, default separators, ASCII. Bytes
    stay as they are unless something in them is secret.

    Raises:
        InvalidRecord: If it is not a JSON object, or has no such field.
    """
    try:
        if isinstance(item, bytes):
            data, value = item, _parse(item)
        else:
            data = lines.to_line(item)
            known = None if redact or key is None else vars(item).get(key)
            if type(known) is str and known and known.isascii():
                # A field's text is what its line says; anything else is looked up there.
                return PreparedLine(data, known)
            value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"not a JSON line: {error}", what=what) from error
    if not isinstance(value, dict):
        raise InvalidRecord("a line must be a JSON object", what=what)
    name = value.get(key, "") if key is not None else ""
    if key is not None and (not isinstance(name, str) or not name or not is_utf8(name)):
        raise InvalidRecord(f"field {key!r} is missing or not text", what=what)
    if redact:
        value, hidden = redaction.redact(value)
        if hidden:
            return PreparedLine(json.dumps(value).encode("ascii"), name, hidden)
    return PreparedLine(data, name)


def _parse(line: bytes) -> Any:
    return json.loads(
        line.decode("utf-8"),
        object_pairs_hook=lines.unique_pairs,
        parse_float=lines.finite,
        parse_constant=lines.no_constant,
    )
