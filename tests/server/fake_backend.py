import sys

from runtime.server import backend
from tests.server.fake_engine import FakeEngine

if __name__ == "__main__":
    sys.exit(backend.main(FakeEngine, prepare=lambda: None))
