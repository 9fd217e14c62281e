"""Routing of requests to replicas by work and by cached prefixes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from runtime.request.engine_messages import EngineInfo, RequestSpec

CHUNK = 32  # tokens of a prompt that are compared at a time
TYPICAL_TOKENS = 128.0  # tokens of an answer, before any has been seen
WEIGHT = 0.05  # of the newest answer in what is typical
# Fraction of a cached prefix that counts: it may have been evicted, and one replica should not get all requests.
HIT_DISCOUNT = 0.9


class Router:
    """The work of each replica, and the prefixes that it was sent last, as far as its cache has room for them."""

    def __init__(self, replicas: int, first: int = 0) -> None:
        """`first`: the replica that is chosen if all are equal; it differs between frontend processes."""
        self.first = first
        self.work = [0] * replicas
        self.typical = TYPICAL_TOKENS
        self._cached_prefixes: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
        self._last: tuple[Sequence[int], str, list[int]] | None = None  # choices of a request have one prompt

    def assign(self, spec: RequestSpec, ready: Sequence[int], load: Sequence[int], info: EngineInfo) -> tuple[int, int]:
        """The replica of those that are `ready`, and the work that it is there. `load`: requests of each."""
        answer = round(min(spec.max_tokens, self.typical))
        total = len(spec.prompt) + answer
        if len(ready) == 1 and len(self.work) == 1:
            return ready[0], total
        chain = self._chain(spec) if info.prefix_caching else []
        costs = {
            replica: max(total - round(HIT_DISCOUNT * self._cached_tokens(replica, chain)), 1) for replica in ready
        }
        count = len(self.work)
        best = min(ready, key=lambda r: (self.work[r] + costs[r], load[r], (r - self.first) % count))
        cached, capacity = self._cached_prefixes[best], max(info.num_pages * info.page_size // CHUNK, 1)
        for prefix in chain:
            cached[prefix] = None
            cached.move_to_end(prefix)
        while len(cached) > capacity:
            cached.popitem(last=False)
        return best, costs[best]

    def on_answer(self, tokens: int) -> None:
        """An answer was so long."""
        self.typical += WEIGHT * (tokens - self.typical)

    def on_lost(self, replica: int) -> None:
        """Forgets the prefixes of a replica that exited."""
        self._cached_prefixes[replica].clear()

    def _chain(self, spec: RequestSpec) -> list[int]:
        """Of each whole chunk of the prompt, a number for it and all before it."""
        if self._last is not None and self._last[0] is spec.prompt and self._last[1] == spec.cache_salt:
            return self._last[2]
        prompt, chain, number = spec.prompt, [], hash(spec.cache_salt)
        for first in range(0, len(prompt) - CHUNK + 1, CHUNK):
            number = hash((number, *prompt[first : first + CHUNK]))
            chain.append(number)
        self._last = prompt, spec.cache_salt, chain
        return chain

    def _cached_tokens(self, replica: int, chain: Sequence[int]) -> int:
        """Tokens of the prompt that the replica should find in its cache."""
        cached, found = self._cached_prefixes[replica], 0
        for prefix in chain:
            if prefix not in cached:
                break
            found += CHUNK
        return found
