"""What must be equal for a restore: topology and recipe, readable beside their digests."""

import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.identity import Digest


def fingerprint_digest(content: dict[str, Any]) -> str:
    """Tagged sha256 of the compact JSON with sorted keys, as upstream computes it."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class Fingerprint(Record):
    """One named fingerprint: its readable content and the digest of it."""

    SCHEMA: ClassVar[str] = "snapfmt.fingerprint"

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=64)]
    digest: Digest
    content: dict[str, Any]

    @model_validator(mode="after")
    def _digest(self) -> Self:
        if fingerprint_digest(self.content) != self.digest:
            raise ValueError(f"digest of fingerprint {self.name!r} is not that of its content")
        return self

    @classmethod
    def of(cls, name: str, content: dict[str, Any]) -> Self:
        """The fingerprint of `content`."""
        return cls(name=name, digest=fingerprint_digest(content), content=content)

    def differences(self, other: "Fingerprint") -> tuple[str, ...]:
        """Field by field what differs, as `path: here != there`; empty when equal."""
        return tuple(_differences(self.content, other.content, self.name))


def _differences(left: Any, right: Any, path: str) -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        found: list[str] = []
        for key in sorted(left.keys() | right.keys()):
            if key not in left:
                found.append(f"{path}.{key}: absent != {right[key]!r}")
            elif key not in right:
                found.append(f"{path}.{key}: {left[key]!r} != absent")
            else:
                found.extend(_differences(left[key], right[key], f"{path}.{key}"))
        return found
    if isinstance(left, list) and isinstance(right, list):
        here, there = _by_participant(left), _by_participant(right)
        if here is not None and there is not None:
            named = _differences(here, there, path)
            # Nothing by name: at most their order differs, and that shows below.
            if named:
                return named
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [
            line
            for i, (a, b) in enumerate(zip(left, right, strict=True))
            for line in _differences(a, b, f"{path}[{i}]")
        ]
    return [] if left == right and type(left) is type(right) else [f"{path}: {left!r} != {right!r}"]


def _by_participant(items: list[Any]) -> dict[str, Any] | None:
    """The participants of a topology by component and name; None for any other list."""
    found: dict[str, Any] = {}
    for item in items:
        name = item.get("participant") if isinstance(item, dict) else None
        if not isinstance(name, dict):
            return None
        words = (name.get("component"), name.get("server_name"), name.get("participant_name"))
        found["/".join(str(word) for word in words)] = item
    return found if len(found) == len(items) else None
