"""One request to the policy model server, and its answer, in OpenAI's chat form."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from snapfmt_coordinator.protocol.codes import refused
from snapfmt_coordinator.protocol.v1 import CallIdentity
from snapfmt_coordinator.reference import tokens
from snapfmt_coordinator.reference.capture import CaptureRow
from snapfmt_coordinator.reference.policy import MAX_TURNS, Ask
from snapfmt_coordinator.reference.serving import dumps
from snapfmt_schemas.identity import capture_key
from snapfmt_schemas.lineage import ModelLineageRow

FINGERPRINT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What the model is asked."""

    rollout_id: str
    attempt_index: int
    model_call_id: str
    parent_call_id: str | None
    messages: int
    ask: Ask

    @property
    def key(self) -> str:
        """Key of the call's row, and of the call among those that run."""
        return f"{capture_key(self.rollout_id, self.attempt_index)}/{self.model_call_id}"

    @property
    def prompt(self) -> bytes:
        """The rendered conversation."""
        return self.ask.prompt

    @property
    def fingerprint(self) -> str:
        """Digest of everything that is asked; equal for a retry, and in a later run."""
        ask = self.ask
        rest = [self.rollout_id, self.parent_call_id, ask.seed, ask.max_turns, ask.tools]
        return hashlib.sha256(dumps(rest) + b"\n" + self.prompt).hexdigest()

    @classmethod
    def read(
        cls, who: CallIdentity, parent_call_id: str | None, body: Mapping[str, Any]
    ) -> "ChatRequest":
        """A request.

        Raises:
            ControlRefused: invalid_request, if it is not one.
        """
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise refused("invalid_request", "not a list of messages", what="messages")
        try:
            prompt = tokens.render(messages) + tokens.START_OF_REPLY
            tools = tuple(str(tool["function"]["name"]) for tool in body.get("tools") or ())
            turn = 1 + sum(message["role"] == "assistant" for message in messages)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise refused("invalid_request", f"not chat messages: {error}") from error
        metadata = body.get("metadata")
        ask = Ask(
            seed=_number(metadata, "seed"),
            rollout_id=who.rollout_id,
            turn=turn,
            max_turns=min(_number(metadata, "max_turns"), MAX_TURNS),
            tools=tools,
            prompt=prompt,
        )
        return cls(
            rollout_id=who.rollout_id,
            attempt_index=who.attempt_index,
            model_call_id=str(who.model_call_id),
            parent_call_id=parent_call_id,
            messages=len(messages),
            ask=ask,
        )


def lineage_row(
    request: ChatRequest, message: Mapping[str, Any], row: CaptureRow, *, admitted_at: float
) -> ModelLineageRow:
    """The ledger's row of a call whose tokens are staged."""
    tags, columns = row.tags, row.columns
    return ModelLineageRow(
        model_call_id=request.model_call_id,
        fingerprint=request.fingerprint,
        context_len=request.messages,
        context_digest=hashlib.sha256(request.prompt).hexdigest(),
        digest=row.digest,
        parent_call_id=request.parent_call_id,
        staging_key=row.key,
        weight_version=tags["weight_version"],
        prev_len=tags["prev_len"],
        delta_len=tags["delta_len"],
        cum_len=tags["cum_len"],
        staging_digest=row.digest,
        extras_digest=columns["extras_digest_bytes"].tobytes().hex(),
        mode="text" if request.parent_call_id is None else "token_in",
        admitted_at=admitted_at,
        chain_hash=columns["chain_hash_bytes"].tobytes().hex(),
        cumulative_hash=columns["cumulative_hash_bytes"].tobytes().hex(),
        response_id=response_id(row.key),
        output_fingerprint=message_digest(message),
        fingerprint_version=FINGERPRINT_VERSION,
    )


def completion(model: str, message: Mapping[str, Any], row: ModelLineageRow) -> bytes:
    """The answer of a committed call: a function of what the ledger and the policy know."""
    generated = len(tokens.body(message))
    call = {
        "model_call_id": row.model_call_id,
        "parent_call_id": row.parent_call_id,
        "staging_key": row.staging_key,
        "weight_version": row.weight_version,
        "prev_len": row.prev_len,
        "delta_len": row.delta_len,
        "cum_len": row.cum_len,
        "digest": row.staging_digest,
    }
    return dumps(
        {
            "id": row.response_id,
            "object": "chat.completion",
            "created": int(row.admitted_at or 0),
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
                }
            ],
            "usage": {
                "prompt_tokens": row.cum_len - generated,
                "completion_tokens": generated,
                "total_tokens": row.cum_len,
            },
            "call_record": call,
        }
    )


def message_digest(message: Mapping[str, Any]) -> str:
    """Digest of a reply."""
    text = json.dumps(message, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def response_id(key: str) -> str:
    """Id of the answer to a call."""
    return "chatcmpl-" + hashlib.sha256(key.encode()).hexdigest()[:24]


def _number(metadata: Any, name: str) -> int:
    # OpenAI's metadata holds text only.
    value = metadata.get(name) if isinstance(metadata, dict) else None
    try:
        return int(value) if isinstance(value, str | int) else int("")
    except ValueError:
        raise refused("invalid_request", "not a whole number", what=f"metadata.{name}") from None
