"""The engine against the oracle, exactly, on a model that notices every wrong read (decoding.md 5.2 and 5.9)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.harness import Ask, Run, Setup, run_all, run_schedule
from tests.engine.samples import asks, examples, scenarios, setups


@examples(100)
@given(st.data())
def test_alone(data: st.DataObject) -> None:
    setup = data.draw(setups())
    run_all(setup, [data.draw(asks(setup))]).compare()


@examples(80)
@given(scenarios())
def test_any_schedule(scenario: tuple[Setup, list[tuple[int, Ask]], list[tuple[int, int]]]) -> None:
    """Arrivals, prompts that share, small pools, tight budgets, aborts: every request's trace is the oracle's."""
    setup, arrivals, aborts = scenario
    run_schedule(Run(setup), arrivals, aborts)


@examples(20)
@given(st.data())
def test_turns_of_a_conversation(data: st.DataObject) -> None:
    """Each turn's prompt begins with all of the turn before: the answer's blocks are prefix hits, and right."""
    setup = data.draw(setups(max_len=64))
    run = Run(setup)
    prompt: tuple[int, ...] = (1, 2, 4)
    for _ in range(3):
        room = setup.max_len - len(prompt)
        if room < 8:
            break
        ask = data.draw(asks(setup))
        fitting = replace(ask.params, max_tokens=min(ask.params.max_tokens, room))
        id = run.add(Ask(prompt, fitting, ask.report))
        run.drain()
        prompt = (*prompt, *run.heard[id].tokens, 5, 6)
    run.compare()
