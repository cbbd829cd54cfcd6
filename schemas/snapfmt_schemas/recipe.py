"""The configuration that decides what rollouts mean; a restore needs the same one."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from snapfmt_schemas._base import Record
from snapfmt_schemas.fingerprint import Fingerprint
from snapfmt_schemas.lines import to_value
from snapfmt_schemas.opaque import Items, OpaqueObject, check_json
from snapfmt_schemas.redaction import redact, secret_kind

PathGlob = Annotated[str, StringConstraints(pattern=r"^[^.\s]+(\.[^.\s]+)*$", max_length=512)]
"""Dotted path; `*` stands for (a part of) one name, `**` for any number of names."""

DEFAULT_EXCLUDED_PATHS: Final = (
    "**.api_key",
    "**.port",
    "**.ports",
    "checkpointing",
    "cluster",
    "logger",
    "policy.optimizer",
    "policy.scheduler",
    "rollout_checkpointing",
)
"""What a restore may change: secrets, places, logging, and how the trainer steps."""


def path_matches(path: tuple[str, ...], glob: tuple[str, ...]) -> bool:
    """Whether a path, given as names, is what a glob, given as names, stands for."""
    # Row by row of the classic table, since recursion over several `**` is exponential.
    reached = [True] + [False] * len(path)
    for part in glob:
        if part == "**":
            for index in range(1, len(reached)):
                reached[index] = reached[index] or reached[index - 1]
        else:
            reached = [False] + [
                before and fnmatchcase(name, part)
                for before, name in zip(reached, path, strict=False)
            ]
    return reached[-1]


def _kept(value: Any, path: tuple[str, ...], globs: tuple[tuple[str, ...], ...]) -> Any:
    """The value without excluded and secret members; a name in an array is its index."""
    if isinstance(value, dict):
        return {
            name: _kept(child, (*path, name), globs)
            for name, child in value.items()
            if not _secret(name, child, value)
            and not any(path_matches((*path, name), glob) for glob in globs)
        }
    if isinstance(value, list):
        return [
            _kept(child, (*path, str(index)), globs)
            for index, child in enumerate(value)
            if not any(path_matches((*path, str(index)), glob) for glob in globs)
        ]
    return value


def _clean(config: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Without those members, and with what is secret in another way than by its name hidden."""
    clean: dict[str, Any] = redact(_kept(config, (), _split(paths)))[0]
    return clean


def _secret(name: str, child: Any, siblings: dict[str, Any]) -> bool:
    kind = secret_kind(name, siblings)
    if kind == "text":
        return isinstance(child, str | list | dict)
    return kind == "all"


def _split(globs: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(glob.split(".")) for glob in globs)


class Recipe(Record):
    """A configuration without what a restore may change and without secrets.

    Fields are those of upstream's bootstrap identity, version 7. Secrets are left out and
    not blanked, so that a run with a key in its configuration equals one with it elsewhere. What
    is secret in another way than by its name, such as a URL with a password, is blanked.
    """

    SCHEMA: ClassVar[str] = "snapfmt.recipe"
    VERSION: ClassVar[int] = 7

    schema_version: Literal[7] = 7
    excluded_paths: Annotated[
        Items[PathGlob], Field(description="Sorted; what was left out of the configuration.")
    ] = ()
    config: OpaqueObject

    @model_validator(mode="after")
    def _check(self) -> Self:
        if list(self.excluded_paths) != sorted(set(self.excluded_paths)):
            raise ValueError("excluded_paths must be sorted and without repetition")
        if self.config != _clean(self.config, self.excluded_paths):
            raise ValueError("config has an excluded or secret member; build it with Recipe.of")
        return self

    @classmethod
    def of(
        cls, config: dict[str, Any], excluded_paths: Iterable[str] = DEFAULT_EXCLUDED_PATHS
    ) -> Self:
        """The recipe of a full configuration."""
        check_json(config)
        paths = tuple(sorted(set(excluded_paths)))
        return cls(excluded_paths=paths, config=_clean(config, paths))

    def to_fingerprint(self) -> Fingerprint:
        """The fingerprint `recipe`: sha256 of the compact sorted JSON of this record."""
        return Fingerprint.of("recipe", to_value(self))
