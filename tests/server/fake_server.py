"""The real frontend over backends without a model."""

import os
import sys

from runtime.config import parse
from runtime.errors import ConfigError
from runtime.server.serve import run

if __name__ == "__main__":
    try:
        sys.exit(run(parse(sys.argv[1:], os.environ), (sys.executable, "-m", "tests.server.fake_backend")))
    except ConfigError as error:
        sys.exit(f"error: {error}")
