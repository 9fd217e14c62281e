"""Tests of the invariants 5 to 7 of every strategy (docs/research/decoding-rules.md#invariants), with their numbers."""

import logging
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import KVPool
from runtime.request.engine_messages import EngineOutput
from runtime.scheduling.request import Request
from tests.engine.harness import Ask, Run, Setup, check_idle, make_engine, run_all, spec_of
from tests.engine.hash_model import HashModel
from tests.engine.samples import DELETE, SERVERS, SPLIT, asks, setups
from tests.examples import examples
from tests.oracle.block import Params


class NoiseModel(HashModel):
    """Returns new random logits in every forward, whatever the tokens."""

    def __init__(self, vocab_size: int, seed: int, scale: float) -> None:
        super().__init__(vocab_size)
        self.random = np.random.default_rng(seed)
        self.scale = scale

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.random.normal(0, self.scale, (len(hidden), self.vocab_size)))


@SERVERS
@examples(12)
@given(data=st.data(), seed=st.integers(0, 10**6), scale=st.sampled_from([0.1, 1.0, 5.0, 20.0]))
def test_5_a_block_always_ends(strategy: str, data: st.DataObject, seed: int, scale: float) -> None:
    setup = data.draw(setups(strategy=strategy))
    several = [replace(a, params=replace(a.params, max_nfe=None)) for a in data.draw(st.lists(asks(setup), max_size=3))]
    engine = make_engine(setup, NoiseModel(setup.vocab, seed, scale))
    bounds = {}
    for n, ask in enumerate(several):
        engine.add(spec_of(f"r{n}", ask))
        size = {"full": ask.params.block_length, "fast_dllm_v2": ask.params.sub_block_size}.get(strategy, setup.block)
        blocks = (ask.params.max_tokens - 1) // size + 2
        max_steps = ask.params.max_steps_per_block
        fills = (
            max_steps
            if strategy == "dmax"
            else min(max_steps, size * (1 + (ask.params.remask_threshold > 0))) + setup.shift
        )
        editing = (ask.params.max_post_edit_steps + 1) * (ask.params.algorithm == "edit")
        bounds[f"r{n}"] = blocks * (fills + editing)
    ended = {}
    for _ in range(5000):
        if not engine.has_work():
            break
        for output in engine.step():
            if output.finish_reason is not None:
                ended[output.id] = output
    assert set(ended) == set(bounds)
    for id, output in ended.items():
        assert output.nfe <= bounds[id]
        assert output.finish_reason != "error"
    check_idle(engine)


@examples(20)
@given(data=st.data())
def test_5_answers_of_insert_delete_are_valid_with_random_logits(data: st.DataObject) -> None:
    """Every block ends in time. No token is an edit token. Only the text of final blocks is stable."""
    setup = data.draw(setups(strategy="insert_delete"))
    limit = data.draw(st.integers(0, 5))
    p = Params(
        max_tokens=data.draw(st.integers(1, 30)), ignore_eos=True, algorithm="edit", max_post_edit_steps=limit,
        max_steps_per_block=10**6, accept_threshold=0.5, edit_threshold=data.draw(st.sampled_from([0.0, 0.3])),
    )  # fmt: skip
    model = NoiseModel(setup.vocab, seed=data.draw(st.integers(0, 999)), scale=data.draw(st.sampled_from([0.3, 3.0])))
    run = Run(setup, engine=make_engine(setup, model))
    run.add(Ask((1, SPLIT, 2, DELETE), p))
    (request,) = run.engine.scheduler.waiting
    while run.engine.has_work():
        final = request.tokens[: request.num_final_tokens].copy()
        run.step()
        assert (request.tokens[: len(final)] == final).all()
        assert request.finished or request.output.num_stable_tokens <= max(request.num_final_tokens, request.prompt_len)
        assert all(block.finished or block.steps < setup.block + limit for block in request.blocks)
    received = run.received["r0"]
    assert (len(received.tokens), received.outputs[-1].finish_reason) == (p.max_tokens, "length")
    for output in received.outputs:
        shown = [i for i in range(len(output.tokens)) if output.start + i >= request.prompt_len]
        assert not {DELETE, SPLIT, setup.mask} & {output.tokens[i] for i in shown if i not in output.masked}


class PoisonedModel(HashModel):
    """Fails whenever a forward contains the token `poison`."""

    def __init__(self, vocab_size: int, poison: int) -> None:
        super().__init__(vocab_size)
        self.poison = poison

    def forward(self, x: torch.Tensor, batch: ForwardBatch, pool: KVPool) -> torch.Tensor:
        if bool((batch.tokens == self.poison).any()):
            raise RuntimeError("out of luck")
        return super().forward(x, batch, pool)


@SERVERS
@examples(10)
@given(data=st.data())
def test_6_no_request_harms_another_or_the_engine(strategy: str, data: st.DataObject) -> None:
    """A step that fails ends its requests. Earlier, later and waiting requests get the oracle's answers."""
    logging.getLogger("runtime.engine.engine").setLevel(logging.CRITICAL)
    setup = data.draw(setups(strategy=strategy))
    poison = setup.max_token
    model = PoisonedModel(setup.vocab, poison)
    run = Run(replace(setup, max_token=poison - 1), make_engine(replace(setup, max_token=poison - 1), model))
    for ask in data.draw(st.lists(asks(setup), max_size=4)):
        run.add(ask)
    before = data.draw(st.integers(0, 6))
    for _ in range(before):
        run.step()
    run.engine.add(spec_of("bad", Ask((1, poison), Params(max_tokens=3, sub_block_size=setup.block))))
    failed: set[str] = set()
    for _ in range(5000):
        if not run.engine.has_work():
            break
        for output in run.engine.step():
            run.counts[output.id] = output.generated, output.forwards
            if output.finish_reason == "error":
                assert "out of luck" in (output.error or "")
                failed.add(output.id)
            else:
                run.received[output.id].outputs.append(output)
    assert "bad" in failed
    check_idle(run.engine)
    run.aborted |= failed - {"bad"}
    run.finish(*data.draw(st.lists(asks(setup), max_size=2)))


def test_6_a_failing_commit_harms_no_request_of_the_same_id(caplog: pytest.LogCaptureFixture) -> None:
    """The id of a finished request can be used again before its last block is committed."""
    caplog.set_level(logging.CRITICAL)
    setup = Setup(budget=12, block=4)
    run = Run(setup)
    first = Ask((1, 2, 4, 5), Params(max_tokens=4, ignore_eos=True))
    run.engine.add(spec_of("same", first))
    while not any(output.finish_reason for output in run.engine.step()):
        pass
    (committing,) = run.engine.scheduler.running
    assert committing.finished
    second = Ask((1, 2), Params(max_tokens=8, ignore_eos=True))
    run.engine.add(spec_of("same", second))
    run.engine.scheduler.token_budget = 4  # the failing step contains only the commit
    runner = run.engine.runner
    works, runner.launch_forward = runner.launch_forward, Mock(side_effect=RuntimeError("out of luck"))  # type: ignore[method-assign]
    assert run.engine.step() == []
    runner.launch_forward, run.engine.scheduler.token_budget = works, setup.budget  # type: ignore[method-assign]
    outputs: list[EngineOutput] = []
    while run.engine.has_work():
        outputs += run.engine.step()
    assert outputs[-1].finish_reason == "length"
    assert sum(len(output.new_tokens) for output in outputs) == 8
    check_idle(run.engine)


@SERVERS
@pytest.mark.parametrize("method", ["plan_forward", "update"])
@examples(4)
@given(data=st.data())
def test_6_a_strategy_that_fails_on_a_request_harms_only_that(strategy: str, method: str, data: st.DataObject) -> None:
    logging.getLogger("runtime.engine.output_processor").setLevel(logging.CRITICAL)
    setup = data.draw(setups(strategy=strategy))
    run = Run(setup)
    for ask in data.draw(st.lists(asks(setup), min_size=1, max_size=4)):
        run.add(ask)
    run.engine.add(spec_of("bad", Ask((1, 2), Params(max_tokens=9, sub_block_size=setup.block))))
    works, calls = getattr(run.engine.strategy, method), data.draw(st.integers(0, 2))

    def fails(request: Request, *others: Any) -> Any:
        nonlocal calls
        if request.spec.id == "bad":
            calls -= 1
            if calls < 0:
                raise RuntimeError("out of luck")
        return works(request, *others)

    setattr(run.engine.strategy, method, fails)
    ends = []
    while run.engine.has_work():
        for output in run.engine.step():
            if output.id == "bad":
                ends += [output.error or "answered"] if output.finish_reason else []
            else:
                run.received[output.id].outputs.append(output)
    assert ends in (["RuntimeError: out of luck"], ["answered"])  # it may fail in the commit after its answer
    assert calls < 0 or ends == ["answered"]
    check_idle(run.engine)
    run.compare()


def test_6_an_aborted_request_that_failed_has_no_output() -> None:
    """A later request may have the same id."""
    run = Run(Setup())
    run.add(Ask((1, 2), Params(max_tokens=4)))
    run.engine.runner.launch_forward = Mock(side_effect=RuntimeError("out of luck"))  # type: ignore[method-assign]
    run.engine.execute_step()
    run.engine.abort("r0")
    assert run.engine.take_outputs() == []


def test_6_a_device_that_failed_ends_the_engine() -> None:
    """After this error every later request would fail too, so the process must be replaced."""
    run = Run(Setup())
    run.add(Ask((1, 2), Params(max_tokens=4)))
    run.engine.runner.launch_forward = Mock(side_effect=torch.AcceleratorError("an illegal memory access"))  # type: ignore[method-assign]
    with pytest.raises(torch.AcceleratorError):
        run.engine.step()


@SERVERS
@examples(8)
@given(data=st.data())
def test_7_abort_at_any_step_frees_every_page(strategy: str, data: st.DataObject) -> None:
    setup = data.draw(setups(strategy=strategy))
    run = Run(setup)
    several = data.draw(st.lists(asks(setup), min_size=1, max_size=5))
    for ask in several:
        run.add(ask)
    for _ in range(data.draw(st.integers(0, 20))):
        run.step()
    ids = data.draw(st.permutations(sorted(run.asks)))
    for id in ids:
        run.abort(id)
    assert not any(not r.finished for r in run.engine.scheduler.running)
    while run.engine.has_work():  # finished requests may still have their last block to commit
        run.step()
    check_idle(run.engine)
    run.finish(*several)


@pytest.mark.parametrize("algorithm", ["threshold", "fixed", "edit"])
def test_max_nfe_counts_steps_alone(algorithm: str) -> None:
    """`nfe` counts no prefill, no commit, and no recomputation after a preemption."""
    setup = Setup(pages=8, max_len=32, budget=8, max_reqs=4)
    p = Params(max_tokens=18, ignore_eos=True, algorithm=algorithm, accept_threshold=0.5, edit_threshold=0.9)
    several = [Ask(tuple((n + i) % 13 for i in range(5)), p) for n in range(4)]
    crowded = run_all(setup, several)
    assert crowded.engine.scheduler.preemptions > 0
    for n, ask in enumerate(several):
        alone = run_all(replace(setup, pages=64, budget=64), [ask])
        assert alone.received["r0"].outputs[-1].nfe == crowded.received[f"r{n}"].outputs[-1].nfe
        assert alone.received["r0"].tokens == crowded.received[f"r{n}"].tokens


def test_6_statistics_that_are_not_read_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.engine.step_stats.OBSERVATIONS", 5)
    run = Run(Setup(), make_engine(Setup()))
    for i in range(4):
        run.engine.add(spec_of(f"r{i}", Ask((1, 2, i), Params(max_tokens=12, accept_threshold=1.0, ignore_eos=True))))
    steps = 0
    while run.engine.has_work():
        run.engine.step()
        steps += 1
    stats = run.engine.stats()
    assert steps > 5
    assert stats.steps == steps
    assert (len(stats.step_seconds), len(stats.batch_sizes), len(stats.block_steps)) == (5, 5, 5)
    assert run.engine.stats().step_seconds == []
