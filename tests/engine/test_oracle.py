"""Tests that the engine's outputs equal the oracle's exactly, on a model that detects every wrong read.

The oracle answers each request alone, without cache and batch. So these tests cover the invariants 1 to 4 and 9 of
docs/research/decoding-rules.md#invariants: `Run` compares cached K/V and the accounting of pages after every step, and
the trace of every request at the end.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.harness import Run, run_all, run_schedule
from tests.engine.samples import SERVERS, asks, scenarios, setups
from tests.examples import examples


@SERVERS
@examples(30)
@given(data=st.data())
def test_alone(strategy: str, data: st.DataObject) -> None:
    """The same request once with each `stream_mode`."""
    setup = data.draw(setups(strategy=strategy))
    ask = data.draw(asks(setup))
    run = run_all(setup, [replace(ask, report=report) for report in ("final", "stable", "denoise")])
    p = ask.params
    if p.ignore_eos and not p.stop_token_ids and p.max_nfe is None and p.max_repetition_run is None:
        assert [len(received.tokens) for received in run.received.values()] == [p.max_tokens] * 3


@SERVERS
@examples(24)
@given(data=st.data())
def test_any_schedule(strategy: str, data: st.DataObject) -> None:
    """Every trace equals the oracle's, with common prefixes, small pools, tight budgets, aborts and preemptions."""
    setup, *events = data.draw(scenarios(strategy))
    run_schedule(Run(setup), *events)


@SERVERS
@examples(8)
@given(data=st.data())
def test_prompts_of_a_conversation(strategy: str, data: st.DataObject) -> None:
    """The prompt of each chat turn begins with the complete turn before. Its cached K/V must be right."""
    setup = data.draw(setups(max_len=64, strategy=strategy))
    run = Run(setup)
    prompt: tuple[int, ...] = (1, 6, 4)  # 6 and 9 are the edit tokens
    for _ in range(3):
        remaining = setup.max_len - len(prompt)
        if remaining < 8:
            break
        ask = data.draw(asks(setup))
        fitting = replace(ask.params, max_tokens=min(ask.params.max_tokens, remaining))
        id = run.add(replace(ask, prompt=prompt, params=fitting, pinned=()))
        run.drain()
        prompt = (*prompt, *run.received[id].tokens, 9, 5)
    run.compare()
