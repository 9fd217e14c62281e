"""Tests that the engine's outputs equal the oracle's exactly, on a model that detects every wrong read.

Tests docs/research/decoding-rules.md#invariant-2-independence and docs/research/decoding-rules.md#invariant-9-oracle.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.harness import Run, run_all, run_schedule
from tests.engine.samples import STRATEGIES, asks, scenarios, setups
from tests.examples import examples


@STRATEGIES
@examples(24)
@given(data=st.data())
def test_alone(strategy: str, data: st.DataObject) -> None:
    setup = data.draw(setups(strategy=strategy))
    run_all(setup, [data.draw(asks(setup))]).compare()


@STRATEGIES
@examples(12)
@given(data=st.data())
def test_any_schedule(strategy: str, data: st.DataObject) -> None:
    """Every trace equals the oracle's, with common prefixes, small pools, tight budgets, aborts and preemptions."""
    setup, *events = data.draw(scenarios(strategy))
    run_schedule(Run(setup), *events)


@STRATEGIES
@examples(6)
@given(data=st.data())
def test_prompts_of_a_conversation(strategy: str, data: st.DataObject) -> None:
    """The prompt of each chat turn begins with the complete turn before. Its cached K/V must be right."""
    setup = data.draw(setups(max_len=64, strategy=strategy))
    run = Run(setup)
    prompt: tuple[int, ...] = (1, 2, 4)
    for _ in range(3):
        remaining = setup.max_len - len(prompt)
        if remaining < 8:
            break
        ask = data.draw(asks(setup))
        fitting = replace(ask.params, max_tokens=min(ask.params.max_tokens, remaining))
        id = run.add(replace(ask, prompt=prompt, params=fitting, pinned=()))
        run.drain()
        prompt = (*prompt, *run.received[id].tokens, 5, 6)
    run.compare()
