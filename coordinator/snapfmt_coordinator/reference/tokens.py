"""Byte-level tokens of a conversation, and the digests of a token-capture row.

A token id is the value of one byte. Roles and ends are marked by bytes that no UTF-8 text has,
so that a rendered conversation reads back in one way only, and so that appending a message
appends tokens and changes none.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_ROLES: Final = {"system": b"\xf8", "user": b"\xf9", "assistant": b"\xfa", "tool": b"\xfb"}
_CALL: Final = b"\xfc"
_ARGUMENTS: Final = b"\xfd"
_END: Final = b"\xfe"
START_OF_REPLY: Final = _ROLES["assistant"]
"""What a prompt ends with: the model goes on from here."""

_CALL_DOMAIN: Final = b"nemo-gym-staging-call-v2"
_EXTRAS_DOMAIN: Final = b"nemo-gym-staging-extras-v1"
_PREFIX_DOMAIN: Final = b"nemo-gym-staging-prefix-v2"
_CHAIN_DOMAIN: Final = b"nemo-gym-staging-chain-v1"
SCHEMA_VERSION: Final = 2
DIGEST_VERSION: Final = 2
EXTRAS_DIGEST_VERSION: Final = 1
NO_EXTRAS: Final = hashlib.sha256(
    _EXTRAS_DOMAIN + struct.pack(">B", EXTRAS_DIGEST_VERSION) + b"N"
).digest()
"""Digest of a call without extras."""


def render(messages: Iterable[Mapping[str, Any]]) -> bytes:
    """The bytes of chat messages, in OpenAI's form.

    Raises:
        ValueError: If a message has no known role, or content that is not text.
    """
    return b"".join(_message(message) for message in messages)


def _message(message: Mapping[str, Any]) -> bytes:
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise ValueError(f"a message has the role {message.get('role')!r}")
    return role + body(message)


def body(message: Mapping[str, Any]) -> bytes:
    """The bytes of a message after its role: what a model generates of its reply."""
    data = _text(message.get("content") or "")
    for call in message.get("tool_calls") or ():
        function = call["function"]
        data += _CALL + _text(function["name"]) + _ARGUMENTS + _text(function["arguments"])
    return data + _END


def _text(value: Any) -> bytes:
    try:
        # Every message of every prompt comes through here: asking for its type is too slow.
        return value.encode("utf-8", "surrogatepass")  # type: ignore[no-any-return]
    except AttributeError:
        kind = type(value).__name__
        raise ValueError(f"content of a message is text, not {kind}") from None


def token_ids(rendered: bytes) -> Ids:
    """Token ids of rendered bytes."""
    return np.frombuffer(rendered, np.uint8).astype(np.int64)


def mask_of(masked: int, generated: int) -> Floats:
    """0.0 for the tokens that the model was given, 1.0 for those that it generated."""
    mask = np.zeros(masked + generated, np.float32)
    mask[masked:] = 1.0
    return mask


def logprobs_of(ids: Ids, masked: int, first: int) -> Floats:
    """Made-up log probabilities, a function of token and place; 0.0 for the masked tokens.

    `first` is the place of the first id in the whole sequence.
    """
    places = np.arange(first, first + len(ids), dtype=np.int64)
    mixed = (ids * 2_654_435_761 + places * 40_503) % 4096
    values = (-(mixed + 1) / 512).astype(np.float32)
    values[:masked] = np.float32(0.0)
    return values


def prefix_hash(ids: Ids) -> bytes:
    """Digest of a whole sequence of tokens, from the conversation's first one."""
    return hashlib.sha256(_PREFIX_DOMAIN + _encoded_ids(ids)).digest()


def chain_hash(parent: bytes | None, delta: Ids) -> bytes:
    """Digest that ties one call's tokens to the chain hash of the call before it."""
    before = b"\0" if parent is None else b"\1" + parent
    return hashlib.sha256(_CHAIN_DOMAIN + before + _encoded_ids(delta)).digest()


def call_digest(
    *,
    rollout_id: str,
    model_call_id: str,
    parent_call_id: str | None,
    prev_len: int,
    weight_version: int,
    ids: Ids,
    mask: Floats,
    logprobs: Floats,
    chain: bytes,
    cumulative: bytes,
) -> bytes:
    """Digest of one call's row; `rollout_id` is the run's capture key."""
    parent = b"\0" if parent_call_id is None else b"\1" + _lengthy(parent_call_id.encode())
    mode = b"text" if parent_call_id is None else b"token_in"
    return hashlib.sha256(
        b"".join(
            (
                _CALL_DOMAIN,
                struct.pack(">BBB", SCHEMA_VERSION, DIGEST_VERSION, EXTRAS_DIGEST_VERSION),
                _lengthy(rollout_id.encode()),
                _lengthy(model_call_id.encode()),
                parent,
                _lengthy(mode),
                struct.pack(">QQQ", prev_len, len(ids), prev_len + len(ids)),
                struct.pack(">Q", weight_version),
                _lengthy(_encoded_ids(ids)),
                _lengthy(_encoded_floats(mask)),
                _lengthy(_encoded_floats(logprobs)),
                NO_EXTRAS,
                b"\1" + chain,
                b"\1" + cumulative,
            )
        )
    ).digest()


def _lengthy(value: bytes) -> bytes:
    return struct.pack(">Q", len(value)) + value


def _encoded_ids(ids: Ids) -> bytes:
    return struct.pack(">Q", len(ids)) + ids.astype(">u8").tobytes()


def _encoded_floats(values: Floats) -> bytes:
    return struct.pack(">Q", len(values)) + values.astype(">f4").tobytes()
