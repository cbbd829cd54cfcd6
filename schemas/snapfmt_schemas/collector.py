"""Python's garbage collector, for the time in which it would only be in the way."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collection in this process meanwhile.

    Where many objects are made and none is garbage, or somebody is held, looking for some may take
    longer than what is done.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
