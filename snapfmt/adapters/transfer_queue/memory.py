"""Memory that the allocator has at hand before somebody is held, so that no page is new then."""

from collections.abc import Sequence
from typing import Final

REFERENCE: Final = 8
"""Bytes of an item of a list."""


def at_hand(sizes: Sequence[int]) -> list[None]:
    """Touch blocks of so many bytes and let the allocator have them for what is made next.

    The first touch of a page costs microseconds, in a virtual machine up to ten: of a thousand
    pages longer than to copy what comes into them. What is returned lies above the blocks in the
    heap: as long as it is held, they are not given back to the system.
    """
    above: list[None] = []
    # Large blocks come from the system directly, until one of their size was freed once.
    for _ in range(2):
        blocks = [[None] * (size // REFERENCE) for size in sizes]
        # As large as any of them, so that there is no room for it below.
        above = [None] * (max(sizes, default=0) // REFERENCE)
        blocks.clear()
    return above
