from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.server.checkpoint import write_checkpoint
from tests.server.harness import FAKE, KEY, SCRIPTED, ServerProcess, serving
from tests.wait import TIMEOUT


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def server(checkpoint: Path) -> Iterator[ServerProcess]:
    """Yields a server with the real engine. Tests share it, so they must leave it unchanged."""
    with serving("--model", str(checkpoint), "--served-model-name", "tiny", "--max-num-reqs", "64") as server:
        yield server


@pytest.fixture(scope="session")
def demo() -> Iterator[ServerProcess]:
    """Yields a server of the shipped demo model. Tests share it, like `server`."""
    with serving("--device", "cpu", "--max-num-reqs", "16") as server:
        yield server


@pytest.fixture(scope="session")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a checkpoint whose tokenizer has special tokens for tool calls and reasoning."""
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tagged", tagged=True)


@pytest.fixture(scope="session")
def scripted(tagged: Path) -> Iterator[ServerProcess]:
    """Yields a server that answers with the text that the request contains, see `scripted_engine`."""
    with serving("--model", str(tagged), "--served-model-name", "tiny", module=SCRIPTED) as server:
        yield server


@pytest.fixture(scope="session")
def strict(tagged: Path) -> Iterator[ServerProcess]:
    """Yields a server like `scripted` that refuses fields which it does not know."""
    flags = ("--model", str(tagged), "--served-model-name", "tiny", "--strict-fields")
    with serving(*flags, module=SCRIPTED) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """Yields an HTTP client of the module's `server` fixture."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def ai(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """Yields an OpenAI client of the module's `server` fixture, without retries."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT) as ai:
        yield ai


@pytest.fixture(scope="session")
def fake(checkpoint: Path) -> Iterator[ServerProcess]:
    """Yields a server over an engine without a model, for tests of failures. It recovers, so tests share it."""
    flags = ("--model", str(checkpoint), "--served-model-name", "tiny", "--request-timeout", "0")  # no time limit
    with serving(*flags, module=FAKE) as server:
        yield server


@pytest.fixture(scope="session")
def keyed(checkpoint: Path) -> Iterator[ServerProcess]:
    """Yields a server like `fake` whose clients need `KEY`. Its clients do not send it."""
    flags = ("--model", str(checkpoint), "--served-model-name", "tiny")
    with serving(*flags, module=FAKE, env={"UNMASK_API_KEY": KEY}) as server:
        yield server
