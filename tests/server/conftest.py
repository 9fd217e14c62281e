from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.server.checkpoint import write_checkpoint
from tests.server.harness import FAKE, SCRIPTED, ServerProcess, serving
from tests.wait import TIMEOUT


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def server(checkpoint: Path) -> Iterator[ServerProcess]:
    """A whole server with the real engine; shared, so tests leave it as they found it."""
    with serving("--model", str(checkpoint), "--served-model-name", "tiny", "--max-num-reqs", "64") as server:
        yield server


@pytest.fixture(scope="session")
def demo() -> Iterator[ServerProcess]:
    """The shipped demo; shared, like `server`."""
    with serving("--device", "cpu", "--max-num-reqs", "16") as server:
        yield server


@pytest.fixture(scope="session")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose tokenizer knows the tags of calls and thoughts."""
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tagged", tagged=True)


@pytest.fixture(scope="session")
def scripted(tagged: Path) -> Iterator[ServerProcess]:
    """A server whose answers are what their requests say."""
    with serving("--model", str(tagged), "--served-model-name", "tiny", module=SCRIPTED) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """Of `server`, or of what a module calls so."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def ai(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """OpenAI's client of `server`, or of what a module calls so; it tries nothing twice."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT) as ai:
        yield ai


@pytest.fixture(scope="session")
def fake(checkpoint: Path) -> Iterator[ServerProcess]:
    """A server over an engine without model, for what must break; it recovers, so tests share it."""
    with serving("--model", str(checkpoint), "--served-model-name", "tiny", module=FAKE) as server:
        yield server
