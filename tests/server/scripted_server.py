"""The real frontend over backends that say what they are told to."""

import sys

from tests.server.limits import serve

if __name__ == "__main__":
    sys.exit(serve((sys.executable, "-m", "tests.server.scripted_backend")))
