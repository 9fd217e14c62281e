import sys

from runtime.server.engine_process import backend
from tests.server.limits import raise_limits
from tests.server.scripted_engine import ScriptedEngine

if __name__ == "__main__":
    raise_limits("backend")
    sys.exit(backend.main(ScriptedEngine, prepare=lambda: None))
