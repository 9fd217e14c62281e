"""Keys to reconcile: each once, one run at a time per key, failed ones again after a growing pause."""

import asyncio
import contextlib
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 300.0

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """A queue for several workers on one event loop. `clock` is the loop's time in seconds."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or asyncio.get_running_loop().time
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0  # breaks ties in the heap, first come first served
        self._running: set[K] = set()
        self._dirty: set[K] = set()  # due again while running
        self._num_requeues: dict[K, int] = {}
        self._changed = asyncio.Event()
        self._get_lock = asyncio.Lock()  # whose it is waits for a key, and the other workers for their turn

    def add(self, key: K, delay: float = 0.0) -> None:
        """Run `key` in `delay` seconds at the latest. While it runs, it waits for the end and then runs again."""
        due = self._clock() + delay
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        self._push(key, due)

    def try_get(self) -> K | None:
        """The key that is due longest, now marked as running; None when nothing is due."""
        while self._heap and self._heap[0][0] <= self._clock():
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue  # it has been taken, or moved to an earlier time
            if key in self._running:
                self._dirty.add(key)  # `done` puts it back
                continue
            del self._due[key]
            self._running.add(key)
            return key
        return None

    async def get(self) -> K:
        """Wait for a key. Call `done` or `add_rate_limited` with it afterwards.

        In one turn of the event loop no more than one key is given away: most runs find nothing to do and wait for
        nothing, and a thousand of them at once would hold everything else up.
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
        """The run went well; run it again after so many seconds where `requeue_after` says so."""
        self._num_requeues.pop(key, None)
        self._end(key)
        if requeue_after is not None:
            self.add(key, requeue_after)

    def add_rate_limited(self, key: K, at_least: float = 0.0) -> float:
        """The run failed: it is tried again after 1, 2, 4 ... 300 seconds. Returns the pause in seconds."""
        count = self._num_requeues.get(key, 0)
        self._num_requeues[key] = count + 1
        pause = max(at_least, min(FIRST_RETRY_SECONDS * 2.0 ** min(count, 10), LAST_RETRY_SECONDS))
        self._end(key)
        self.add(key, pause)
        return pause

    def num_requeues(self, key: K) -> int:
        """How often in a row it has failed."""
        return self._num_requeues.get(key, 0)

    def __len__(self) -> int:
        """Keys that wait, due or not."""
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
        """Seconds until something is due: None is until `add` or `done`."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None
