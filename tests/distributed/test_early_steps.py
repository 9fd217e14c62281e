"""Tests of async scheduling with two ranks: the next forward is launched before a step's outputs are processed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.child_process import module_command
from runtime.executor import rpc
from runtime.executor.executor import DistributedRunner, MultiprocExecutor
from runtime.executor.rank_launcher import WorkerPlacement
from runtime.request.resolve import RequestContext, resolve
from runtime.scheduling.step_plan import Ints
from runtime.worker.cuda_graph_runner import CudaGraphRunner
from tests.distributed.cases import served
from tests.distributed.conftest import Lent
from tests.distributed.test_invariants import FLAGS, run, some_requests
from tests.worker.replays import pretending

SLOW = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0, decoding={"accept_threshold": 1.0})
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def captured_ranks() -> Iterator[MultiprocExecutor]:
    command = module_command("tests.distributed.captured_rank")
    ranks = MultiprocExecutor(2, WorkerPlacement(command=command), 600)
    yield ranks
    ranks.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, captured_ranks: MultiprocExecutor) -> Iterator[list[rpc.Message]]:
    """Yields the messages to the other rank, which ``LLM(tensor_parallel_size=2)`` uses."""
    monkeypatch.setattr("runtime.executor.executor.local_executor", lambda config, command: Lent(captured_ranks))
    found: list[rpc.Message] = []
    broadcast = captured_ranks.broadcast

    def noted(message: rpc.Message) -> None:
        found.append(message)
        broadcast(message)

    monkeypatch.setattr(captured_ranks, "broadcast", noted)
    with pretending(monkeypatch):
        yield found


def count(sent: list[rpc.Message], kind: type[rpc.Message]) -> int:
    return sum(isinstance(message, kind) for message in sent)


def early(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Returns a list that gets an entry for each forward that is launched early."""
    found: list[None] = []
    launch_next = DistributedRunner.launch_next

    def launched(runner: DistributedRunner) -> None:
        launch_next(runner)
        found.append(None)

    monkeypatch.setattr(DistributedRunner, "launch_next", launched)
    return found


def test_ranks_launch_the_next_forward_early(
    sent: list[rpc.Message], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, launched = served("llada2_tiny", tmp_path) | FLAGS, early(monkeypatch)
    next_tokens, computed = CudaGraphRunner.next_tokens, []

    def noted(runner: CudaGraphRunner) -> Ints:
        computed.append(next_tokens(runner))
        return computed[-1]

    monkeypatch.setattr(CudaGraphRunner, "next_tokens", noted)
    with LLM(**flags, tensor_parallel_size=2) as llm:
        found = llm.generate([PROMPT, [9, 8]], SLOW)
        steps = llm.engine.stats().steps
    assert steps / 2 < len(launched) < steps  # not where a block ends
    assert count(sent, rpc.Step) == count(sent, rpc.Sample) == steps, "a forward is launched twice"
    assert len(computed) == len(launched), "tokens of an early step are computed twice"
    with LLM(**flags, enforce_eager=True) as llm:
        expected = llm.generate([PROMPT, [9, 8]], SLOW)
    assert [(out.token_ids, out.nfe) for out in found] == [(out.token_ids, out.nfe) for out in expected]


@pytest.mark.matrix
def test_an_abandoned_step_is_replaced_by_the_next(
    sent: list[rpc.Message], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests of a launched step are aborted; other messages follow, and then another step."""
    flags, launched = served("llada2_tiny", tmp_path) | FLAGS, early(monkeypatch)
    with LLM(**flags, tensor_parallel_size=2) as llm:
        before = llm.logits(PROMPT)
        llm.engine.add(resolve(SLOW, PROMPT, llm.info, RequestContext(id="gone", stream_mode="stable")))
        while not launched:
            llm.engine.step()
        llm.engine.abort("gone")
        assert (llm.logits(PROMPT) == before).all()
        (found,) = llm.generate([PROMPT], SLOW)
    assert count(sent, rpc.Step) == count(sent, rpc.Sample) + 1
    with LLM(**flags, enforce_eager=True) as llm:
        assert found.token_ids == llm.generate([PROMPT], SLOW)[0].token_ids


@pytest.mark.matrix
def test_a_launched_step_completes_after_other_messages(
    sent: list[rpc.Message], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, launched = served("llada2_tiny", tmp_path) | FLAGS, early(monkeypatch)
    with LLM(**flags, tensor_parallel_size=2) as llm:
        llm.engine.add(resolve(SLOW, PROMPT, llm.info, RequestContext(id="one", stream_mode="stable")))
        tokens: list[int] = []
        while llm.engine.has_work():
            tokens += [token for output in llm.engine.step() for token in output.new_tokens]
            llm.logits([3, 4])
    assert launched
    assert count(sent, rpc.Step) == count(sent, rpc.Sample)
    with LLM(**flags, enforce_eager=True) as llm:
        assert tokens == llm.generate([PROMPT], SLOW)[0].token_ids


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.matrix)])
def test_answers_do_not_depend_on_other_and_aborted_requests(sent: list[rpc.Message], tmp_path: Any, seed: int) -> None:
    flags = served("llada2_tiny", tmp_path) | FLAGS
    requests = some_requests(seed, 8)
    with LLM(**flags, num_pages=64, max_num_reqs=4, tensor_parallel_size=2) as llm:
        found = run(llm, requests, seed)
    assert count(sent, rpc.Step) >= count(sent, rpc.Sample)
    with LLM(**flags, disable_prefix_caching=True, enforce_eager=True) as alone:
        for id, tokens in found.items():
            prompt, ask = requests[int(id[1:])]
            assert alone.generate([prompt], ask)[0].token_ids == tokens
