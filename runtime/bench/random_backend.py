"""Engine process of a server with random weights. The frontend of `random_server.py` starts it."""

from __future__ import annotations

import sys
from typing import Any

from runtime.errors import ConfigError
from runtime.server.engine_client.ipc_protocol import Configure
from runtime.server.engine_process import backend


def make_engine(configure: Configure, progress: backend.Progress, lost: backend.Lost) -> Any:
    from runtime.bench.random_weights import load_random
    from runtime.engine.setup import load_engine

    if configure.engine.tensor_parallel_size > 1:
        raise ConfigError("--tensor-parallel-size: a server with random weights runs on one device; leave it out")
    backend.take_devices(configure)
    return load_engine(configure.engine, progress, load_random)


if __name__ == "__main__":
    sys.exit(backend.main(make_engine))
