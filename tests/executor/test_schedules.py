"""Tests of random schedules with two ranks, and of forwards that are launched before a step's outputs are processed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.child_process import module_command
from runtime.executor import rpc
from runtime.executor.executor import DistributedRunner, MultiprocExecutor
from runtime.executor.rank_launcher import WorkerPlacement
from runtime.request.engine_messages import EngineStats
from runtime.request.resolve import RequestContext, resolve
from runtime.scheduling.step_plan import StepPlan
from tests.engine.harness import check_accounting
from tests.executor.cases import served
from tests.executor.conftest import Lent
from tests.matrix import marked
from tests.worker.replays import pretending

FLAGS = {"block_size": 8, "page_size": 4, "max_model_len": 64}
TIGHT = {"num_pages": 26, "max_num_batched_tokens": 48, "max_num_reqs": 5}  # preempts, and cuts prompts


def some_requests(seed, count):
    draw = random.Random(seed)
    shared = [draw.randrange(200) for _ in range(24)]
    found = []
    for n in range(count):
        prompt = shared[: draw.choice([0, 8, 16, 24])] + [draw.randrange(200) for _ in range(draw.randint(1, 12))]
        ask = SamplingParams(
            max_tokens=draw.randint(1, 24), ignore_eos=draw.random() < 0.7, seed=n,
            temperature=draw.choice([0, 0, 0.8]), top_k=draw.choice([0, 6]),
            decoding={"accept_threshold": draw.choice([0.3, 0.9])},
        )  # fmt: skip
        found.append((prompt, ask))
    return found


def run(llm, requests, seed):
    """Returns the tokens of requests that were not aborted. Requests arrive and are aborted between steps."""
    draw, engine = random.Random(seed), llm.engine
    pending = [
        resolve(ask, prompt, llm.info, RequestContext(id=f"r{n}", stream_mode="stable"))
        for n, (prompt, ask) in enumerate(requests)
    ]
    aborted = {f"r{n}" for n in range(len(requests)) if draw.random() < 0.2}
    answers = {spec.id: [] for spec in pending}
    ended = set()
    while pending or engine.has_work():
        while pending and draw.random() < 0.6:
            engine.add(pending.pop(0))
        for output in engine.step():
            assert output.error is None
            assert output.id not in ended
            answers[output.id] += output.new_tokens
            if output.finish_reason is not None:
                ended.add(output.id)
        for id in [id for id in aborted if draw.random() < 0.3]:
            engine.abort(id)
        check_accounting(engine)
    for id in aborted:
        engine.abort(id)
    assert engine.stats().pages_used == 0
    return {id: tokens for id, tokens in answers.items() if id not in aborted}


def check_independent(seed: int, count: int, directory: Path, **flags: Any) -> EngineStats:
    """Asserts that each answer of two ranks is that of one process without other requests."""
    model, requests = served("llada2_tiny", directory) | FLAGS, some_requests(seed, count)
    with LLM(**model, **flags, tensor_parallel_size=2) as llm:
        found = run(llm, requests, seed)
        stats = llm.engine.stats()
    with LLM(**model, disable_prefix_caching=True, enforce_eager=True) as alone:
        for id, tokens in found.items():
            prompt, ask = requests[int(id[1:])]
            assert alone.generate([prompt], ask)[0].token_ids == tokens
            assert not ask.ignore_eos or len(tokens) == ask.max_tokens
    return stats


@pytest.mark.parametrize("seed", marked(range(2), quick=(0,)))
def test_no_answer_depends_on_other_requests(pair: MultiprocExecutor, tmp_path: Path, seed: int) -> None:
    stats = check_independent(seed, 10, tmp_path, **TIGHT)
    assert stats.preemptions or stats.prefix_hit_tokens


SLOW = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0, decoding={"accept_threshold": 1.0})
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def captured_ranks() -> Iterator[MultiprocExecutor]:
    command = module_command("tests.executor.captured_rank")
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
    wait = DistributedRunner.wait

    def waited(runner: DistributedRunner) -> StepPlan | None:
        plan = wait(runner)
        found.extend([None] * (plan is not None))
        return plan

    monkeypatch.setattr(DistributedRunner, "wait", waited)
    return found


def test_ranks_launch_the_next_forward_early(
    sent: list[rpc.Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, launched = served("llada2_tiny", tmp_path) | FLAGS, early(monkeypatch)
    with LLM(**flags, tensor_parallel_size=2) as llm:
        found = llm.generate([PROMPT, [9, 8]], SLOW)
        steps = llm.engine.stats().steps
    assert steps / 2 < len(launched) < steps  # not where a block ends
    assert count(sent, rpc.Step) == count(sent, rpc.Sample) == steps, "a forward is launched twice"
    assert count(sent, rpc.CheckTables) == steps
    with LLM(**flags, enforce_eager=True) as llm:
        expected = llm.generate([PROMPT, [9, 8]], SLOW)
    assert [(out.token_ids, out.nfe) for out in found] == [(out.token_ids, out.nfe) for out in expected]


@pytest.mark.matrix
def test_ranks_get_what_grammars_accept_before_an_early_forward(
    sent: list[rpc.Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank stores the tokens of a scored text itself."""
    flags = {"device": "cpu", "dtype": "float64", "max_num_reqs": 2, "max_model_len": 64, "max_num_batched_tokens": 64}
    few, launched = {"max_tokens": 16, "seed": 5, "logprobs": 2}, early(monkeypatch)
    asked = [SamplingParams(**few, structured_outputs={"regex": "[a-f]{9,30}"}), SamplingParams(**few, ignore_eos=True)]

    def answers(**more: Any) -> tuple[list[Any], list[int]]:
        with LLM(**flags, **more) as llm:
            outs = llm.generate(["Name: "] * 2, asked)
            scored = llm.score([("Anna lives in", " Rome, and Tom in Paris.")], top=2)[0]
            return [(out.token_ids, out.nfe, out.finish_reason) for out in outs], [one.id for one in scored]

    found = answers(tensor_parallel_size=2)
    assert len(launched) > count(sent, rpc.Sample) - 6, "few forwards were launched early"
    assert count(sent, rpc.Step) == count(sent, rpc.Sample), "a forward is launched twice"
    assert count(sent, rpc.FetchRows) > 0
    assert found == answers(enforce_eager=True)


@pytest.mark.matrix
def test_an_abandoned_step_is_replaced_by_the_next(
    sent: list[rpc.Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert count(sent, rpc.CheckTables) == count(sent, rpc.Sample)
    with LLM(**flags, enforce_eager=True) as llm:
        assert found.token_ids == llm.generate([PROMPT], SLOW)[0].token_ids


@pytest.mark.matrix
def test_a_launched_step_completes_after_other_messages(
    sent: list[rpc.Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.matrix
def test_answers_do_not_depend_on_other_and_aborted_requests(sent: list[rpc.Message], tmp_path: Path) -> None:
    check_independent(1, 8, tmp_path, num_pages=64, max_num_reqs=4)
    assert count(sent, rpc.Step) >= count(sent, rpc.Sample)
