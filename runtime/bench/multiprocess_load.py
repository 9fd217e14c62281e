"""Clients in several processes: one Python process sends at most two or three thousand requests per second."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import aiohttp
import uvloop

from runtime.bench.load import Round, closed_loop, open_loop, session

Work = Callable[[aiohttp.ClientSession, Sequence[bytes]], Awaitable[Round]]

START_DELAY = 0.3  # seconds until all processes start; each has received its requests by then


class LoadProcesses:
    """Processes that send requests to the server at `url`, one per pool."""

    def __init__(self, pools: Sequence[ProcessPoolExecutor], url: str, api_key: str | None, timeout: float) -> None:
        self.pools = pools
        self.server = url, api_key, timeout

    async def closed_loop(self, bodies: Sequence[bytes], clients: int) -> Round:
        """Runs `load.closed_loop` with clients and requests divided among the processes.

        Args:
            bodies: JSON of the requests.
            clients: at least the number of processes.
        """
        count = len(self.pools)
        each = [clients // count + (i < clients % count) for i in range(count)]
        return await self._all(bodies, [partial(closed_loop, clients=n, done=_nothing) for n in each])

    async def open_loop(self, bodies: Sequence[bytes], rate: float, seed: int) -> Round:
        """Runs `load.open_loop` with the rate divided among the processes.

        The sum of their Poisson processes is a Poisson process with the sum of their rates.
        """
        count = len(self.pools)
        seeds = range(seed * count, (seed + 1) * count)
        return await self._all(bodies, [partial(open_loop, rate=rate / count, seed=s, done=_nothing) for s in seeds])

    async def _all(self, bodies: Sequence[bytes], works: Sequence[Work]) -> Round:
        loop, count = asyncio.get_running_loop(), len(self.pools)
        start = time.time() + START_DELAY
        pending = [
            loop.run_in_executor(pool, _run_shard, self.server, bodies[i::count], work, start)
            for i, (pool, work) in enumerate(zip(self.pools, works, strict=True))
        ]
        rounds = await asyncio.gather(*pending)
        ends = max(end for end, _ in rounds)
        return Round(ends - start, [sent for _, found in rounds for sent in found.sent])


@contextlib.contextmanager
def load_processes(processes: int, url: str, api_key: str | None, timeout: float) -> Iterator[LoadProcesses]:
    """Starts this number of processes. Yields them when they are ready to send, and stops them at the end."""
    spawn = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, spawn)) for _ in range(processes)]
        for ready in [pool.submit(time.time) for pool in pools]:
            ready.result()
        yield LoadProcesses(pools, url, api_key, timeout)


def _nothing() -> None:
    """Called for each response; there is no progress to show."""


def _run_shard(
    server: tuple[str, str | None, float], bodies: Sequence[bytes], work: Work, start: float
) -> tuple[float, Round]:
    """Runs `work` from `start` on. Returns its end, by the clock that all processes share, and its results."""

    async def run() -> tuple[float, Round]:
        async with session(*server) as http:
            await asyncio.sleep(start - time.time())
            found = await work(http, bodies)
            return time.time(), found

    return uvloop.run(run())
