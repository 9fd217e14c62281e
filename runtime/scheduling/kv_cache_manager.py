"""Allocates the KV pool to requests, and finds cached prefixes (docs/research/decoding-rules.md#prefix-cache).

The pool is allocated in *page groups* of ``max(page_size, block_size)`` tokens. A block is cached as a whole, and a
page is reused only if all its positions are final. A page group is one page, or the ``block_size / page_size``
consecutive pages of a block. Page groups have a reference count. A page group with final content may have a hash,
which covers all tokens up to its end. It then stays in the pool without references until its space is needed. The least
recently used one is evicted first.

On admission, `find_longest_prefix` finds page groups with final content only. `PrefillDeduplicator` finds those that
other running requests compute later.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from runtime.scheduling.request import Request
from runtime.scheduling.step_plan import PageWrites


class OutOfPages(Exception):
    """Too few page groups are free or evictable. Nothing was allocated."""


class KVCacheManager:
    """Tracks which page groups are free, in use or cached. It does not access the tensors of the pool.

    Args:
        num_pages: pages of the pool. A remainder that does not fill a page group stays unused.
        page_size: tokens per page.
        block_size: tokens per block; a multiple or a divisor of `page_size`.
        prefix_caching: keep final page groups for later requests.
    """

    def __init__(self, *, num_pages: int, page_size: int, block_size: int, prefix_caching: bool = True) -> None:
        self.page_size = page_size
        self.page_group_size = max(page_size, block_size)
        self.pages_per_group = self.page_group_size // page_size
        self.num_page_groups = num_pages // self.pages_per_group
        self.prefix_caching = prefix_caching
        self._free = list(range(self.num_page_groups - 1, -1, -1))
        self._refs = [0] * self.num_page_groups
        self._by_key: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached without references; oldest first

    def page_groups_for(self, tokens: int) -> int:
        """Returns the number of page groups for `tokens` tokens."""
        return -(-tokens // self.page_group_size)

    @property
    def num_available(self) -> int:
        """Number of page groups that can be allocated now."""
        return len(self._free) + len(self._idle)

    @property
    def pages_used(self) -> int:
        """Pages in use by requests."""
        return (self.num_page_groups - self.num_available) * self.pages_per_group

    @property
    def pages_cached(self) -> int:
        """Pages that only the prefix cache holds."""
        return len(self._idle) * self.pages_per_group

    def extend_page_group_hashes(
        self, page_group_hashes: list[bytes], cache_salt: str, tokens: npt.NDArray[np.int64], end: int
    ) -> None:
        """Appends the hashes of all complete page groups of ``tokens[:end]``; each page group is hashed once.

        Args:
            page_group_hashes: one hash per leading page group, extended in place.
            cache_salt: tenants with different salts share no pages.
            tokens: int64, tokens of the request.
        """
        hashes, size = page_group_hashes, self.page_group_size
        for start in range(len(hashes) * size, end - size + 1, size):
            previous = hashes[-1] if hashes else hashlib.blake2b(cache_salt.encode(), digest_size=16).digest()
            content = tokens[start : start + size].tobytes()
            hashes.append(hashlib.blake2b(content, key=previous, digest_size=16).digest())

    def find_longest_prefix(self, page_group_hashes: list[bytes]) -> list[int]:
        """Returns the cached page groups of the longest prefix of `page_group_hashes`, without allocating them."""
        page_groups: list[int] = []
        for key in page_group_hashes:
            page_group = self._by_key.get(key)
            if page_group is None:
                break
            page_groups.append(page_group)
        return page_groups

    def allocate_with_prefix(self, cached: list[int], num_new: int) -> list[int]:
        """Takes references to `cached` page groups and allocates `num_new` others, all or nothing.

        Returns:
            The new page groups.

        Raises:
            OutOfPages: too few are available.
        """
        reclaimable = len(self._idle) - sum(1 for page_group in cached if page_group in self._idle)
        if len(self._free) + reclaimable < num_new:
            raise OutOfPages
        for page_group in cached:
            if self._refs[page_group] == 0:
                del self._idle[page_group]
            self._refs[page_group] += 1
        return self.allocate(num_new)

    def allocate(self, count: int) -> list[int]:
        """Allocates `count` page groups with one reference each. Raises OutOfPages if too few are available."""
        if count == 1 and self._free:
            page_group = self._free.pop()
            self._refs[page_group] = 1
            return [page_group]
        if self.num_available < count:
            raise OutOfPages
        while len(self._free) < count:
            page_group, _ = self._idle.popitem(last=False)
            del self._by_key[self._key_of.pop(page_group)]
            self._free.append(page_group)
        taken = self._free[len(self._free) - count :][::-1]
        del self._free[len(self._free) - count :]
        for page_group in taken:
            self._refs[page_group] = 1
        return taken

    def swap_for_cached(self, own: int, key: bytes) -> int | None:
        """Frees the request's own page group for the cached one with the same content.

        Returns:
            The cached page group, to which the request now has a reference; None if there is no other one.
        """
        page_group = self._by_key.get(key)
        if page_group is None or page_group == own:
            return None
        if self._refs[page_group] == 0:
            del self._idle[page_group]
        self._refs[page_group] += 1
        self.free([own])
        return page_group

    def cache_page_group(self, page_group: int, key: bytes) -> None:
        """Adds a page group with final content to the prefix cache, unless its hash is cached already."""
        if self.prefix_caching and key not in self._by_key:
            self._by_key[key] = page_group
            self._key_of[page_group] = key

    def free(self, page_groups: list[int]) -> None:
        """Drops the references of a request, last page group first, so that the end of a prefix is evicted first."""
        for page_group in reversed(page_groups):
            self._refs[page_group] -= 1
            if self._refs[page_group] == 0:
                if page_group in self._key_of:
                    self._idle[page_group] = None
                else:
                    self._free.append(page_group)


class PageTable:
    """Assigns slots to running requests, and collects the changes of their page tables, which the runner has.

    Args:
        rows: maximum number of running requests.
        pages_per_group: pages per page group.
    """

    def __init__(self, *, rows: int, pages_per_group: int) -> None:
        self._pages_per_group = pages_per_group
        self._pending: dict[int, dict[int, int]] = {}  # row -> index -> page
        self._free_rows = list(range(rows - 1, -1, -1))

    def allocate_row(self) -> int:
        return self._free_rows.pop()

    def free_row(self, row: int) -> None:
        self._pending.pop(row, None)
        self._free_rows.append(row)

    def write(self, row: int, at: int, page_groups: list[int]) -> None:
        """Writes page groups of a request from index `at` on."""
        n, pending = self._pages_per_group, self._pending.setdefault(row, {})
        for i, page_group in enumerate(page_groups, at):
            for piece in range(n):
                pending[i * n + piece] = page_group * n + piece

    def take_writes(self, rows: Iterable[int]) -> PageWrites | None:
        """Returns the changes of some rows since the last call; None if there are none."""
        if not self._pending:
            return None
        found = [(row, *change) for row in rows for change in self._pending.pop(row, {}).items()]
        return PageWrites(*np.array(found, dtype=np.int32).T.copy()) if found else None


class PrefillDeduplicator:
    """Computes a prefix once if several running requests have it.

    In each step, one request computes the next page group of the prefix, and the others wait. Once the page group is in
    the prefix cache, each of them adopts it and frees its own one. The first request of a step never waits.

    Args:
        uncacheable_tail: ``Strategy.uncacheable_tail``.

    Attributes:
        num_adopted_tokens: prompt tokens whose K/V was adopted.
    """

    def __init__(self, cache: KVCacheManager, table: PageTable, uncacheable_tail: Callable[[Request], int]) -> None:
        self.cache = cache
        self.table = table
        self.uncacheable_tail = uncacheable_tail
        self.num_adopted_tokens = 0

    def adopt_cached(self, request: Request) -> None:
        """Replaces the next page groups of the prefill by cached ones, and moves `num_computed_tokens` past them."""
        cache = self.cache
        if not cache.prefix_caching or request.num_computed_tokens % cache.page_group_size:
            return
        for n in range(request.num_computed_tokens // cache.page_group_size, self._num_cacheable_page_groups(request)):
            page_group = cache.swap_for_cached(request.kv.page_groups[n], request.kv.page_group_hashes[n])
            if page_group is None:
                return
            self._adopt(request, n, page_group)

    def must_wait(self, request: Request, computing: set[bytes]) -> bool:
        """Returns whether another request of this step computes the next page group of the prefill.

        Args:
            computing: see `mark_computing`.
        """
        next_page_group, partial = divmod(request.num_computed_tokens, self.cache.page_group_size)
        if not computing or partial or next_page_group >= self._num_cacheable_page_groups(request):
            return False
        return request.kv.page_group_hashes[next_page_group] in computing

    def _adopt(self, request: Request, n: int, page_group: int) -> None:
        request.kv.page_groups[n] = page_group
        self.table.write(request.req_slot, n, [page_group])
        request.num_computed_tokens = (n + 1) * self.cache.page_group_size
        request.kv.num_cached_page_groups = n + 1
        if not request.kv.preempted:  # a preempted request had found or computed these tokens before
            assert request.kv.cached_tokens is not None
            request.kv.cached_tokens += self.cache.page_group_size
            if request.spec.counts_prompt:
                self.num_adopted_tokens += self.cache.page_group_size

    def mark_computing(self, request: Request, computing: set[bytes]) -> None:
        """Adds the hashes of the page groups that `request` computes, now or later, so that other requests wait."""
        if self.cache.prefix_caching:
            start = request.num_computed_tokens // self.cache.page_group_size
            computing.update(request.kv.page_group_hashes[start : self._num_cacheable_page_groups(request)])

    def _num_cacheable_page_groups(self, request: Request) -> int:
        """Returns the number of leading page groups of the prefill that may come from the cache."""
        return (request.prefill_len - self.uncacheable_tail(request)) // self.cache.page_group_size
