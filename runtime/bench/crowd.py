"""Closed-loop clients in several processes: one of Python sends two or three thousand requests a second at most."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import uvloop

from runtime.bench.load import Round, closed_loop, session

SOON = 0.3  # seconds in which every process has what it is to send


class Crowd:
    """Processes that send to the server at `url`, one for each of `pools`."""

    def __init__(self, pools: Sequence[ProcessPoolExecutor], url: str, api_key: str | None, timeout: float) -> None:
        self.pools = pools
        self.server = url, api_key, timeout

    async def closed_loop(self, bodies: Sequence[bytes], clients: int) -> Round:
        """As of one process, with its share of the clients and of the requests in each. `clients`: at least as many as
        there are processes."""
        loop, count = asyncio.get_running_loop(), len(self.pools)
        start = time.time() + SOON
        shares = [
            loop.run_in_executor(
                pool, _share, self.server, bodies[i::count], clients // count + (i < clients % count), start
            )
            for i, pool in enumerate(self.pools)
        ]
        rounds = await asyncio.gather(*shares)
        ends = max(end for end, _ in rounds)
        return Round(ends - start, [sent for _, found in rounds for sent in found.sent])


@contextlib.contextmanager
def crowd(processes: int, url: str, api_key: str | None, timeout: float) -> Iterator[Crowd]:
    """So many processes, ready to send."""
    spawn = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, spawn)) for _ in range(processes)]
        for ready in [pool.submit(time.time) for pool in pools]:
            ready.result()
        yield Crowd(pools, url, api_key, timeout)


def _share(
    server: tuple[str, str | None, float], bodies: Sequence[bytes], clients: int, start: float
) -> tuple[float, Round]:
    """When it ended, by the clock that all processes share, and what it found."""

    async def run() -> tuple[float, Round]:
        async with session(*server) as http:
            await asyncio.sleep(start - time.time())
            found = await closed_loop(http, bodies, clients, lambda: None)
            return time.time(), found

    return uvloop.run(run())
