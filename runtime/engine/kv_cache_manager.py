"""Allocates the KV pool to requests, and finds cached prefixes (docs/decoding-rules.md#prefix-cache).

The pool is allocated in *units* of ``max(page_size, block_size)`` tokens, because a block is stored as a unit and a
page is reused only if all its positions are final. A unit is one page, or the ``block_size / page_size`` consecutive
pages of a block. Units have a reference count. A unit with final content may have a key, which is a hash of all tokens
up to its end. Such a unit stays in the pool without references until its space is needed, least recently used first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
import numpy.typing as npt


class OutOfPages(Exception):
    """Fewer units are free or reclaimable than asked for; nothing was taken."""


class KVCacheManager:
    """Book-keeping of the pool; holds no tensor.

    Args:
        num_pages: pages of the pool; those that do not fill a unit stay unused.
        page_size, block_size: tokens; one divides the other.
        prefix_caching: keep final units for later requests.
    """

    def __init__(self, *, num_pages: int, page_size: int, block_size: int, prefix_caching: bool = True) -> None:
        self.page_size = page_size
        self.unit = max(page_size, block_size)
        self.pages_per_unit = self.unit // page_size
        self.num_units = num_pages // self.pages_per_unit
        self.prefix_caching = prefix_caching
        self._free = list(range(self.num_units - 1, -1, -1))
        self._refs = [0] * self.num_units
        self._by_key: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # known by key, held by nobody; oldest first

    def units_for(self, tokens: int) -> int:
        """Units that hold `tokens` tokens."""
        return -(-tokens // self.unit)

    @property
    def available(self) -> int:
        """Units that could be taken now."""
        return len(self._free) + len(self._idle)

    @property
    def pages_used(self) -> int:
        """Pages held by requests."""
        return (self.num_units - self.available) * self.pages_per_unit

    @property
    def pages_cached(self) -> int:
        """Pages held by the prefix cache alone."""
        return len(self._idle) * self.pages_per_unit

    def extend_chain(self, chain: list[bytes], salt: str, tokens: npt.NDArray[np.int64], end: int) -> None:
        """Extend a request's chain of keys, one a unit, to the whole units of ``tokens[:end]``: each is hashed once.

        A key stands for all tokens up to its unit's end, and for the salt: tenants with different salts share nothing.
        """
        for start in range(len(chain) * self.unit, end - self.unit + 1, self.unit):
            previous = chain[-1] if chain else hashlib.blake2b(salt.encode(), digest_size=16).digest()
            content = tokens[start : start + self.unit].tobytes()
            chain.append(hashlib.blake2b(content, key=previous, digest_size=16).digest())

    def match(self, chain: list[bytes]) -> list[int]:
        """The units of the longest known beginning of `chain`. Takes nothing."""
        units: list[int] = []
        for key in chain:
            unit = self._by_key.get(key)
            if unit is None:
                break
            units.append(unit)
        return units

    def admit(self, shared: list[int], new: int) -> list[int]:
        """Hold `shared` units and `new` fresh ones, all or nothing; returns the fresh ones."""
        reclaimable = len(self._idle) - sum(1 for unit in shared if unit in self._idle)
        if len(self._free) + reclaimable < new:
            raise OutOfPages
        for unit in shared:
            if self._refs[unit] == 0:
                del self._idle[unit]
            self._refs[unit] += 1
        return self.take(new)

    def take(self, count: int) -> list[int]:
        """`count` fresh units, each held once."""
        if count == 1 and self._free:
            unit = self._free.pop()
            self._refs[unit] = 1
            return [unit]
        if self.available < count:
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

    def adopt(self, own: int, key: bytes) -> int | None:
        """Exchange a unit that nobody else knows for the one known by `key`, if there is one; returns that one."""
        unit = self._by_key.get(key)
        if unit is None or unit == own:
            return None
        if self._refs[unit] == 0:
            del self._idle[unit]
        self._refs[unit] += 1
        self.release([own])
        return unit

    def publish(self, unit: int, key: bytes) -> None:
        """The unit's content is final: later requests may share it. A key that is already known keeps its unit."""
        if self.prefix_caching and key not in self._by_key:
            self._by_key[key] = unit
            self._key_of[unit] = key

    def release(self, units: list[int]) -> None:
        """Let go of a request's units, in order of position: the tail is the first to be reclaimed."""
        for unit in reversed(units):
            self._refs[unit] -= 1
            if self._refs[unit] == 0:
                if unit in self._key_of:
                    self._idle[unit] = None
                else:
                    self._free.append(unit)
