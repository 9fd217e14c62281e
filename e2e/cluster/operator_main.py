"""Runs `python -m unmask_operator` with long timeouts, short pauses between lists, and a clock that tests set.

Usage: python -m e2e.cluster.operator_main FILE

FILE contains the seconds to add to the clock of the Lease. Operators with the same file have the same clock.
"""

import functools
import sys
import time
from pathlib import Path

from unmask_operator import __main__ as program
from unmask_operator import health, leaderelection
from unmask_operator.autoscaler import scrape
from unmask_operator.controller import manager, pod_progress, resync

CLOCK = Path(sys.argv[1])

leaderelection.DEADLINE_SECONDS = 3600.0
leaderelection.LEASE_SECONDS = 7200
leaderelection.RELEASE_SECONDS = 120.0
health.API_SILENCE_SECONDS = 3600.0
pod_progress.TIMEOUT_SECONDS = 60.0
resync.AFTER_KOPF_SECONDS = 1.0
resync.OPTIONAL_SECONDS = 5.0


def clock() -> float:
    return time.monotonic() + float(CLOCK.read_text())


if __name__ == "__main__":
    vars(program)["Lease"] = functools.partial(leaderelection.Lease, clock=clock)
    vars(manager)["scrape"] = functools.partial(scrape.scrape, timeout=60.0)
    sys.exit(program.main())
