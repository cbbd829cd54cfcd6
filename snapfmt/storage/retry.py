"""When to try a request again, and for how long."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Growing pauses with full jitter, so that many writers do not come back in step."""

    attempts: int = 8
    first_s: float = 0.1
    longest_s: float = 8.0
    sleep: Callable[[float], None] = time.sleep

    def tries(self) -> Iterator[int]:
        """Numbers of the tries, from 0, with a pause before each but the first."""
        for number in range(self.attempts):
            if number:
                most = min(self.longest_s, self.first_s * 2 ** (number - 1))
                self.sleep(most * random.random())  # noqa: S311 - no secret hangs on it
            yield number
