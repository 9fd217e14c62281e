"""Starts the real frontend over backends with the fake engine, which has no model."""

import sys

from tests.server.limits import serve

if __name__ == "__main__":
    sys.exit(serve((sys.executable, "-m", "tests.server.fake_backend")))
