"""Runs a server that grows, stalls and logs at each wrong key, which the siege must report. It has no model."""

import logging
import os
import sys
import time
from typing import Any

from runtime.config import parse
from runtime.errors import RequestError
from runtime.server.launcher import run
from runtime.server.middleware.auth import ApiKeys

GROWTH = 60_000_000  # bytes per wrong key
STALL = 0.5  # seconds
LINES = 100

held: list[bytes] = []
check = ApiKeys.check


def leaking(keys: ApiKeys, *args: Any) -> Any:
    try:
        return check(keys, *args)
    except RequestError:
        held.append(b"x" * GROWTH)
        time.sleep(STALL)
        for _ in range(LINES):
            logging.getLogger("unmask.leaking").warning("a wrong key")
        raise


if __name__ == "__main__":
    ApiKeys.check = leaking  # type: ignore[method-assign, assignment]
    sys.exit(run(parse(sys.argv[1:], os.environ), (sys.executable, "-m", "tests.server.fake_engine")))
