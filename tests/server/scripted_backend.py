import sys

from runtime.server import backend
from tests.server.scripted_engine import ScriptedEngine

if __name__ == "__main__":
    sys.exit(backend.main(ScriptedEngine, prepare=lambda: None))
