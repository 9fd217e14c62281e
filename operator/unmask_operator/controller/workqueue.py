"""Work queue of keys to reconcile: deduplicated, one run per key at a time, retries with exponential back-off."""

import asyncio
import contextlib
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 300.0

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """A queue for several workers on one event loop.

    Args:
        clock: Returns monotonic seconds; by default the event loop's time.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or asyncio.get_running_loop().time
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0  # breaks ties in the heap: first in, first out
        self._running: set[K] = set()
        self._dirty: set[K] = set()  # added again while running
        self._num_requeues: dict[K, int] = {}
        self._changed = asyncio.Event()
        self._get_lock = asyncio.Lock()  # its holder waits for a key; other workers wait for the lock

    def add(self, key: K, delay: float = 0.0) -> None:
        """Adds `key`, due in `delay` seconds at the latest. A running key runs again after it has ended."""
        due = self._clock() + delay
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        self._push(key, due)

    def try_get(self) -> K | None:
        """Returns the key that has been due longest and marks it as running. None: no key is due."""
        while self._heap and self._heap[0][0] <= self._clock():
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue  # an outdated entry: the key ran, or is due earlier
            if key in self._running:
                self._dirty.add(key)  # `done` or `add_rate_limited` adds it again
                continue
            del self._due[key]
            self._running.add(key)
            return key
        return None

    async def get(self) -> K:
        """Waits for a key. The caller calls `done` or `add_rate_limited` with it afterwards.

        One iteration of the event loop returns at most one key. Most reconciles find nothing to do and do not wait, so
        a thousand of them in one iteration would block the loop.
        """
        async with self._get_lock:
            await asyncio.sleep(0)
            while True:
                self._changed.clear()
                key = self.try_get()
                if key is not None:
                    return key
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._pause())

    def done(self, key: K, requeue_after: float | None = None) -> None:
        """Marks a run as successful, and adds the key again after `requeue_after` seconds unless that is None."""
        self._num_requeues.pop(key, None)
        self._end(key)
        if requeue_after is not None:
            self.add(key, requeue_after)

    def add_rate_limited(self, key: K, at_least: float = 0.0) -> float:
        """Adds a failed key again after 1, 2, 4 ... 300 seconds. Returns the pause in seconds."""
        count = self._num_requeues.get(key, 0)
        self._num_requeues[key] = count + 1
        pause = max(at_least, min(FIRST_RETRY_SECONDS * 2.0 ** min(count, 10), LAST_RETRY_SECONDS))
        self._end(key)
        self.add(key, pause)
        return pause

    def num_requeues(self, key: K) -> int:
        """Returns the number of consecutive failures."""
        return self._num_requeues.get(key, 0)

    def __len__(self) -> int:
        """Returns the number of waiting keys, due or not."""
        return len(self._due)

    def _end(self, key: K) -> None:
        self._running.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self._push(key, self._due[key])

    def _push(self, key: K, due: float) -> None:
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, key))
        self._changed.set()

    def _pause(self) -> float | None:
        """Returns seconds until a key is due; None: until `add` or `done` is called."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None
