"""Requests at a server, closed loop (so many clients, each waits for its answer) or open loop (a Poisson stream)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from runtime.client import ServerError, is_end, read_event, refusal

Body = dict[str, Any]


@dataclass
class Sent:
    """One request: seconds from its sending to the first text and to the end, or the kind of its failure."""

    first: float = 0.0
    latency: float = 0.0
    tokens: int = 0
    failure: str | None = None


@dataclass
class Round:
    """What one round measured; `seconds` from the first request to the last answer."""

    seconds: float
    sent: list[Sent] = field(default_factory=list)

    @property
    def good(self) -> list[Sent]:
        return [s for s in self.sent if s.failure is None]

    def summary(self) -> dict[str, Any]:
        """Throughput over the whole round, percentiles (seconds) over its good requests, failures by kind."""
        good = self.good
        return {
            "seconds": self.seconds,
            "requests": len(self.sent),
            "ok": len(good),
            "failures": dict(Counter(s.failure for s in self.sent if s.failure is not None)),
            "requests_per_second": len(good) / self.seconds,
            "tokens_per_second": sum(s.tokens for s in good) / self.seconds,
            "ttft": percentiles([s.first for s in good]),
            "latency": percentiles([s.latency for s in good]),
        }


def percentiles(values: Sequence[float], at: Sequence[int] = (50, 90, 99)) -> dict[str, float | None]:
    """Nearest-rank percentiles: each is a value that was measured."""
    ordered = sorted(values)
    return {f"p{p}": ordered[-(-len(ordered) * p // 100) - 1] if ordered else None for p in at}


async def send(http: httpx.AsyncClient, body: Body) -> Sent:
    """One streamed chat request."""
    sent, start = Sent(), time.perf_counter()
    ended = False
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                raise refusal(response)
            async for line in response.aiter_lines():
                ended = ended or is_end(line)
                event = read_event(line)
                if event is None:
                    continue
                if not sent.first and any(choice["delta"].get("content") for choice in event["choices"]):
                    sent.first = time.perf_counter() - start
                if event.get("usage"):
                    sent.tokens = event["usage"]["completion_tokens"]
        if not ended:
            raise ServerError("the stream broke off", "broken stream")
    except ServerError as error:
        sent.failure = error.kind
    except httpx.TimeoutException:
        sent.failure = "timeout"
    except httpx.HTTPError as error:
        sent.failure = type(error).__name__
    sent.latency = time.perf_counter() - start
    sent.first = sent.first or sent.latency  # an empty answer shows its first sign at the end
    return sent


async def closed_loop(http: httpx.AsyncClient, bodies: Sequence[Body], clients: int, done: Callable[[], None]) -> Round:
    """`clients` at work at any time until all `bodies` are answered."""
    queue = iter(bodies)
    found: list[Sent] = []

    async def client() -> None:
        for body in queue:
            found.append(await send(http, body))
            done()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Round(time.perf_counter() - start, found)


async def open_loop(
    http: httpx.AsyncClient, bodies: Sequence[Body], rate: float, seed: int, done: Callable[[], None]
) -> Round:
    """`rate` requests a second on average, at exponentially distributed distances, however slow the answers are."""
    rng = random.Random(seed)
    found: list[Sent] = []

    async def one(body: Body) -> None:
        found.append(await send(http, body))
        done()

    start = time.perf_counter()
    due, tasks = 0.0, []
    for body in bodies:
        await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(body)))
        due += rng.expovariate(rate)
    await asyncio.gather(*tasks)
    return Round(time.perf_counter() - start, found)
