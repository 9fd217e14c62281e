from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.checkpoint import write_checkpoint
from tests.server.harness import FAKE, ServerProcess, serving


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def server(checkpoint: Path) -> Iterator[ServerProcess]:
    """A whole server with the real engine; shared, so tests leave it as they found it."""
    with serving("--model", str(checkpoint), "--served-model-name", "tiny", "--max-num-reqs", "64") as server:
        yield server


@pytest.fixture(scope="session")
def fake(checkpoint: Path) -> Iterator[ServerProcess]:
    """A server over an engine without model, for what must break; it recovers, so tests share it."""
    with serving("--model", str(checkpoint), "--served-model-name", "tiny", module=FAKE) as server:
        yield server
