"""Tests of multi_bd with a model that inserts and deletes, on the hash model.

See docs/research/decoding-rules.md#insert-and-delete.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from runtime.scheduling.step_plan import BlockResults
from runtime.worker.model_runner import ModelRunner
from tests.engine.harness import Ask, Run, Setup, make_engine, run_all, run_schedule
from tests.engine.samples import asks, setups
from tests.engine.test_invariants import NoiseModel
from tests.examples import examples
from tests.oracle.block import Params
from tests.oracle.insert_delete import UnclearError

DELETE, SPLIT = ORDERS = (6, 9)


@st.composite
def servers(draw: st.DrawFn, max_len: int = 40) -> Setup:
    return replace(draw(setups(max_len=max_len, buffer=draw(st.integers(1, 3)))), orders=ORDERS)


@st.composite
def editing(draw: st.DrawFn, setup: Setup) -> Ask:
    """A request, in most cases with `edit`. Its prompt may contain both edit tokens."""
    ask = draw(asks(setup))
    if draw(st.sampled_from([True, True, True, False])):
        thresholds = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9])
        editing = {"edit_threshold": draw(thresholds), "max_post_edit_steps": draw(st.integers(0, 9))}
        ask = replace(ask, params=replace(ask.params, algorithm="edit", total_steps=None, **editing))
    return ask


@contextmanager
def clear() -> Iterator[None]:
    """Rejects examples in which the oracle's answer depends on rounding."""
    try:
        yield
    except UnclearError:
        reject()


@examples(20)
@given(data=st.data())
def test_alone(data: st.DataObject) -> None:
    setup = data.draw(servers())
    run = run_all(setup, [data.draw(editing(setup))])
    with clear():
        run.compare()


@examples(10)
@given(data=st.data())
def test_any_schedule(data: st.DataObject) -> None:
    """Every trace equals the oracle's, with common prefixes, any page size, small pools, aborts and preemptions."""
    setup = data.draw(servers())
    arrivals = data.draw(st.lists(st.tuples(st.integers(0, 12), editing(setup)), min_size=2, max_size=7))
    aborts = data.draw(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 6)), max_size=2))
    preemptions = data.draw(st.lists(st.integers(1, 40), max_size=8))
    with clear():
        run_schedule(Run(setup), arrivals, aborts, preemptions)


@examples(8)
@given(data=st.data())
def test_prompts_of_a_conversation(data: st.DataObject) -> None:
    """The prompt of each chat turn begins with the complete turn before, which is in the prefix cache."""
    setup = data.draw(servers(max_len=64))
    run = Run(setup)
    prompt: tuple[int, ...] = (1, DELETE, 4)
    for _ in range(3):
        remaining = setup.max_len - len(prompt)
        if remaining < 8:
            break
        ask = data.draw(editing(setup))
        fitting = replace(ask.params, max_tokens=min(ask.params.max_tokens, remaining))
        id = run.add(replace(ask, prompt=prompt, params=fitting, pinned=()))
        run.drain()
        prompt = (*prompt, *run.received[id].tokens, SPLIT, 5)
    with clear():
        run.compare()


EDIT = Params(
    max_tokens=14, ignore_eos=True, algorithm="edit", accept_threshold=0.7, edit_threshold=0.1, max_post_edit_steps=6
)


@pytest.mark.matrix
@pytest.mark.parametrize("buffer", [1, 3])
def test_preemption_at_any_step_changes_nothing(buffer: int) -> None:
    """The history of a block survives the preemption."""
    setup = Setup(block=8, page=8, pages=8, max_len=32, buffer=buffer, orders=ORDERS)
    remembered = steps = 0
    while True:
        run = Run(setup)
        run.add(Ask((1, SPLIT, 4), EDIT))
        (request,) = run.engine.scheduler.waiting
        for _ in range(steps):
            run.step()
        if request.finished:
            break
        if steps:
            run.engine.scheduler._preempt(request)
        remembered = max([remembered, *(b.history.shape[1] for b in request.blocks if b.history is not None)])
        run.drain()
        run.compare()
        steps += 1
    assert remembered > 6


@examples(20)
@given(data=st.data())
def test_answers_are_valid_with_random_logits(data: st.DataObject) -> None:
    """The logits of every forward are new random numbers.

    Every block ends in time. The answer has all its tokens, and none is an edit token. Only the text of final blocks is
    stable, and it does not change.
    """
    setup = data.draw(servers())
    ask = data.draw(editing(setup))
    limit = data.draw(st.integers(0, 5))
    p = replace(
        ask.params, algorithm="edit", total_steps=None, ignore_eos=True, max_nfe=None, max_repetition_run=None,
        max_post_edit_steps=limit, max_steps_per_block=10**6, stop_token_ids=(), min_tokens=0,
    )  # fmt: skip
    ask = replace(ask, params=p, report="denoise", pinned=())
    model = NoiseModel(setup.vocab, seed=data.draw(st.integers(0, 999)), scale=data.draw(st.sampled_from([0.3, 3.0])))
    run = Run(setup, engine=make_engine(setup, model))
    run.add(ask)
    (request,) = run.engine.scheduler.waiting
    prompt = request.prompt_len
    while run.engine.has_work():
        final = request.tokens[: request.num_final_tokens].copy()
        run.step()
        assert (request.tokens[: len(final)] == final).all()
        assert request.finished or request.num_stable_tokens <= max(request.num_final_tokens, prompt)
        assert all(block.finished or block.steps < setup.block + limit for block in request.blocks)
    received = run.received["r0"]
    assert (len(received.tokens), received.outputs[-1].finish_reason) == (p.max_tokens, "length")
    assert not {DELETE, SPLIT, setup.mask} & set(received.tokens)
    for output in received.outputs:
        assert output.tokens is not None
        assert output.masked is not None
        free = [i for i in range(len(output.tokens)) if output.start + i >= prompt and i not in output.masked]
        assert not {DELETE, SPLIT, setup.mask} & {output.tokens[i] for i in free}


def test_an_answer_that_max_nfe_ends_has_no_edit_tokens() -> None:
    """The answer contains all tokens before the first mask, also those of blocks that could still be edited."""
    cut = 0
    for nfe in range(1, 12):
        run = run_all(Setup(orders=ORDERS), [Ask((1, 2), replace(EDIT, max_nfe=nfe))])
        run.compare()
        cut += len(run.received["r0"].tokens)
        assert not {DELETE, SPLIT} & set(run.received["r0"].tokens)
    assert cut


def test_other_algorithms_have_no_history() -> None:
    """This includes blocks of `threshold` in the same batch."""
    run = Run(Setup(block=8, page=8, orders=ORDERS))
    runner = run.engine.runner
    assert isinstance(runner, ModelRunner)
    make_results = runner.results
    rules: set[str] = set()

    def watch() -> BlockResults:
        results = make_results()
        if runner.blocks is not None:
            for group in runner.blocks.groups:
                rules.add(group.algorithm.key)
                assert (group.history is not None) == (group.algorithm.key == "edit")
                assert all((i in results.history) == (group.algorithm.key == "edit") for i in group.members.tolist())
        return results

    runner.results = watch  # type: ignore[method-assign]
    run.add(Ask((1, 2, 3), EDIT))
    run.add(Ask((1, 2, 4), replace(EDIT, algorithm="threshold")))
    run.drain()
    run.compare()
    assert rules == {"edit", "threshold"}
