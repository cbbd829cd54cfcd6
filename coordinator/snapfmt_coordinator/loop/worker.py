"""A whole run in a process of its own, which may be killed: `python -m ...worker <JSON config>`.

Talks to its parent in JSON lines on standard output: `{"event": ..., ...}`. The last one is
`done`, with the result, or `failed`. At a step where the configuration stops it, it says
`{"event": "at", "step": ...}` and stays there until it is killed.
"""

import json
import os
import sys
import warnings
from typing import Any

from snapfmt_coordinator.loop.config import LoopConfig
from snapfmt_coordinator.loop.run import Restore, RunResult, start_run


def tell(event: dict[str, Any]) -> None:
    """One line to the parent; the event's name comes first."""
    name = event["event"]
    details = {key: value for key, value in event.items() if key != "event"}
    sys.stdout.write(json.dumps({"event": name, **details}) + "\n")
    sys.stdout.flush()


def result_event(result: RunResult) -> dict[str, Any]:
    """The result as JSON values."""
    return {
        "event": "done",
        "comparable": result.comparable(),
        "saves": list(result.saves),
        "restored": result.restored,
        "activity": [[i.part, i.doing, i.start, i.end, i.what] for i in result.activity],
        "timings": result.timings,
    }


def main(arguments: list[str]) -> None:
    """`worker <config as JSON> [latest|never]`."""
    # Ray and TransferQueue read these when they are imported.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", TQ_LOGGING_LEVEL="ERROR")
    warnings.simplefilter("ignore")
    restore: Restore = "never" if arguments[1:] == ["never"] else "latest"
    try:
        config = LoopConfig.model_validate_json(arguments[0])
        start_run(
            config,
            restore=restore,
            tell=tell,
            finished=lambda result: tell(result_event(result)),
        )
    except BaseException as error:
        tell({"event": "failed", "what": f"{type(error).__name__}: {error}"})
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
