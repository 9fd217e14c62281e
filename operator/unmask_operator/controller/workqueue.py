"""Work queue of keys to reconcile: deduplicated, one run per key at a time, retries with exponential back-off."""

import asyncio
from typing import Generic, TypeVar

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 300.0

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """A queue for several workers on the running event loop, whose timers make keys due."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: dict[K, asyncio.TimerHandle] = {}  # keys that are not due yet
        self._due: set[K] = set()
        self._queue: asyncio.Queue[K] = asyncio.Queue()  # keys that are due and not running
        self._running: set[K] = set()
        self._num_requeues: dict[K, int] = {}
        self._get_lock = asyncio.Lock()  # its holder waits for a key; other workers wait for the lock

    def add(self, key: K, delay: float = 0.0) -> None:
        """Adds `key`, due in `delay` seconds at the latest. A running key runs again after it has ended."""
        timer, when = self._timers.get(key), self._loop.time() + delay
        if key in self._due or (timer and timer.when() <= when):
            return
        if timer:
            timer.cancel()
        if delay > 0:
            self._timers[key] = self._loop.call_at(when, self._set_due, key)
        else:
            self._set_due(key)

    async def get(self) -> K:
        """Waits for the key that is due longest. The caller calls `done` or `add_rate_limited` with it afterwards.

        One iteration of the event loop returns at most one key. Most reconciles find nothing to do and do not wait, so
        a thousand of them in one iteration would block the loop.
        """
        async with self._get_lock:
            await asyncio.sleep(0)
            key = await self._queue.get()
        self._due.discard(key)
        self._running.add(key)
        return key

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
        return len(self._timers) + len(self._due)

    def _set_due(self, key: K) -> None:
        self._timers.pop(key, None)
        self._due.add(key)
        if key not in self._running:
            self._queue.put_nowait(key)

    def _end(self, key: K) -> None:
        self._running.discard(key)
        if key in self._due:
            self._queue.put_nowait(key)
