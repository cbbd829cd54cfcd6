"""How long a preparation waits for what; apart from it, since configurations name these too."""

from typing import Final

WAIT_S: Final = 5.0
"""How long a server may hold a question back until it is ready, in seconds."""
INTERRUPT_AFTER: Final = 0.5
"""Share of the time to prepare after which calls that still generate are ended."""
INTERRUPT_EVERY_S: Final = 0.2
