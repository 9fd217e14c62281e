"""Runs `runtime.server` with the stand-in for grammars that are slow (`tests/structured_output/slow_grammars.py`)."""

import os
import sys

from runtime.config import parse
from runtime.server.launcher import run
from runtime.structured_output import sandbox
from tests.structured_output.slow_grammars import COMPILER, command

if __name__ == "__main__":
    sandbox.COMMAND = COMPILER
    sys.exit(run(parse(sys.argv[1:], os.environ), command("runtime.server.engine_process.backend")))
