from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import LLM
from runtime.request.engine_messages import EngineInfo


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """Yields the demo model. Tests share it, so they must leave it unchanged."""
    with LLM(device="cpu", max_num_reqs=96) as llm:
        yield llm


@pytest.fixture(scope="session")
def facts(llm: LLM) -> tuple[Path, EngineInfo]:
    """Returns the directory of the demo's tokenizer, and the facts of its engine."""
    return llm.tokenizer.directory, llm.engine.info
