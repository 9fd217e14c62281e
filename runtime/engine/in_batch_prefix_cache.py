"""In-batch prefix caching: one request computes a common prefix, and other running requests adopt it.

On admission, a request finds only page groups with final content (docs/research/decoding-rules.md#prefix-cache).
Prompts that arrive together find none. Each request therefore looks up its next page group again before it prefills it.
If another request computes the page group in the same step, the request waits. It adopts the page group when its
content is final.
"""

from __future__ import annotations

from collections.abc import Callable

from runtime.engine.kv_cache_manager import KVCacheManager
from runtime.engine.page_table import PageTable
from runtime.engine.request import Request


class InBatchPrefixCache:
    """Tracks the page groups that the requests of a step compute. The first request of a step never waits.

    Args:
        num_uncacheable_tail: ``Strategy.uncacheable_tail``.

    Attributes:
        num_adopted_tokens: prompt tokens whose K/V was adopted.
    """

    def __init__(self, cache: KVCacheManager, table: PageTable, tail: Callable[[Request], int]) -> None:
        self.cache = cache
        self.table = table
        self.tail = tail
        self.num_adopted_tokens = 0  # tokens
        self._computing: set[bytes] = set()  # in this step, or after it by the same requests

    def begin_step(self) -> None:
        self._computing.clear()

    def should_wait(self, request: Request) -> bool:
        """Adopts cached page groups for the next prefill of `request`.

        Returns:
            Whether another request of this step computes the next page group.
        """
        cache = self.cache
        if not cache.prefix_caching or request.num_computed_tokens % cache.page_group_size:
            return False
        for n in range(request.num_computed_tokens // cache.page_group_size, self._num_cacheable_page_groups(request)):
            key = request.block_hashes[n]
            unit = cache.swap_for_cached(request.page_groups[n], key)
            if unit is None:
                return key in self._computing
            self._adopt(request, n, unit)
        return False

    def _adopt(self, request: Request, n: int, unit: int) -> None:
        request.page_groups[n] = unit
        self.table.write(request.req_slot, n, [unit])
        request.num_computed_tokens = (n + 1) * self.cache.page_group_size
        request.num_cached_page_groups = n + 1
        if not request.preempted:  # it would be counted twice: what was computed, or found, before is found again
            assert request.cached_tokens is not None
            request.cached_tokens += self.cache.page_group_size
            self.num_adopted_tokens += self.cache.page_group_size

    def mark_computing(self, request: Request) -> None:
        """Records that this step prefills `request`, so that other requests wait."""
        if self.cache.prefix_caching:
            unit = self.cache.page_group_size
            self._computing.update(
                request.block_hashes[request.num_computed_tokens // unit : self._num_cacheable_page_groups(request)]
            )

    def _num_cacheable_page_groups(self, request: Request) -> int:
        """Returns the number of leading page groups of the prefill that may come from the cache."""
        return (request.prefill_len - self.tail(request)) // self.cache.page_group_size
