"""A server's backend whose weights are drawn; started by the frontend of `random_server.py`."""

from __future__ import annotations

import sys
from typing import Any

from runtime.config import EngineConfig
from runtime.server import backend


def make_engine(config: EngineConfig, device_index: int, progress: backend.Progress) -> Any:
    from runtime.bench.random_weights import load_random
    from runtime.engine.setup import load_engine

    backend.take_device(config, device_index)
    return load_engine(config, progress, load_random)


if __name__ == "__main__":
    sys.exit(backend.main(make_engine))
