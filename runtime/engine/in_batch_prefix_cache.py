"""In-batch prefix caching: one request computes a common prefix, and other running requests adopt it.

On admission, a request finds only units in the prefix cache that are final (docs/decoding-rules.md#prefix-cache).
Prompts that arrive together find none. Each request therefore looks up its next unit again before it prefills it. If
another request computes the unit in the same step, the request waits. Once the unit is final, it replaces its own.
"""

from __future__ import annotations

from collections.abc import Callable

from runtime.engine.kv_cache_manager import KVCacheManager
from runtime.engine.page_table import PageTable
from runtime.engine.request import Request


class Sharing:
    """Keys of what the requests of one step compute. Whoever is first in a step is never held back.

    `tail`: ``Strategy.uncacheable_tail``.
    """

    def __init__(self, cache: KVCacheManager, table: PageTable, tail: Callable[[Request], int]) -> None:
        self.cache = cache
        self.table = table
        self.tail = tail
        self.taken_over = 0  # tokens
        self._computed: set[bytes] = set()  # in this step, or after it by the same requests

    def begin_step(self) -> None:
        self._computed.clear()

    def holds_back(self, request: Request) -> bool:
        """Take over what has become final of what `request` would prefill next; whether the rest is being computed."""
        cache = self.cache
        if not cache.prefix_caching or request.num_computed_tokens % cache.unit:
            return False
        for n in range(request.num_computed_tokens // cache.unit, self._end(request)):
            key = request.block_hashes[n]
            unit = cache.adopt(request.page_groups[n], key)
            if unit is None:
                return key in self._computed
            self._take_over(request, n, unit)
        return False

    def _take_over(self, request: Request, n: int, unit: int) -> None:
        request.page_groups[n] = unit
        self.table.append(request.req_slot, n, [unit])
        request.num_computed_tokens = (n + 1) * self.cache.unit
        request.num_cached_page_groups = n + 1
        if not request.preempted:  # it would be counted twice: what was computed, or found, before is found again
            assert request.cached_tokens is not None
            request.cached_tokens += self.cache.unit
            self.taken_over += self.cache.unit

    def computes(self, request: Request) -> None:
        """`request` has a turn that prefills: others need not."""
        if self.cache.prefix_caching:
            unit = self.cache.unit
            self._computed.update(request.block_hashes[request.num_computed_tokens // unit : self._end(request)])

    def _end(self, request: Request) -> int:
        """How many leading units of what `request` prefills may be others'."""
        return (request.prefill_len - self.tail(request)) // self.cache.unit
