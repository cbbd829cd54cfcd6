"""Where each request goes, below `protocol.v1.PREFIX`."""

from types import MappingProxyType
from typing import Final

from snapfmt_coordinator.protocol import v1

PAUSE: Final = f"{v1.MODEL_ADMISSION}/pause"
STATUS: Final = f"{v1.MODEL_ADMISSION}/status"
ABORT: Final = f"{v1.MODEL_ADMISSION}/abort_inflight"
ACKNOWLEDGE: Final = f"{v1.AGENT}/acknowledge-completed"
PREPARE_AGENT: Final = f"{v1.AGENT}/prepare"
PREPARE_RESOURCES: Final = f"{v1.RESOURCES}/prepare"

BASE: Final = MappingProxyType({"agent": v1.AGENT, "model": v1.MODEL, "resources": v1.RESOURCES})
"""Prefix of `/commit`, `/restore`, `/retire` and `DISCARD`."""
DISCARD: Final = "discard-restored-continuation"
RESUME: Final = MappingProxyType(
    {
        "agent": f"{v1.AGENT}/resume",
        "model": f"{v1.MODEL_ADMISSION}/resume",
        "resources": f"{v1.RESOURCES}/resume",
    }
)
"""Resume is where the pause was: for the model server, at its admission."""
