"""Tests of the division of a total of denoising steps between the blocks of an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.strategies.block_update import split_steps
from tests.engine.harness import Ask, Setup, run_all
from tests.oracle.block import Params


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 80))
def test_steps_per_block_are_even_and_add_up(masks: list[int], total: int) -> None:
    got = split_steps(total, masks)
    assert sum(got) == min(total, sum(masks))
    one_by_one = [0] * len(masks)
    for _ in range(sum(got)):
        n = min((n for n in range(len(masks)) if one_by_one[n] < masks[n]), key=lambda n: (one_by_one[n], n))
        one_by_one[n] += 1
    assert got == one_by_one


@pytest.mark.parametrize("algorithm", ["fixed", "sequential"])
@pytest.mark.parametrize(("prompt", "tokens"), [(8, 24), (3, 21), (7, 9)])
@pytest.mark.parametrize("total", [4, 7, 16, 200])
def test_a_request_takes_the_requested_number_of_steps(algorithm: str, prompt: int, tokens: int, total: int) -> None:
    """With one open block at a time, this holds wherever the prompt ends in a block."""
    setup = Setup(block=8, page=8)
    p = Params(max_tokens=tokens, ignore_eos=True, algorithm=algorithm, total_steps=total)
    run = run_all(setup, [Ask(tuple(range(prompt)), p)])
    assert run.received["r0"].outputs[-1].nfe == min(total, tokens)
