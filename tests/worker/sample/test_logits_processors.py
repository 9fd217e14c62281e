"""Requests that have something done to their logits, beside those that have not."""

from __future__ import annotations

from dataclasses import replace

from tests.engine.harness import Ask, Run, Setup
from tests.oracle.block import Params

PLAIN = Ask((1, 2, 4, 5, 6), Params(max_tokens=9, ignore_eos=True))


def run(setup: Setup, *asks: Ask) -> Run:
    run = Run(setup)
    for ask in asks:
        run.add(ask)
    run.drain()
    run.compare()
    return run


def test_steps_without_any_are_replayed_and_those_with_one_are_counted() -> None:
    setup = Setup(replayed=True, max_len=40)
    shaped = replace(PLAIN, params=replace(PLAIN.params, presence_penalty=1.3))
    runner_stats = run(setup, PLAIN, PLAIN, PLAIN).engine.runner.stats
    assert runner_stats.replayed
    assert not runner_stats.eager["shaped"]
    for asks in ((shaped,), (PLAIN, shaped)):
        engine = run(setup, *asks).engine
        assert engine.runner.stats.eager["shaped"]
        assert engine.stats().steps_eager_logits_processors == engine.runner.stats.eager["shaped"]


def test_what_asks_for_nothing_is_replayed() -> None:
    """min-p and stop tokens are no matter of it."""
    params = replace(PLAIN.params, temperature=1.0, min_p=0.2, stop_token_ids=(12,))
    asked = replace(PLAIN, params=params)
    runner_stats = run(Setup(replayed=True, max_len=40), asked, asked, asked).engine.runner.stats
    assert runner_stats.replayed
    assert not runner_stats.eager["shaped"]


def test_a_bias_decides() -> None:
    for token in (0, 11):
        biased = replace(PLAIN, params=replace(PLAIN.params, logit_bias=((token, 100.0),)))
        assert run(Setup(), biased).heard["r0"].tokens == [token] * 9


def test_no_token_comes_again_where_steps_take_one_and_the_penalty_is_high() -> None:
    params = replace(PLAIN.params, max_tokens=8, accept_threshold=1.0, logit_bias=((3, -100.0),))
    for penalty in ({"presence_penalty": 90.0}, {"frequency_penalty": 90.0}):
        tokens = run(Setup(), replace(PLAIN, params=replace(params, **penalty))).heard["r0"].tokens
        assert len(set(tokens)) == len(tokens) == 8


def test_stop_tokens_end_an_answer_though_ends_of_sequence_do_not() -> None:
    params = replace(PLAIN.params, logit_bias=((7, 100.0),), stop_token_ids=(7,), max_tokens=9)
    for least in (0, 5):
        heard = run(Setup(), replace(PLAIN, params=replace(params, min_tokens=least))).heard["r0"]
        assert heard.outputs[-1].finish_reason == "stop"
        assert len(heard.tokens) == least
        assert 7 not in heard.tokens
