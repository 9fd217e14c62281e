"""d2f, fast_dllm_v2 and nemotron_diffusion against their oracles, exactly, on the model that notices every wrong read;
and decoding.md 5 for them. `Run` checks pages, and K/V against a fresh prefill, after each step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.harness import Ask, Run, Setup, check_idle, make_engine, run_all, run_schedule, spec_of
from tests.engine.samples import asks, examples, scenarios, setups
from tests.engine.test_invariants import NoiseModel
from tests.oracle.block import Params

every = pytest.mark.parametrize("strategy", ["d2f", "fast_dllm_v2", "nemotron_diffusion"])


@every
@examples(40)
@given(data=st.data())
def test_alone(strategy: str, data: st.DataObject) -> None:
    setup = data.draw(setups(strategy=strategy))
    run_all(setup, [data.draw(asks(setup))]).compare()


@every
@examples(30)
@given(data=st.data())
def test_any_schedule(strategy: str, data: st.DataObject) -> None:
    """Arrivals, prompts that share, small pools, tight budgets, mixed rules, aborts: each trace is the oracle's."""
    setup, arrivals, aborts = data.draw(scenarios(strategy))
    run_schedule(Run(setup), arrivals, aborts)


@every
@examples(15)
@given(data=st.data())
def test_turns_of_a_conversation(strategy: str, data: st.DataObject) -> None:
    """Each turn's prompt begins with all of the turn before: whatever of it is found in the cache is right."""
    setup = data.draw(setups(max_len=64, strategy=strategy))
    run = Run(setup)
    prompt: tuple[int, ...] = (1, 2, 4)
    for _ in range(3):
        room = setup.max_len - len(prompt)
        if room < 8:
            break
        ask = data.draw(asks(setup))
        id = run.add(replace(ask, prompt=prompt, given=(), params=replace(ask.params, max_tokens=min(12, room))))
        run.drain()
        prompt = (*prompt, *run.heard[id].tokens, 5, 6)
    run.compare()


@every
@examples(15)
@given(data=st.data())
def test_exactly_n_tokens(strategy: str, data: st.DataObject) -> None:
    setup = data.draw(setups(strategy=strategy))
    free = {"ignore_eos": True, "max_nfe": None, "max_repetition_run": None}
    several = [replace(a, params=replace(a.params, **free)) for a in data.draw(st.lists(asks(setup), max_size=4))]
    run = run_all(setup, several)
    for ask, heard in zip(several, run.heard.values(), strict=True):
        assert len(heard.tokens) == ask.params.max_tokens
        assert heard.outputs[-1].finish_reason == "length"


@every
@examples(15)
@given(data=st.data(), seed=st.integers(0, 10**6), scale=st.sampled_from([0.1, 1.0, 5.0, 20.0]))
def test_a_block_always_ends(strategy: str, data: st.DataObject, seed: int, scale: float) -> None:
    """On a model that says something else at each forward."""
    setup = data.draw(setups(strategy=strategy))
    several = [replace(a, params=replace(a.params, max_nfe=None)) for a in data.draw(st.lists(asks(setup), max_size=3))]
    engine = make_engine(setup, NoiseModel(setup.vocab, seed, scale))
    bounds = {}
    for n, ask in enumerate(several):
        engine.add(spec_of(f"r{n}", ask))
        p = ask.params
        size = p.sub_block_size if strategy == "fast_dllm_v2" else setup.block
        blocks = (p.max_tokens - 1) // size + 2
        masks = min(p.max_steps_per_block, size * (1 + (p.remask_threshold > 0)))
        bounds[f"r{n}"] = blocks * (masks + (p.max_post_edit_steps + 1) * (p.algorithm == "edit"))
    ended = set()
    for _ in range(5000):
        if not engine.has_work():
            break
        for output in engine.step():
            if output.finish_reason is not None:
                assert output.nfe <= bounds[output.id]
                assert output.finish_reason != "error"
                ended.add(output.id)
    assert ended == set(bounds)
    check_idle(engine)


@every
@examples(10)
@given(data=st.data())
def test_abort_at_any_step_frees_every_page(strategy: str, data: st.DataObject) -> None:
    setup = data.draw(setups(strategy=strategy))
    run = Run(setup)
    for ask in data.draw(st.lists(asks(setup), min_size=1, max_size=5)):
        run.add(ask)
    for _ in range(data.draw(st.integers(0, 20))):
        run.step()
    for id in data.draw(st.permutations(sorted(run.asks))):
        run.abort(id)
    while run.engine.has_work():
        run.step()
    check_idle(run.engine)


@every
@pytest.mark.parametrize("block_cache", [False, True])
def test_preemption_at_any_step_changes_nothing(strategy: str, block_cache: bool) -> None:
    """Also where the next step reads K/V of forwards that cannot be made from what the request holds now: given tokens
    at the beginnings of sub-blocks make REFINE follow REFINE."""
    setup = Setup(strategy=strategy, block=16, page=8, pages=8, max_len=32, buffer=1 if strategy != "d2f" else 2)
    p = Params(max_tokens=15, ignore_eos=True, accept_threshold=0.95, sub_block_size=4, block_cache=block_cache)
    ask = Ask((1, 2, 4), p, given=((1, 5), (5, 6), (9, 6)))
    steps, kept = 0, 0
    while True:
        run = Run(setup)
        run.add(ask)
        (request,) = run.engine.scheduler.waiting
        for _ in range(steps):
            run.step()
        if request.answered:
            break
        kept = max(kept, len(request.kept))
        if steps:
            run.engine.scheduler._preempt(request)
        run.drain()
        run.compare()
        steps += 1
    assert steps > 4
    assert kept == (3 if block_cache and strategy == "fast_dllm_v2" else 0)


def test_what_a_preemption_drops_is_forwarded_again() -> None:
    """A REFINE after a preemption: the whole block's forward, with the ids of then, is made again first."""
    setup = Setup(strategy="fast_dllm_v2", block=8, page=8, pages=8, budget=64, prefix_caching=False)
    p = Params(max_tokens=16, ignore_eos=True, accept_threshold=1.0, sub_block_size=4, block_cache=True)
    run = Run(setup)
    run.add(Ask((1, 2, 4), p))
    (request,) = run.engine.scheduler.waiting
    while not request.kept:
        run.step()
    (kept,) = request.kept
    nfe = request.nfe
    assert (kept.first, len(kept.tokens)) == (request.settled, 8)
    assert kept.tokens.tolist() != request.tokens[kept.first : kept.first + 8].tolist()
    run.engine.scheduler._preempt(request)
    run.step()
    assert (request.cached, len(request.dropped)) == (8, 1)
    run.step()
    assert (request.nfe, request.dropped) == (nfe, [])
    run.step()
    assert request.nfe == nfe + 1
    run.drain()
    run.compare()


def test_an_unaligned_prompt_finds_all_its_blocks() -> None:
    """Only where a seed is sampled from it is the last row of a prompt forwarded again."""
    setup = Setup(strategy="fast_dllm_v2", block=4, page=4)
    run = Run(setup)
    p = Params(max_tokens=4, sub_block_size=2)
    for prompt, cached in (
        ((1, 2, 4, 5, 6, 7, 8, 9), 0),
        ((1, 2, 4, 5, 6, 7, 8, 9), 4),
        ((1, 2, 4, 5, 6, 7, 8, 9, 0), 8),
    ):
        id = run.add(Ask(prompt, p))
        run.drain()
        assert run.heard[id].outputs[-1].cached_tokens == cached
    run.compare()
