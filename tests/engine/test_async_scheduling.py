"""Tests of async scheduling: the next forward is launched before the results of a step are processed."""

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import LLM, SamplingParams
from runtime.engine.engine import Engine
from runtime.request.engine_messages import EngineOutput
from runtime.scheduling.request import ForwardSpan, Request, Successors
from runtime.scheduling.step_plan import StepPlan
from runtime.scheduling.strategy import Strategy
from runtime.worker.cuda_graph_runner import CudaGraphRunner
from tests.engine.harness import Ask, Run, Setup, check_idle, make_engine, run_all, spec_of
from tests.engine.samples import asks, setups
from tests.examples import examples
from tests.golden import GOLDEN
from tests.oracle.block import Params
from tests.worker.replays import PROMPTS, SMALL, pretending
from tests.worker.test_logprobs import spec_of as score_of

SETUP = Setup(block=8, replayed=True, eos=(15,))  # never predicted, because it is above `max_token`
FULL_SEQUENCE = replace(SETUP, strategy="full", budget=192)
SLOW = {"accept_threshold": 1.0, "ignore_eos": True}  # one token per step


def asking(*counts: int, logprobs: int | None = None, **others: Any) -> list[Ask]:
    """Returns one request per number of tokens."""
    return [
        Ask((1, 2, 3, number), Params(max_tokens=count, **SLOW, **others), logprobs=logprobs)
        for number, count in enumerate(counts)
    ]


def noting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ref[CudaGraphRunner], bool]]:
    """Returns a list, to which each later step appends its runner and whether it launched the next forward early.

    The runner is a weak reference, so that the list does not keep it alive.
    """
    asked: list[tuple[ref[CudaGraphRunner], bool]] = []
    wait, launch_next = CudaGraphRunner.wait, CudaGraphRunner.launch_next

    def waited(runner: CudaGraphRunner) -> StepPlan | None:
        if runner.blocks is not None:
            asked.append((ref(runner), False))
        return wait(runner)

    def launched(runner: CudaGraphRunner) -> StepPlan | None:
        plan = launch_next(runner)
        asked[-1] = ref(runner), plan is not None
        return plan

    monkeypatch.setattr(CudaGraphRunner, "wait", waited)
    monkeypatch.setattr(CudaGraphRunner, "launch_next", launched)
    return asked


def forwards_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Returns a mock that counts the forwards of the engine's model."""
    assert isinstance(engine.runner, CudaGraphRunner)
    forwards = Mock(wraps=engine.runner.model_step.forward)
    monkeypatch.setattr(engine.runner.model_step, "forward", forwards)
    return forwards


class Watched:
    """Runs an engine and counts its early launches of forwards."""

    def __init__(self, setup: Setup, several: list[Ask], monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = make_engine(setup)
        self.received: dict[str, list[EngineOutput]] = {}
        self._noted = noting(monkeypatch)
        for number, ask in enumerate(several):
            self.engine.add(spec_of(f"r{number}", ask))

    @property
    def began(self) -> int:
        return sum(begun for runner, begun in self._noted if runner() is self.engine.runner)

    def step(self) -> int:
        """Makes a step and returns how many forwards it launched early."""
        before = self.began
        for output in self.engine.step():
            self.received.setdefault(output.id, []).append(output)
        return self.began - before

    def until_early(self) -> None:
        """Makes steps until one launches a forward early."""
        while not self.step():
            pass

    def drain(self) -> None:
        while self.engine.has_work():
            self.step()
        check_idle(self.engine)

    def tokens(self, id: str) -> list[int]:
        return [token for output in self.received[id] for token in output.new_tokens]


@pytest.mark.parametrize(
    ("setup", "own"),
    [
        pytest.param(SETUP, {}, id="blocks"),
        pytest.param(SETUP, {"max_repetition_run": 99, "max_nfe": 30}, id="limits"),
        pytest.param(SETUP, {"stop_token_ids": (15,)}, id="own stop tokens"),
        pytest.param(SETUP, {"logprobs": 2}, id="logprobs"),
        pytest.param(SETUP, {"algorithm": "edit", "max_post_edit_steps": 4}, id="text that is edited before its end"),
        pytest.param(replace(SETUP, strategy="d2f", shift=True), {}, id="logits shift"),
        pytest.param(replace(SETUP, strategy="fast_dllm_v2"), {}, id="first tokens and sub-blocks"),
        pytest.param(replace(SETUP, strategy="nemotron_diffusion"), {}, id="first tokens"),
        pytest.param(
            replace(FULL_SEQUENCE, shift=True), {"cache": "prefix", "block_length": 5}, id="first positions of blocks"
        ),
        pytest.param(FULL_SEQUENCE, {"cache": "dual", "block_length": 5}, id="forwards of a part of the canvas"),
        pytest.param(FULL_SEQUENCE, {"cache": "none", "block_length": 5}, id="forwards of more rows than the block's"),
    ],
)
def test_every_forward_but_the_first_is_launched_early(
    setup: Setup, own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests end at different steps. The others do not wait for that."""
    several = asking(36, 33, 12, **own)
    watched = Watched(setup, several, monkeypatch)
    forwards = forwards_of(watched.engine, monkeypatch)
    watched.drain()
    expected = run_all(setup, several)
    for id, other in expected.received.items():
        assert watched.tokens(id) == other.tokens
        assert watched.received[id][-1].nfe == other.outputs[-1].nfe
    steps = watched.engine.stats().steps
    assert watched.began >= steps - 3  # the first one, and those after the last result
    assert forwards.call_count == steps, "a launched forward was not used by a step"


@pytest.mark.parametrize(
    ("setup", "own"),
    [
        pytest.param(replace(SETUP, buffer=3, budget=192), {}, id="multi_bd"),
        pytest.param(replace(SETUP, strategy="d2f", shift=True, buffer=2, budget=192), {}, id="d2f"),
        pytest.param(
            replace(SETUP, strategy="fast_dllm_v2", block=16), {"sub_block_size": 8, "block_cache": True}, id="refining"
        ),
    ],
)
def test_most_forwards_are_launched_early(setup: Setup, own: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With several open blocks, those where none opens and none is final. Else, those without a new first token."""
    several = asking(40, 33, **own)
    watched = Watched(setup, several, monkeypatch)
    forwards = forwards_of(watched.engine, monkeypatch)
    watched.drain()
    steps = watched.engine.stats().steps
    assert watched.began > steps / 2
    assert forwards.call_count == steps, "a launched forward was not used by a step"
    assert [watched.tokens(id) for id in ("r0", "r1")] == [
        each.tokens for each in run_all(setup, several).received.values()
    ]


@pytest.mark.parametrize("strategy", ["multi_bd", "d2f", "full", "fast_dllm_v2", "nemotron_diffusion"])
def test_no_forward_is_launched_in_vain(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a limit of repetitions may end a request whose next rows were launched."""
    noted = noting(monkeypatch)

    @examples(30)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        setup = replace(data.draw(setups(strategy=strategy)), replayed=True)
        several = data.draw(st.lists(asks(setup), min_size=1, max_size=4))
        several = [replace(ask, params=replace(ask.params, max_repetition_run=None)) for ask in several]
        run = Run(setup)
        forwards = forwards_of(run.engine, monkeypatch)
        run.finish(*several)
        assert forwards.call_count == run.engine.stats().steps

    check()
    assert any(begun for _, begun in noted), "no forward was launched early"


@pytest.mark.parametrize("strategy", ["multi_bd", "d2f", "full", "fast_dllm_v2", "nemotron_diffusion"])
def test_steps_that_score_a_text_are_launched_early(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device counts masks after it got the next tokens of the text."""
    setup = replace(SETUP, strategy=strategy, budget=192)
    text = [n % 12 for n in range(40)]
    watched = Watched(setup, asking(36), monkeypatch)
    watched.engine.add(score_of(setup, text, 5, id="text", stride=3))
    forwards = forwards_of(watched.engine, monkeypatch)
    watched.drain()
    steps = watched.engine.stats().steps
    assert watched.began >= steps - 3  # the first one, and those after the last result
    assert forwards.call_count == steps, "a launched forward was not used by a step"
    assert watched.tokens("text") == text[5:]
    assert watched.tokens("r0") == run_all(setup, asking(36)).received["r0"].tokens


def test_pinned_tokens_may_cover_the_last_open_block() -> None:
    pinned = tuple((offset, 5) for offset in range(1, 7))
    ask = Ask((0,), Params(max_tokens=22, add_block_threshold=0.0, **SLOW), pinned=pinned)
    run_all(replace(SETUP, block=4, buffer=3), [ask])


def test_a_request_waits_in_a_full_engine_without_delaying_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(replace(SETUP, max_reqs=1), asking(36, 36), monkeypatch)
    for _ in range(20):
        watched.step()
    assert watched.began > 15


@pytest.mark.parametrize("strategy", ["fast_dllm_v2", "nemotron_diffusion"])
@pytest.mark.parametrize("pages", [12, 14, 16])
def test_no_forward_without_pages_is_launched_early(strategy: str, pages: int) -> None:
    """With `edit`, a first token may continue. Its forward would write to pages of others."""
    setup = Setup(strategy=strategy, block=8, pages=pages, max_len=40, replayed=True, eos=(15,), max_reqs=4)
    several = asking(24, 16, 24, 16, algorithm="edit")
    several = [replace(ask, prompt=(1, 2, 3, 4, 5, 6, 7, n)[: 5 + n]) for n, ask in enumerate(several)]
    answers = []
    for replayed in (True, False):
        engine, tokens = make_engine(replace(setup, replayed=replayed)), dict[str, list[int]]()
        for n, ask in enumerate(several):
            engine.add(spec_of(f"r{n}", ask))
        while engine.has_work():
            for output in engine.step():
                tokens.setdefault(output.id, []).extend(output.new_tokens)
        check_idle(engine)
        answers.append(tokens)
    assert answers[0] == answers[1]


def test_a_request_takes_the_place_of_one_that_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that writes the last K/V of a request launches nothing if another one waits."""
    setup = replace(SETUP, max_reqs=2)
    watched = Watched(setup, asking(12, 36, 12, 12), monkeypatch)
    watched.drain()
    early = watched.engine.stats().steps
    monkeypatch.setattr(CudaGraphRunner, "launches_next", False)
    watched = Watched(setup, asking(12, 36, 12, 12), monkeypatch)
    watched.drain()
    assert watched.engine.stats().steps == early


def test_successors_that_fail_end_only_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("runtime.engine.output_processor").setLevel(logging.CRITICAL)
    watched = Watched(SETUP, asking(36, 36), monkeypatch)
    successors = type(watched.engine.strategy).successors

    def failing(strategy: Strategy, request: Request, span: ForwardSpan) -> Successors:
        if request.spec.id == "r1" and request.nfe > 3:
            raise ValueError("wrong")
        return successors(strategy, request, span)

    monkeypatch.setattr(type(watched.engine.strategy), "successors", failing)
    watched.drain()
    assert watched.received["r1"][-1].error == "ValueError: wrong"
    assert watched.tokens("r0") == run_all(SETUP, asking(36)).received["r0"].tokens


@pytest.mark.parametrize("prompt", [(1, 2, 3, 4), (5,) * 20], ids=["denoises at once", "prefills first"])
@pytest.mark.parametrize("strategy", ["multi_bd", "d2f", "full", "fast_dllm_v2", "nemotron_diffusion"])
def test_a_request_joins_a_forward_that_is_launched_early(
    strategy: str, prompt: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was added after the launch of a forward, and joins the one after that."""
    setup = replace(SETUP, strategy=strategy, budget=192)
    several = asking(32, 32)
    several[1] = replace(several[1], prompt=prompt)
    watched = Watched(setup, several[:1], monkeypatch)
    forwards = forwards_of(watched.engine, monkeypatch)
    watched.until_early()
    watched.engine.add(spec_of("r1", several[1]))
    assert watched.step(), "no forward was launched early although a request can join it"
    assert [request.spec.id for request in watched.engine.scheduler.running] == ["r0", "r1"]
    while watched.engine.scheduler.running[-1].nfe == 0:
        assert watched.step(), "no forward was launched early while a prompt was computed"
    watched.drain()
    assert forwards.call_count == watched.engine.stats().steps, "a launched forward was not used by a step"
    expected = run_all(setup, several)
    assert {id: watched.tokens(id) for id in ("r0", "r1")} == {
        id: each.tokens for id, each in expected.received.items()
    }


@pytest.mark.parametrize(("aborted", "other"), [("r1", "r0"), ("r0", "r1")])
def test_a_request_aborted_after_an_early_launch_gets_no_output(
    aborted: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is full. The step samples the request once more, without a slot, and changes that of no other."""
    several, setup = asking(36, 36), replace(SETUP, max_reqs=2)
    watched = Watched(setup, several, monkeypatch)
    watched.until_early()
    watched.engine.abort(aborted)
    emitted = len(watched.received[aborted])
    watched.drain()
    assert len(watched.received[aborted]) == emitted
    assert watched.tokens(other) == run_all(setup, several).received[other].tokens


def test_a_launched_step_is_not_run_if_all_its_requests_were_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    several = asking(36, 36)
    watched = Watched(SETUP, several[:1], monkeypatch)
    watched.until_early()
    watched.engine.abort("r0")
    assert not watched.engine.has_work()
    steps = watched.engine.stats().steps
    watched.engine.execute_step()
    assert watched.engine.stats().steps == steps
    watched.engine.add(spec_of("r1", several[1]))
    watched.drain()
    assert watched.tokens("r1") == run_all(SETUP, several).received["r1"].tokens


def test_a_step_that_fails_after_an_early_launch_ends_only_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("runtime.engine.engine").setLevel(logging.CRITICAL)
    several = asking(36, 36, 36)
    watched = Watched(SETUP, several[:2], monkeypatch)
    watched.until_early()
    watched.engine.add(spec_of("r2", several[2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaGraphRunner, "launch_sampling", lambda *_: 1 / 0)
        watched.step()
    assert [watched.received[id][-1].finish_reason for id in ("r0", "r1")] == ["error"] * 2
    watched.drain()
    assert watched.tokens("r2") == run_all(SETUP, several).received["r2"].tokens


@pytest.mark.matrix
def test_steps_of_diffusion_gemma_are_launched_early_too(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = noting(monkeypatch)
    with (
        pretending(monkeypatch),
        LLM(str(GOLDEN / "diffusion_gemma"), device="cpu", skip_tokenizer=True, **SMALL) as llm,
    ):
        forwards = forwards_of(llm.engine, monkeypatch)
        assert isinstance(llm.engine.runner, CudaGraphRunner)
        built = Mock(wraps=llm.engine.runner._forward)  # the host sends the segments of these
        monkeypatch.setattr(llm.engine.runner, "_forward", built)
        llm.generate(PROMPTS[:2], SamplingParams(max_tokens=32, ignore_eos=True))
        llm.engine.drain()  # a forward for the prefix cache may have been launched behind the last output
        assert built.call_count < llm.engine.stats().steps / 2
        assert sum(begun for _, begun in noted) >= len(noted) - 2  # those after the last results
        assert forwards.call_count == llm.engine.stats().steps, "a launched forward was not used by a step"


def test_blocks_of_different_sizes_cause_no_unused_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward has as many rows as two blocks of the larger size."""
    own = [{"cache": "dual", "block_length": 8}, {"cache": "none", "block_length": 7}]
    several = [
        Ask((1, 2, 3, 4), Params(max_tokens=32, **SLOW, **own[0])), Ask((5,), Params(max_tokens=7, **SLOW, **own[1])),
    ]  # fmt: skip
    watched = Watched(FULL_SEQUENCE, several, monkeypatch)
    forwards = forwards_of(watched.engine, monkeypatch)
    watched.drain()
    assert forwards.call_count == watched.engine.stats().steps, "a launched forward was not used by a step"


def test_pauses_between_steps_do_not_count_as_step_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(SETUP, asking(36), monkeypatch)
    learnt: list[float] = []
    monkeypatch.setattr(watched.engine.scheduler.step_time, "update", lambda _, seconds: learnt.append(seconds))
    now, pause = 0.0, 1000.0

    def perf_counter() -> float:
        nonlocal now
        now += 1.0
        return now

    monkeypatch.setattr("runtime.engine.engine.time", SimpleNamespace(perf_counter=perf_counter))
    watched.until_early()
    now += pause
    watched.drain()
    assert watched.began > 8
    assert max(learnt) < pause
    assert sum(watched.engine.stats().step_seconds) <= now - pause, "a step counts twice"


@pytest.mark.parametrize("strategy", ["multi_bd", "full", "fast_dllm_v2"])
def test_requests_added_and_aborted_between_steps_change_nothing_for_others(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most steps are launched early, and outputs are taken while the next step runs."""
    noted = noting(monkeypatch)
    monkeypatch.setattr(CudaGraphRunner, "overlaps", True)

    @examples(30)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        setup = replace(
            data.draw(setups(strategy=strategy, buffer=1, block=8, shift=False)), replayed=True, eos=(15,), budget=96
        )
        several = data.draw(st.lists(asks(setup), min_size=1, max_size=4))
        several = [replace(ask, params=endless(ask.params)) for ask in several]
        expected = run_all(setup, several)
        engine, received, aborted = make_engine(setup), list[EngineOutput](), set[str]()
        runner = engine.runner
        assert isinstance(runner, CudaGraphRunner)
        assert engine.set_overlap_callback(lambda: received.extend(engine.take_outputs()))
        coming = [(f"r{number}", ask) for number, ask in enumerate(several)]
        while coming or engine.has_work():
            if coming and (not engine.has_work() or data.draw(st.integers(0, 5)) == 0):
                id, ask = coming.pop(0)
                engine.add(spec_of(id, ask))
            if data.draw(st.integers(0, 9)) == 0:
                received += engine.take_outputs()
                aborted.add(id)
                engine.abort(id)
            engine.execute_step()
        received += engine.take_outputs()
        check_idle(engine)
        for id, other in expected.received.items():
            mine = [output for output in received if output.id == id]
            emitted = [token for output in mine for token in output.new_tokens]
            assert emitted == other.tokens[: len(emitted)]
            if id not in aborted:
                assert (emitted, mine[-1].nfe) == (other.tokens, other.outputs[-1].nfe)

    check()
    assert sum(begun for _, begun in noted) > 60, "no step was launched early"


def endless(params: Params) -> Params:
    """Returns parameters with long blocks and without limits that the host must check after every step."""
    return replace(
        params, max_nfe=None, max_repetition_run=None, stop_token_ids=(), accept_threshold=1.0, algorithm="threshold",
        total_steps=None, remask_threshold=0.0, max_steps_per_block=64, cache="dual", block_length=8,
    )  # fmt: skip
