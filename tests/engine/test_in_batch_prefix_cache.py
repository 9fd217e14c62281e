"""Equal prompts that arrive together: what one of them computes, the others do not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.harness import Ask, Setup
from tests.engine.test_scheduler import Watched, watch
from tests.oracle.block import Params

PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(4, 12, 1024))
SETUP = {"block": 32, "pages": 1200, "budget": 4096, "max_len": 1100, "max_reqs": 128}


def prefilled(run: Watched) -> int:
    """Rows of prompts that were computed."""
    return sum(rows for turns in run.turns for _, rows, _ in turns)


@pytest.mark.parametrize(("page", "budget"), [(8, 4096), (32, 200)])
def test_eight_equal_prompts_are_computed_once(page: int, budget: int) -> None:
    setup = Setup(**SETUP | {"page": page, "budget": budget, "pages": 1200 * 32 // page})
    run = watch(setup, [Ask(PROMPT, Params(max_tokens=8, seed=i), report="final") for i in range(8)])
    assert len(PROMPT) <= prefilled(run) <= 1.3 * len(PROMPT)
    assert run.engine.scheduler.prefix_hit_tokens == 8 * len(PROMPT) - prefilled(run)
    hits = sorted(heard.outputs[-1].cached_tokens or 0 for heard in run.heard.values())
    assert hits == [0] + [len(PROMPT)] * 7


def test_many_choices_are_prefilled_once() -> None:
    setup = Setup(**SETUP | {"page": 32, "pages": 300})
    asks = [Ask(PROMPT[:256], Params(max_tokens=4, temperature=1.0, seed=i), "final", group="g") for i in range(32)]
    assert prefilled(watch(setup, asks)) == 256


def test_only_the_equal_beginning_is_shared() -> None:
    setup = Setup(**SETUP | {"page": 32})
    other = PROMPT[:512] + tuple(reversed(PROMPT[512:]))
    run = watch(setup, [Ask(prompt, Params(max_tokens=8), "final") for prompt in (PROMPT, other, PROMPT, other)])
    assert prefilled(run) == 1024 + 512


def test_other_salts_share_nothing() -> None:
    setup = Setup(**SETUP | {"page": 32})
    run = watch(setup, [Ask(PROMPT, Params(max_tokens=8), "final", salt=salt) for salt in "ab"])
    assert prefilled(run) == 2 * len(PROMPT)


def test_who_waits_goes_on_when_the_one_that_computes_is_aborted() -> None:
    run = Watched(Setup(**SETUP | {"page": 32, "budget": 256}))
    first, _ = (run.add(Ask(PROMPT, Params(max_tokens=8), "final")) for _ in range(2))
    run.step()
    run.abort(first)
    run.drain()
    run.compare()
    assert prefilled(run) == len(PROMPT)
