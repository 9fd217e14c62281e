"""The cache's keys: hashed once, apart for each salt, and found again by whoever has the same beginning."""

import numpy as np
import pytest

from runtime.engine.kv_cache_manager import KVCacheManager, OutOfPages


def manager(**changes) -> KVCacheManager:
    return KVCacheManager(**{"num_pages": 8, "page_size": 4, "block_size": 8, **changes})


def tokens(*values: int) -> np.ndarray:
    return np.repeat(np.array(values, dtype=np.int64), 8)  # a unit of 8 each


def chain_of(cache: KVCacheManager, content: np.ndarray, salt: str = "") -> list[bytes]:
    chain: list[bytes] = []
    cache.extend_block_hashes(chain, salt, content, len(content))
    return chain


def test_a_chain_grows_to_what_it_would_be_at_once():
    cache = manager()
    content = tokens(1, 2, 3)
    grown: list[bytes] = []
    for end in (5, 8, 15, 16, 24):
        cache.extend_block_hashes(grown, "", content, end)
        assert len(grown) == end // 8
    assert grown == chain_of(cache, content)


def test_a_key_stands_for_all_before_it_and_for_the_salt():
    cache = manager()
    one, other = chain_of(cache, tokens(1, 2, 3)), chain_of(cache, tokens(9, 2, 3))
    assert not set(one) & set(other)
    assert not set(one) & set(chain_of(cache, tokens(1, 2, 3), salt="tenant"))


def test_a_match_ends_at_the_first_unit_that_is_not_known():
    cache = manager()
    chain = chain_of(cache, tokens(1, 2, 3))
    units = cache.allocate(3)
    cache.cache_page_group(units[0], chain[0])
    cache.cache_page_group(units[2], chain[2])
    assert cache.find_longest_prefix(chain) == units[:1]


def test_what_is_reclaimed_is_forgotten_the_tail_first():
    cache = manager()
    chain = chain_of(cache, tokens(1, 2, 3))
    units = cache.allocate(3)
    for unit, key in zip(units, chain, strict=True):
        cache.cache_page_group(unit, key)
    cache.free(units)
    assert (cache.pages_used, cache.pages_cached) == (0, 6)
    cache.allocate(2)  # one is free, one must be reclaimed
    assert cache.find_longest_prefix(chain) == units[:2]


def test_admission_takes_all_or_nothing():
    cache = manager()
    chain = chain_of(cache, tokens(1, 2))
    units = cache.allocate(2)
    for unit, key in zip(units, chain, strict=True):
        cache.cache_page_group(unit, key)
    cache.free(units)
    with pytest.raises(OutOfPages):
        cache.allocate_with_prefix(units, 3)  # four units in all, two of them the shared ones
    assert cache.num_available == 4
    assert len(cache.allocate_with_prefix(units, 2)) == 2
    assert cache.num_available == 0
