"""`python -m e2e.browser`: installs the browser that the tests of the playground page drive."""

from __future__ import annotations

import sys

from e2e.cluster.node.packages import install
from e2e.cluster.process import StartError

if __name__ == "__main__":
    try:
        install({"chromium": "chromium", "chromedriver": "chromium-driver"})
    except StartError as error:
        sys.exit(str(error))
