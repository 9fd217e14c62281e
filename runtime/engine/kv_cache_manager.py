"""Allocates the KV pool to requests, and finds cached prefixes (docs/research/decoding-rules.md#prefix-cache).

The pool is allocated in *page groups* of ``max(page_size, block_size)`` tokens. A block is cached as a whole, and a
page is reused only if all its positions are final. A page group is one page, or the ``block_size / page_size``
consecutive pages of a block. Page groups have a reference count. A page group with final content may have a block hash,
which covers all tokens up to its end. It then stays in the pool without references until its space is needed. The least
recently used one is evicted first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
import numpy.typing as npt


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

    def extend_block_hashes(
        self, block_hashes: list[bytes], cache_salt: str, tokens: npt.NDArray[np.int64], end: int
    ) -> None:
        """Appends the hashes of all complete page groups of ``tokens[:end]``; each page group is hashed once.

        Args:
            block_hashes: one hash per leading page group, extended in place.
            cache_salt: tenants with different salts share no pages.
            tokens: int64, tokens of the request.
        """
        for start in range(
            len(block_hashes) * self.page_group_size, end - self.page_group_size + 1, self.page_group_size
        ):
            previous = (
                block_hashes[-1] if block_hashes else hashlib.blake2b(cache_salt.encode(), digest_size=16).digest()
            )
            content = tokens[start : start + self.page_group_size].tobytes()
            block_hashes.append(hashlib.blake2b(content, key=previous, digest_size=16).digest())

    def find_longest_prefix(self, block_hashes: list[bytes]) -> list[int]:
        """Returns the cached page groups of the longest prefix of `block_hashes`, without allocating them."""
        page_groups: list[int] = []
        for key in block_hashes:
            unit = self._by_key.get(key)
            if unit is None:
                break
            page_groups.append(unit)
        return page_groups

    def allocate_with_prefix(self, cached: list[int], num_new: int) -> list[int]:
        """Takes references to `cached` page groups and allocates `num_new` others, all or nothing.

        Returns:
            The new page groups.

        Raises:
            OutOfPages: too few are available.
        """
        reclaimable = len(self._idle) - sum(1 for unit in cached if unit in self._idle)
        if len(self._free) + reclaimable < num_new:
            raise OutOfPages
        for unit in cached:
            if self._refs[unit] == 0:
                del self._idle[unit]
            self._refs[unit] += 1
        return self.allocate(num_new)

    def allocate(self, count: int) -> list[int]:
        """Allocates `count` page groups with one reference each. Raises OutOfPages if too few are available."""
        if count == 1 and self._free:
            unit = self._free.pop()
            self._refs[unit] = 1
            return [unit]
        if self.num_available < count:
            raise OutOfPages
        while len(self._free) < count:
            unit, _ = self._idle.popitem(last=False)
            del self._by_key[self._key_of.pop(unit)]
            self._free.append(unit)
        taken = self._free[len(self._free) - count :][::-1]
        del self._free[len(self._free) - count :]
        for unit in taken:
            self._refs[unit] = 1
        return taken

    def swap_for_cached(self, own: int, key: bytes) -> int | None:
        """Frees the request's own page group for the cached one with the same content.

        Returns:
            The cached page group, to which the request now has a reference; None if there is no other one.
        """
        unit = self._by_key.get(key)
        if unit is None or unit == own:
            return None
        if self._refs[unit] == 0:
            del self._idle[unit]
        self._refs[unit] += 1
        self.free([own])
        return unit

    def cache_page_group(self, unit: int, key: bytes) -> None:
        """Adds a page group with final content to the prefix cache, unless its hash is cached already."""
        if self.prefix_caching and key not in self._by_key:
            self._by_key[key] = unit
            self._key_of[unit] = key

    def free(self, page_groups: list[int]) -> None:
        """Drops the references of a request, last page group first, so that the end of a prefix is evicted first."""
        for unit in reversed(page_groups):
            self._refs[unit] -= 1
            if self._refs[unit] == 0:
                if unit in self._key_of:
                    self._idle[unit] = None
                else:
                    self._free.append(unit)
