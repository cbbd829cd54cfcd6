"""Which sessions were used since they were saved, by what passes through a participant."""

from itertools import count

from snapfmt_coordinator.participant.on_base import UNMARKED

_Run = tuple[str, int]


class Touched:
    """A mark for each session that was used: another one after each use, or each revision.

    A session with the mark that it was saved with is as it was. Its revision alone does not say
    so: a session that is seeded anew counts from the beginning.
    """

    def __init__(self) -> None:
        self._next = count()
        self._marks: dict[_Run, tuple[int, int | None]] = {}
        """Mark, and the revision at the last cut."""

    def use(self, rollout_id: str, attempt_index: int) -> None:
        """A session may be changed from now on."""
        self._marks[rollout_id, attempt_index] = (next(self._next), None)

    def forget(self, rollout_id: str, attempt_index: int) -> None:
        """A run is over."""
        self._marks.pop((rollout_id, attempt_index), None)

    def mark(self, rollout_id: str, attempt_index: int, revision: int) -> int:
        """The mark of a session at a cut; none of one that was never used here."""
        run = (rollout_id, attempt_index)
        known = self._marks.get(run)
        if known is None:
            return UNMARKED
        mark, before = known
        if before not in (None, revision):
            # It was changed by what no operation stands around.
            mark = next(self._next)
        self._marks[run] = (mark, revision)
        return mark
