"""Cells of a table for people and for JSON."""

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from snapfmt.cli.floats import DECODED, decode
from snapfmt.cli.text import clean, shorten

if TYPE_CHECKING:
    from snapfmt.format.columns import Column

WIDTH = 72
"""Characters of a value in a preview."""
_EDGE = 3
_WHOLE = 8
_BYTES = 16
_DIGITS = 5
"""After the point, in a preview; a JSON line has every digit."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One value with its type."""

    kind: str
    dtype: str
    value: Any

    @property
    def decoded(self) -> bool:
        """Whether the numbers shown were computed from bits of a dtype that numpy lacks."""
        return self.dtype in DECODED

    def type_text(self) -> str:
        """`bfloat16[3,4] (decoded)`, `text`."""
        if not self.dtype:
            return self.kind
        shape = ",".join(str(size) for size in self.value.shape)
        mark = " (decoded)" if self.decoded else ""
        return f"{self.dtype}[{shape}]{mark}" if shape else f"{self.dtype}{mark}"

    def preview(self) -> str:
        """The value on one line; what is long is shortened."""
        if self.dtype:
            return preview_array(self.value)
        if self.kind == "bytes":
            more = "..." if len(self.value) > _BYTES else ""
            return f"{len(self.value)} bytes {self.value[:_BYTES].hex()}{more}"
        if self.kind == "text":
            return shorten(json.dumps(self.value, ensure_ascii=False), WIDTH)
        return shorten(_tagged(self.value), WIDTH)

    def as_json(self) -> dict[str, Any]:
        """The whole value for a JSON line."""
        if self.dtype:
            about: dict[str, Any] = {
                "kind": self.kind,
                "dtype": self.dtype,
                "shape": list(self.value.shape),
                "data": self.value.tolist(),
            }
            return about | {"decoded": True} if self.decoded else about
        if self.kind == "bytes":
            return {"kind": "bytes", "base64": base64.b64encode(self.value).decode("ascii")}
        if self.kind == "text":
            return {"kind": "text", "data": self.value}
        return {"kind": "value", "tagged": json.loads(_tagged(self.value))}


def cell(column: "Column", row: int) -> Cell | None:
    """A row's cell, or None where the column has no value."""
    from snapfmt.format.columns import MISSING

    value = column.value(row)
    if value is MISSING:
        return None
    dtype = column.signature.dtype
    return Cell(column.signature.kind, dtype, decode(value, dtype) if dtype in DECODED else value)


def preview_array(values: npt.NDArray[Any]) -> str:
    """An array on one line: the first and last elements of every axis."""
    if values.ndim == 0:
        return str(values[()])
    text = np.array2string(
        values,
        threshold=_WHOLE,
        edgeitems=_EDGE,
        max_line_width=1 << 20,
        separator=", ",
        precision=_DIGITS,
        floatmode="maxprec",
    )
    # numpy pads to align and breaks lines between rows; here everything is one line.
    text = re.sub(r"\s+", " ", text).replace("[ ", "[").replace(" ]", "]")
    text = text.replace(" ,", ",")
    return shorten(text, WIDTH)


def _tagged(value: Any) -> str:
    from snapfmt.format import tagged

    return clean(tagged.encode(value))
