"""Starts the real frontend over backends with the scripted engine, which answers with the text in the request."""

import sys

from tests.server.limits import serve

if __name__ == "__main__":
    sys.exit(serve((sys.executable, "-m", "tests.server.scripted_backend")))
