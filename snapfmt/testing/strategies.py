"""Hypothesis strategies for cell values, columns and tables."""

import struct
from importlib import import_module
from typing import Any

import numpy as np
from hypothesis import strategies as st

from snapfmt.format.columns import MISSING
from snapfmt.format.dtypes import LOGICAL

NUMPY_DTYPES = tuple(name for name in LOGICAL if hasattr(np, name) or name == "bool")
"""Logical dtypes that numpy has."""
TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
"""Text with any code point, lone surrogates as well."""
FLOATS = st.one_of(
    st.floats(),
    st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]),
)
"""Any double, NaN payloads as well."""


def numpy_scalars() -> st.SearchStrategy[Any]:
    """numpy scalars of any storable dtype and any bits."""

    def build(name: str, data: bytes) -> Any:
        return np.frombuffer(_clean(name, data[: np.dtype(name).itemsize]), name)[0]

    return st.builds(build, st.sampled_from(NUMPY_DTYPES), st.binary(min_size=8, max_size=8))


def _leaves() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(10**60), 10**60),
        FLOATS,
        TEXT,
        st.binary(max_size=12),
    )


@st.composite
def plain_values(draw: st.DrawFn) -> Any:
    """Plain Python values: what tagged JSON keeps exactly."""
    return draw(_PLAIN)


def _plain_values() -> st.SearchStrategy[Any]:
    keys = st.one_of(TEXT, st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), TEXT))

    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(TEXT, inner, max_size=4),
            st.dictionaries(st.sampled_from(["$tuple", "$", "a", "$dict"]), inner, max_size=3),
            st.dictionaries(keys, inner, max_size=4),
            st.sets(keys, max_size=4),
            st.frozensets(keys, max_size=4),
        )

    leaves = st.one_of(_leaves(), st.binary(max_size=8).map(bytearray), numpy_scalars())
    return st.recursive(leaves, extend, max_leaves=12)


# Made once, and hidden behind composites: Hypothesis prints a strategy as deep as it is.
_PLAIN = _plain_values()


def arrays(max_dims: int = 3) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """numpy arrays of any bits, dtype and small shape: also big-endian, strided, transposed."""
    return st.builds(
        _array,
        st.sampled_from(NUMPY_DTYPES),
        st.lists(st.integers(0, 4), max_size=max_dims),
        st.binary(min_size=1, max_size=64),
        st.sampled_from(["plain", "big-endian", "transposed", "strided", "reversed"]),
    )


def tensors(max_dims: int = 3) -> st.SearchStrategy[Any]:
    """torch tensors of any bits, dtype and small shape: also strided, expanded, with gradients."""
    return st.builds(
        _tensor,
        st.sampled_from(sorted(LOGICAL)),
        st.lists(st.integers(0, 4), max_size=max_dims),
        st.binary(min_size=1, max_size=64),
        st.sampled_from(["plain", "transposed", "strided", "expanded", "gradient"]),
    )


def cells(*, torch: bool = True) -> st.SearchStrategy[Any]:
    """Anything that a table's cell may hold, MISSING as well."""
    kinds = [st.just(MISSING), plain_values(), TEXT, st.binary(max_size=20), arrays()]
    return st.one_of(*kinds, *([tensors()] if torch else []))


@st.composite
def appends(
    draw: st.DrawFn, *, torch: bool = True, max_rows: int = 6
) -> list[tuple[list[str], dict[str, list[Any]]]]:
    """Arguments of successive calls of `TableWriter.append`, with keys that never repeat."""
    names = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
                lambda name: name != "__key__" and not name.endswith("#shape")
            ),
            unique=True,
            max_size=4,
        )
    )
    kinds = {
        "any": cells(torch=torch),
        "text": TEXT,
        "arrays": arrays(1),
        "values": plain_values(),
    }
    # Most columns of a run have one type; a few have several.
    per_column = {name: kinds[draw(st.sampled_from(sorted(kinds)))] for name in names}
    result = []
    for call in range(draw(st.integers(0, 3))):
        rows = draw(st.integers(0, max_rows))
        keys = [f"{draw(st.sampled_from(['k', 'ключ', 'é/']))}{call}.{row}" for row in range(rows)]
        chosen = [name for name in names if draw(st.booleans()) or draw(st.booleans())]
        result.append(
            (keys, {name: [draw(per_column[name]) for _ in range(rows)] for name in chosen})
        )
    return result


def _clean(name: str, data: bytes) -> bytes:
    return bytes(byte & 1 for byte in data) if name == "bool" else data


def _fill(name: str, count: int, data: bytes, itemsize: int) -> bytes:
    size = count * itemsize
    return _clean(name, (data * (size // len(data) + 1))[:size])


def _array(name: str, shape: list[int], data: bytes, form: str) -> np.ndarray[Any, Any]:
    dtype = np.dtype(name)
    if form == "strided" and shape:
        shape = [*shape[:-1], shape[-1] * 2]
    count = int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(_fill(name, count, data, dtype.itemsize), dtype).reshape(shape)
    if form == "big-endian":
        return array.astype(dtype.newbyteorder(">"))
    if form == "transposed":
        return array.T
    if form == "strided" and shape:
        return array[..., ::2]
    if form == "reversed" and shape:
        return array[::-1]
    return array


def _tensor(name: str, shape: list[int], data: bytes, form: str) -> Any:
    torch = import_module("torch")
    dtype = getattr(torch, name)
    if form == "strided" and shape:
        shape = [*shape[:-1], shape[-1] * 2]
    count = int(np.prod(shape, dtype=np.int64))
    size = np.dtype(LOGICAL[name]).itemsize
    raw = bytearray(_fill(name, count, data, size))
    flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype) if raw else torch.empty(0).to(dtype)
    tensor = flat.reshape(shape)
    if form == "transposed" and len(shape) > 1:
        return tensor.transpose(0, -1)
    if form == "strided" and shape:
        return tensor[..., ::2]
    if form == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if form == "gradient" and name in ("float32", "float64", "float16", "bfloat16"):
        return tensor.clone().requires_grad_()
    return tensor
