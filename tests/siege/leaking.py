"""A server over backends without a model that a wrong key makes grow, stand still and talk: the siege has to tell."""

import logging
import os
import sys
import time
from typing import Any

from runtime.config import parse
from runtime.errors import RequestError
from runtime.server.launcher import run
from runtime.server.middleware.auth import ApiKeys

GROWTH = 60_000_000  # bytes a wrong key
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
    sys.exit(run(parse(sys.argv[1:], os.environ), (sys.executable, "-m", "tests.server.fake_backend")))
