"""The real frontend over backends that say what they are told to."""

import os
import sys

from runtime.config import parse
from runtime.errors import ConfigError
from runtime.server.serve import run

if __name__ == "__main__":
    try:
        sys.exit(run(parse(sys.argv[1:], os.environ), (sys.executable, "-m", "tests.server.scripted_backend")))
    except ConfigError as error:
        sys.exit(f"error: {error}")
