"""Rows as they come from a caller: checked, grouped by their types, turned into columns."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from snapfmt.errors import InputError, UnsupportedValue
from snapfmt.format import arrow_stream, tagged
from snapfmt.format.columns import (
    MISSING,
    WHOLE,
    Batch,
    Column,
    Encoded,
    Ragged,
    Signature,
    batch_of,
    from_values,
    is_utf8,
    missing_column,
    signature_of,
)

MAX_NAME = 1024
"""Characters of a column's name; the schema of a part index says the same."""
Rows = list[tuple[str, Column]]
"""Columns of some rows, the key first."""
Values = Sequence[Any] | Batch | Ragged
"""One value per row."""
Types = tuple[tuple[str, Signature], ...]
"""Columns and their types, as rows of one segment share them."""


@dataclass(frozen=True, slots=True)
class Converter:
    """How a foreign array library becomes columns; see `snapfmt.adapters.torch_values`."""

    signature: Callable[[Any], Signature]
    """Signature of one value."""
    uniform: Callable[[Sequence[Any]], Signature | None]
    """Signature of many values if all have the same; None where that is not cheap to say."""
    column: Callable[[Signature, Sequence[Any]], Column]
    """A column of values of one signature."""
    sizes: Callable[[Sequence[Any]], npt.NDArray[np.int64]]
    """Logical bytes of every value."""
    rows: Callable[[Any], "Values"]
    """The rows of a whole batch in one value."""
    together: Callable[[Sequence[Any]], Ragged | None]
    """Small values that are all alike in one piece, of bits of its own; None where they are not."""


class RowConverter:
    """Turns values of any supported library into columns; names row and field in errors."""

    def __init__(self, table: str, converter: Callable[[type], Converter | None]) -> None:
        self._table = table
        self._converter = converter

    def listed(self, values: Any) -> Values:
        """One value per row, from a list or from a batched array, dense or nested."""
        if isinstance(values, np.ndarray) and values.ndim:
            batch = batch_of(values)
            return [values[row, ...] for row in range(len(values))] if batch is None else batch
        convert = self._converter(type(values))
        if convert is not None:
            return convert.rows(values)
        if isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
            return values
        raise InputError("a column is a sequence of one value per row", what=repr(type(values)))

    def check(self, keys: list[str], columns: Mapping[str, Values], seen: set[str]) -> None:
        """Refuse keys that repeat and columns that do not fit.

        Raises:
            InputError: Naming the key or the column.
        """
        for key in keys:
            if type(key) is not str or not key or not is_utf8(key):
                raise InputError(f"table {self._table} needs keys that are text", what=repr(key))
        if len(set(keys)) != len(keys) or not seen.isdisjoint(keys):
            repeated = min(key for key, count in Counter(keys).items() if count > 1 or key in seen)
            raise InputError(f"table {self._table} has the key already", what=repeated)
        for name, values in columns.items():
            if type(name) is not str or not 0 < len(name) <= MAX_NAME or not is_utf8(name):
                message = f"column name is not text of 1 to {MAX_NAME} characters"
                raise InputError(message, what=repr(name)[:80])
            if name == arrow_stream.KEY_COLUMN or name.endswith("#shape"):
                raise InputError("column name is reserved", what=name)
            if not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
                raise InputError("column is not a sequence of values", what=name)
            if len(values) != len(keys):
                message = f"column has {len(values)} values for {len(keys)} keys"
                raise InputError(message, what=name)

    def prepared(self, name: str, keys: list[str], values: Values) -> Values:
        """The values of a column, plain Python ones in their stored form, small ones together.

        Their true size is known from then on, and what has no exact form is refused before any
        row of the call is taken.

        Raises:
            UnsupportedValue: Naming the row and the field.
        """
        if isinstance(values, WHOLE):
            return values
        kinds = set(map(type, values))
        if not any(map(self._is_plain, kinds)):
            convert = self._converter(kinds.pop()) if len(kinds) == 1 else None
            found = None if convert is None else convert.together(values)
            return values if found is None else found
        stored: list[Any] = []
        for key, value in zip(keys, values, strict=True):
            kind = type(value)
            if self._is_plain(kind) and not (kind is str and is_utf8(value)):
                try:
                    value = Encoded(tagged.encode(value).encode("ascii"))
                except UnsupportedValue as error:
                    raise _located(error, self._table, key, name) from error
            stored.append(value)
        return stored

    def _is_plain(self, kind: type) -> bool:
        if kind in (bytes, type(MISSING), Encoded) or issubclass(kind, np.ndarray):
            return False
        return self._converter(kind) is None

    def group(
        self, keys: list[str], columns: Mapping[str, Values]
    ) -> list[tuple[Types, npt.NDArray[np.int64] | None]]:
        """Rows by the types of their cells; None stands for all rows."""
        uniform: dict[str, Signature] = {}
        mixed: dict[str, list[Signature | None]] = {}
        for name in sorted(columns):
            values = columns[name]
            if isinstance(values, WHOLE):
                uniform[name] = values.signature
                continue
            if (alike := self._uniform(values)) is not None:
                uniform[name] = alike
                continue
            found = self._signatures(name, keys, values)
            distinct = set(found) - {None}
            if len(distinct) > 1:
                mixed[name] = found
            elif distinct:
                uniform[name] = next(item for item in distinct if item is not None)
        if not mixed:
            return [(tuple(uniform.items()), None)] if keys else []
        rows: dict[Types, list[int]] = {}
        for row in range(len(keys)):
            own = {name: found[row] for name, found in mixed.items()}
            cells = {
                **uniform,
                **{name: item for name, item in own.items() if item is not None},
            }
            rows.setdefault(tuple(sorted(cells.items())), []).append(row)
        return [(cells, np.array(members, np.int64)) for cells, members in rows.items()]

    def _uniform(self, values: Sequence[Any]) -> Signature | None:
        kinds = set(map(type, values))
        if kinds == {Encoded}:
            return Signature("value")
        convert = self._converter(kinds.pop()) if len(kinds) == 1 else None
        return None if convert is None else convert.uniform(values)

    def _signatures(
        self, name: str, keys: list[str], values: Sequence[Any]
    ) -> list[Signature | None]:
        converters = {kind: self._converter(kind) for kind in set(map(type, values))}
        found: list[Signature | None] = []
        for row, value in enumerate(values):
            convert = converters[type(value)]
            try:
                found.append(signature_of(value) if convert is None else convert.signature(value))
            except UnsupportedValue as error:
                raise _located(error, self._table, keys[row], name) from error
        return found

    def sizes(self, columns: Mapping[str, Values], rows: int) -> npt.NDArray[np.int64]:
        """Logical bytes of every row, roughly."""
        total = np.full(rows, 32, np.int64)
        for values in columns.values():
            if isinstance(values, WHOLE):
                total += values.row_bytes
                continue
            kinds = set(map(type, values))
            convert = self._converter(next(iter(kinds))) if len(kinds) == 1 else None
            total += (
                np.fromiter(map(_size, values), np.int64, rows)
                if convert is None
                else convert.sizes(values)
            )
        return total

    def convert(
        self,
        cells: Types,
        keys: list[str],
        columns: Mapping[str, Values],
        start: int,
        stop: int,
    ) -> Rows:
        """Rows start to stop as columns; copies the bits."""
        result: Rows = [(arrow_stream.KEY_COLUMN, from_values(arrow_stream.KEY_SIGNATURE, keys))]
        for name, signature in cells:
            values = columns[name][start:stop]
            result.append((name, self._column(name, signature, keys, values)))
        return result

    def _column(self, name: str, signature: Signature, keys: list[str], values: Values) -> Column:
        if isinstance(values, WHOLE):
            return values.column()
        kinds = set(map(type, values)) - {type(MISSING)}
        if not kinds:
            return missing_column(signature, len(values))
        convert = self._converter(next(iter(kinds)))
        build = from_values if convert is None else convert.column
        try:
            return build(signature, values)
        except UnsupportedValue:
            # Find the row, so that the message names it.
            for key, value in zip(keys, values, strict=True):
                try:
                    build(signature, [value])
                except UnsupportedValue as error:
                    raise _located(error, self._table, key, name) from error
            raise


def _size(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    return len(value) if type(value) in (str, bytes) else 16


def _located(error: UnsupportedValue, table: str, key: str, name: str) -> UnsupportedValue:
    return UnsupportedValue(
        f"row {key!r}, field {name!r}: {error.message}", what=table, hint=error.hint
    )
