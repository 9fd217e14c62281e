"""One pair of ranks for all tests of a pytest worker. Starting a process takes longer than most tests.

The tables of ranks are compared after each step.
"""

from collections.abc import Iterator

import pytest

from runtime.executor import executor, monitor
from runtime.executor.executor import MultiprocExecutor
from runtime.executor.rank_launcher import WorkerPlacement


class Lent:
    """Wraps ranks so that they outlive the LLM that uses them."""

    def __init__(self, ranks: MultiprocExecutor) -> None:
        self.load = ranks.load
        self.close = ranks.unload


@pytest.fixture(scope="session", autouse=True)
def limits() -> Iterator[None]:
    """Compares tables each step, and raises the limit of silence, as a rank without CPU time does not hang."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "CHECK_STEPS", 1)
        patch.setattr(monitor, "SILENCE_SECONDS", 3600.0)
        yield


@pytest.fixture(scope="session")
def ranks() -> Iterator[MultiprocExecutor]:
    pair = MultiprocExecutor(2, WorkerPlacement(), 600)
    yield pair
    pair.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, ranks: MultiprocExecutor) -> MultiprocExecutor:
    """Returns ranks that ``LLM(tensor_parallel_size=2)`` uses instead of starting processes."""
    monkeypatch.setattr("runtime.executor.executor.local_executor", lambda config, command: Lent(ranks))
    return ranks
