"""Runs `python -m unmask_operator` with long timeouts and short pauses between lists."""

import functools
import sys

from unmask_operator import __main__ as program
from unmask_operator import health, leaderelection
from unmask_operator.autoscaler import scrape
from unmask_operator.controller import manager, pod_progress, resync

leaderelection.DEADLINE_SECONDS = 3600.0
leaderelection.LEASE_SECONDS = 7200
leaderelection.RELEASE_SECONDS = 120.0
health.API_SILENCE_SECONDS = 3600.0
pod_progress.TIMEOUT_SECONDS = 60.0
resync.AFTER_KOPF_SECONDS = 1.0
resync.OPTIONAL_SECONDS = 5.0


if __name__ == "__main__":
    vars(manager)["scrape"] = functools.partial(scrape.scrape, timeout=60.0)
    sys.exit(program.main())
