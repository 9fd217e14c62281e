"""`python -m runtime.bench.random_server FLAGS`: the server with random weights, for a --model without tensors.

`runtime.bench serve --arch` starts it.
"""

from __future__ import annotations

import os
import sys

from runtime.child_process import module_command
from runtime.config import parse
from runtime.errors import ConfigError

BACKEND = module_command("runtime.bench.random_backend")

if __name__ == "__main__":
    try:
        config = parse(sys.argv[1:], os.environ)
        from runtime.server.launcher import run

        sys.exit(run(config, BACKEND))
    except ConfigError as error:
        sys.exit(f"error: {error}")
