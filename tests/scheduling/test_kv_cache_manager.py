"""Tests of the prefix cache: hashes of page groups, salts, and reuse by requests with equal beginnings."""

import numpy as np
import pytest

from runtime.scheduling.kv_cache_manager import KVCacheManager, OutOfPages
from tests.engine.harness import Ask, Setup
from tests.oracle.block import Params
from tests.scheduling.test_scheduler import Watched, watch


def manager(**changes) -> KVCacheManager:
    return KVCacheManager(**{"num_pages": 8, "page_size": 4, "block_size": 8, **changes})


def tokens(*values: int) -> np.ndarray:
    return np.repeat(np.array(values, dtype=np.int64), 8)  # a page group of 8 each


def chain_of(cache: KVCacheManager, content: np.ndarray, salt: str = "") -> list[bytes]:
    chain: list[bytes] = []
    cache.extend_page_group_hashes(chain, salt, content, len(content))
    return chain


def released(cache: KVCacheManager, chain: list[bytes]) -> list[int]:
    """Returns page groups that hold the chain and that no request uses."""
    page_groups = cache.allocate(len(chain))
    for page_group, key in zip(page_groups, chain, strict=True):
        cache.cache_page_group(page_group, key)
    cache.free(page_groups)
    return page_groups


def test_a_chain_that_grows_equals_one_computed_at_once():
    cache = manager()
    content = tokens(1, 2, 3)
    grown: list[bytes] = []
    for end in (5, 8, 15, 16, 24):
        cache.extend_page_group_hashes(grown, "", content, end)
        assert len(grown) == end // 8
    assert grown == chain_of(cache, content)


def test_a_hash_depends_on_all_earlier_tokens_and_the_salt():
    cache = manager()
    one, other = chain_of(cache, tokens(1, 2, 3)), chain_of(cache, tokens(9, 2, 3))
    assert not set(one) & set(other)
    assert not set(one) & set(chain_of(cache, tokens(1, 2, 3), salt="tenant"))


def test_a_match_ends_at_the_first_page_group_that_is_not_cached():
    cache = manager()
    chain = chain_of(cache, tokens(1, 2, 3))
    page_groups = cache.allocate(3)
    cache.cache_page_group(page_groups[0], chain[0])
    cache.cache_page_group(page_groups[2], chain[2])
    assert cache.find_longest_prefix(chain) == page_groups[:1]


def test_the_last_page_group_of_a_prefix_is_evicted_first():
    cache = manager()
    chain = chain_of(cache, tokens(1, 2, 3))
    page_groups = released(cache, chain)
    assert (cache.pages_used, cache.pages_cached) == (0, 6)
    cache.allocate(2)  # one is free, one must be reclaimed
    assert cache.find_longest_prefix(chain) == page_groups[:2]


def test_admission_takes_all_or_nothing():
    cache = manager()
    page_groups = released(cache, chain_of(cache, tokens(1, 2)))
    with pytest.raises(OutOfPages):
        cache.allocate_with_prefix(page_groups, 3)  # there are four page groups, two of which are the reused ones
    assert cache.num_available == 4
    assert len(cache.allocate_with_prefix(page_groups, 2)) == 2
    assert cache.num_available == 0


PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(4, 12, 1024))
SETUP = {"block": 32, "pages": 1200, "budget": 4096, "max_len": 1100, "max_reqs": 128}


def prefilled(run: Watched) -> int:
    """Returns the number of prompt rows that were computed."""
    return sum(rows for entries in run.entries for _, rows, _ in entries)


@pytest.mark.parametrize(("page", "budget"), [(8, 4096), (32, 200)])
def test_eight_equal_prompts_are_computed_once(page: int, budget: int) -> None:
    setup = Setup(**SETUP | {"page": page, "budget": budget, "pages": 1200 * 32 // page})
    run = watch(setup, [Ask(PROMPT, Params(max_tokens=8, seed=i), report="final") for i in range(8)])
    assert len(PROMPT) <= prefilled(run) <= 1.3 * len(PROMPT)
    assert run.engine.scheduler.prefix_hit_tokens == 8 * len(PROMPT) - prefilled(run)
    hits = sorted(received.outputs[-1].cached_tokens or 0 for received in run.received.values())
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


def test_other_salts_have_no_common_pages() -> None:
    setup = Setup(**SETUP | {"page": 32})
    run = watch(setup, [Ask(PROMPT, Params(max_tokens=8), "final", salt=salt) for salt in "ab"])
    assert prefilled(run) == 2 * len(PROMPT)


def test_a_request_that_waits_for_pages_of_another_continues_if_that_is_aborted() -> None:
    run = Watched(Setup(**SETUP | {"page": 32, "budget": 256}))
    first, _ = (run.add(Ask(PROMPT, Params(max_tokens=8), "final")) for _ in range(2))
    run.step()
    run.abort(first)
    run.finish()
    assert prefilled(run) == len(PROMPT)
