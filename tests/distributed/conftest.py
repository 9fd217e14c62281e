"""One pair of ranks for all tests of a worker: starting a process takes longer than most of them."""

from collections.abc import Iterator

import pytest

from runtime.distributed import monitor
from runtime.distributed.executor import MultiprocExecutor
from runtime.distributed.rank_launcher import WorkerPlacement


class Lent:
    """Ranks that outlive the LLM which uses them."""

    def __init__(self, ranks: MultiprocExecutor) -> None:
        self.load = ranks.load
        self.close = ranks.unload


@pytest.fixture(scope="session", autouse=True)
def long_silence() -> Iterator[None]:
    """A rank that gets no CPU time is not taken for one that hangs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "SILENCE_SECONDS", 3600.0)
        yield


@pytest.fixture(scope="session")
def ranks() -> Iterator[MultiprocExecutor]:
    pair = MultiprocExecutor(2, WorkerPlacement(), 600)
    yield pair
    pair.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, ranks: MultiprocExecutor) -> MultiprocExecutor:
    """What ``LLM(tensor_parallel_size=2)`` uses instead of processes of its own."""
    monkeypatch.setattr("runtime.distributed.executor.local_executor", lambda config, command: Lent(ranks))
    return ranks
