"""The two row schemas that upstream keeps in TransferQueue (spec/v1/06-tables.md).

A table says which one it follows in its `schema_id`. Rows may have further columns; the
rules here are about the named ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import pyarrow as pa

Requirement = Literal["publish", "train", "no"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """One named column of a row schema."""

    name: str
    dtype: str
    """Logical dtype of an element."""
    ndim: int = 0
    """Axes of one row's value: 0 a scalar, 1 a ragged vector."""
    required: Requirement = "publish"
    """From when on a row must have it: its publication, when it is ready to train, never."""
    also: tuple[str, ...] = ()
    """Other logical dtypes that upstream writes for it."""
    length: int | None = None
    """Fixed length of the vector, if it has one."""

    @property
    def ragged(self) -> bool:
        """Whether its length differs from row to row."""
        return self.ndim > 0 and self.length is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSchema:
    """The named columns of one kind of row."""

    name: str
    version: int
    key: str
    """How a row's key is made."""
    columns: tuple[ColumnRule, ...]

    @property
    def schema_id(self) -> str:
        """What a table of such rows has as its `schema_id`."""
        return f"snapfmt.rows.{self.name}.v{self.version}"


def _columns(
    dtype: str,
    names: str,
    *,
    ndim: int = 0,
    required: Requirement = "publish",
    also: tuple[str, ...] = (),
    length: int | None = None,
) -> tuple[ColumnRule, ...]:
    return tuple(
        ColumnRule(name=name, dtype=dtype, ndim=ndim, required=required, also=also, length=length)
        for name in names.split()
    )


CANONICAL: Final = RowSchema(
    name="canonical",
    version=1,
    key="<group id>_g<generation index>",
    columns=(
        *_columns("int64", "input_ids", ndim=1, also=("int32",)),
        *_columns("int64", "input_lengths", also=("int32",)),
        *_columns("float32", "generation_logprobs token_mask", ndim=1, also=("bfloat16",)),
        *_columns("float32", "sample_mask total_reward"),
        *_columns("int64", "prompt_ids_for_adv", ndim=1, also=("int32",)),
        *_columns(
            "float32",
            "prev_logprobs reference_policy_logprobs advantages",
            ndim=1,
            required="train",
            also=("bfloat16",),
        ),
    ),
)
"""One finished generation, as the trainer reads it."""

TOKEN_CAPTURE: Final = RowSchema(
    name="token-capture",
    version=1,
    key="<capture key>/<model call id>",
    columns=(
        *_columns("int64", "token_ids_delta", ndim=1),
        *_columns("float32", "token_mask_delta generation_logprobs_delta", ndim=1),
        *_columns(
            "int64",
            "schema_version digest_version extras_digest_version capture_mode prev_len"
            " delta_len cum_len weight_version routed_len routed_experts_encoding",
        ),
        *_columns("bool", "parent_call_id_present chain_hash_present cumulative_hash_present"),
        *_columns("uint8", "rollout_id_utf8 model_call_id_utf8 parent_call_id_utf8", ndim=1),
        *_columns(
            "uint8",
            "digest_bytes extras_digest_bytes chain_hash_bytes cumulative_hash_bytes",
            ndim=1,
            length=32,
        ),
        *_columns("uint8", "extras_metadata_json", ndim=1),
        *_columns("int16", "routed_experts", ndim=3, required="no", also=("int8", "int32")),
    ),
)
"""One model call's tokens, as the policy model server stages them; bit patterns count."""

ROW_SCHEMAS: Final[Mapping[str, RowSchema]] = MappingProxyType(
    {schema.name: schema for schema in (CANONICAL, TOKEN_CAPTURE)}
)
"""Row schemas by name."""

TEXT, TOKEN_IN = 0, 1
_VERSIONS = {"schema_version": 2, "digest_version": 2, "extras_digest_version": 1}


def arrow_schema(name: str) -> "pa.Schema":
    """The Arrow schema of a row schema's columns before narrowing, as a segment stores them.

    A column that is not required at publication is nullable here; a segment lets every one
    be, for rows that have not produced it. A value of two or more axes is
    flat, with its shape beside it in `<name>#shape`. Booleans are stored as uint8.

    Raises:
        KeyError: If there is no such row schema.
    """
    import pyarrow as pa

    def nullable(rule: ColumnRule) -> bool:
        return rule.required != "publish"

    fields: list[pa.Field] = []
    for rule in ROW_SCHEMAS[name].columns:
        element = pa.uint8() if rule.dtype == "bool" else getattr(pa, rule.dtype)()
        metadata = {
            "snapfmt.kind": "tensor",
            "snapfmt.dtype": rule.dtype,
            "snapfmt.ndim": str(rule.ndim),
        }
        kind = pa.large_list(pa.field("item", element, nullable=False)) if rule.ndim else element
        fields.append(pa.field(rule.name, kind, nullable=nullable(rule), metadata=metadata))
        if rule.ndim > 1:
            axes = pa.field("item", pa.int64(), nullable=False)
            shape = pa.list_(axes, rule.ndim)
            fields.append(pa.field(f"{rule.name}#shape", shape, nullable=False))
    return pa.schema(fields, metadata={"snapfmt.schema": ROW_SCHEMAS[name].schema_id})


def check_capture_row(row: Mapping[str, Any]) -> list[str]:
    """Every way in which a token-capture row breaks its rules; empty when it keeps them.

    Values may be torch tensors, numpy arrays, bytes or plain Python values.
    """
    problems = [
        f"column {rule.name!r} is missing"
        for rule in TOKEN_CAPTURE.columns
        if rule.required == "publish" and rule.name not in row
    ]
    if problems:
        return problems
    plain = {name: _plain(row[name]) for name in _CHECKED}
    problems += _scalar_problems(plain)
    problems += _shape_problems(plain)
    return problems or [*_value_problems(plain), *_parent_problems(plain)]


_CHECKED = [rule.name for rule in TOKEN_CAPTURE.columns if rule.required == "publish"]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, bytes | bytearray | tuple) else value


def _scalar_problems(row: dict[str, Any]) -> list[str]:
    problems: list[str] = []
    for rule in TOKEN_CAPTURE.columns:
        if rule.ndim or rule.name not in row:
            continue
        value = row[rule.name]
        if isinstance(value, list) and len(value) == 1:
            value = row[rule.name] = value[0]
        if rule.dtype == "bool":
            right = isinstance(value, int) and value in (0, 1)
        else:
            right = isinstance(value, int) and not isinstance(value, bool)
        if not right:
            problems.append(f"{rule.name} must be one {rule.dtype}")
    return problems


def _shape_problems(row: dict[str, Any]) -> list[str]:
    problems: list[str] = []
    for rule in TOKEN_CAPTURE.columns:
        if rule.ndim != 1:
            continue
        value = row[rule.name]
        if not isinstance(value, list) or any(isinstance(item, list) for item in value):
            problems.append(f"{rule.name} must be a vector")
        elif rule.length is not None and len(value) != rule.length:
            problems.append(f"{rule.name} has {len(value)} bytes, not {rule.length}")
    return problems


def _value_problems(row: dict[str, Any]) -> list[str]:
    problems = [
        f"{name} is {row[name]}, this schema is {version}"
        for name, version in _VERSIONS.items()
        if row[name] != version
    ]
    problems += [
        f"{name} is negative"
        for name in ("prev_len", "delta_len", "cum_len", "routed_len")
        if row[name] < 0
    ]
    mask, logprobs = row["token_mask_delta"], row["generation_logprobs_delta"]
    problems += [
        f"{name} has {len(row[name])} tokens, delta_len is {row['delta_len']}"
        for name in ("token_ids_delta", "token_mask_delta", "generation_logprobs_delta")
        if len(row[name]) != row["delta_len"]
    ]
    if any(value not in (0.0, 1.0) for value in mask):
        problems.append("token_mask_delta has a value other than 0.0 and 1.0")
    # -0.0 passes: it equals 0.0, and a logprob times a mask of 0.0 gives it.
    if any(m == 0.0 and p != 0.0 for m, p in zip(mask, logprobs, strict=False)):
        problems.append("generation_logprobs_delta is not 0.0 where the token is masked")
    if any(m == 1.0 and math.isnan(p) for m, p in zip(mask, logprobs, strict=False)):
        problems.append("generation_logprobs_delta is NaN where the token is not masked")
    if row["cum_len"] != row["prev_len"] + row["delta_len"]:
        problems.append("cum_len is not prev_len + delta_len")
    if row["routed_experts_encoding"] not in (0, 1, 2):
        problems.append("routed_experts_encoding is not 0, 1 or 2")
    return problems


def _parent_problems(row: dict[str, Any]) -> list[str]:
    if row["parent_call_id_present"]:
        if row["capture_mode"] != TOKEN_IN or row["prev_len"] <= 0:
            return ["a child call has capture_mode token_in (1) and prev_len above 0"]
        if row["parent_call_id_utf8"] in ([], [0]):
            return ["parent_call_id_utf8 is empty, parent_call_id_present is true"]
    else:
        if row["capture_mode"] != TEXT or row["prev_len"] != 0:
            return ["a root call has capture_mode text (0) and prev_len 0"]
        if row["parent_call_id_utf8"] != [0]:
            return ["parent_call_id_utf8 of a root call must be one zero byte"]
    return []
