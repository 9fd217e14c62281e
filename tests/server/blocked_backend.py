"""Starts a backend whose engine blocks in a step while the file named by the variable TEST_BLOCKED exists."""

import os
import sys
import time
from pathlib import Path

from runtime.server.engine_process import backend
from tests.server.fake_engine import FakeEngine
from tests.server.limits import raise_limits


class BlockedEngine(FakeEngine):
    def execute_step(self) -> None:
        while Path(os.environ["TEST_BLOCKED"]).exists():
            time.sleep(0.01)
        super().execute_step()


if __name__ == "__main__":
    raise_limits("backend")
    sys.exit(backend.main(BlockedEngine, prepare=lambda: None))
