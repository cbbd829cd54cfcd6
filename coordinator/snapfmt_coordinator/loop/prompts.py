"""A data set of prompts that a seed gives, and the loader that walks through it once."""

import uuid
from dataclasses import dataclass

from snapfmt.errors import InvalidRecord
from snapfmt_schemas.loader import LoaderPlace

_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the data set; two runs of one seed know it by one group id."""

    index: int
    group_id: str


def prompt_of(seed: int, index: int) -> Prompt:
    """The prompt at one place of the data set."""
    return Prompt(index, str(uuid.uuid5(_NAMESPACE, f"snapfmt-loop/{seed}/{index}")))


class PromptLoader:
    """Draws every prompt once, in order."""

    def __init__(self, seed: int, prompts: int) -> None:
        self._seed = seed
        self._prompts = prompts
        self._drawn = 0

    @property
    def left(self) -> int:
        """Prompts that were not drawn yet."""
        return self._prompts - self._drawn

    def draw(self) -> Prompt | None:
        """The next prompt, None at the end."""
        if not self.left:
            return None
        self._drawn += 1
        return prompt_of(self._seed, self._drawn - 1)

    def place(self) -> LoaderPlace:
        """Where it is, as it is stored."""
        return LoaderPlace(
            epoch=0,
            batches=self._drawn,
            state={"seed": self._seed, "prompts": self._prompts, "drawn": self._drawn},
        )

    def go_to(self, place: LoaderPlace) -> None:
        """Goes on from a stored place.

        Raises:
            InvalidRecord: If it is another data set's or beyond its end.
        """
        expected = {"seed": self._seed, "prompts": self._prompts, "drawn": place.batches}
        if place.epoch != 0 or place.state != expected or place.batches > self._prompts:
            raise InvalidRecord(
                f"the place {place.state} in epoch {place.epoch} is none of a data set with"
                f" seed {self._seed} and {self._prompts} prompts",
                what="loader.json",
            )
        self._drawn = place.batches
