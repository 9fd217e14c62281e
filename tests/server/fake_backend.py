import sys

from runtime.server.engine_process import backend
from tests.server.fake_engine import FakeEngine
from tests.server.limits import raise_limits

if __name__ == "__main__":
    raise_limits("backend")
    sys.exit(backend.main(FakeEngine, prepare=lambda: None))
