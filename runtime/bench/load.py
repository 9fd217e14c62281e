"""Sends requests to a server: closed loop (each client waits for its answer) or open loop (a Poisson process)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from runtime.client import ServerError, event_object, headers, may_use_proxy, refusal

ROUTE = "v1/chat/completions"  # under the session's base URL
HEALTH_ROUTE = "health"
METRICS_ROUTE = "metrics"
METRICS_SECONDS = 0.25  # a server may return the same text of /metrics for almost so long
HEADERS = {"Content-Type": "application/json"}
IDLE_SECONDS = 4.0  # idle connections are not reused after this; servers close theirs after 5 s at the earliest


@dataclass
class Sent:
    """Result of one request: seconds from sending to the first text and to the end, or the kind of its failure."""

    first: float = 0.0
    latency: float = 0.0
    tokens: int = 0
    failure: str | None = None


@dataclass
class Round:
    """Results of one round. `seconds` is the time from the first request to the end of the last answer."""

    seconds: float
    sent: list[Sent] = field(default_factory=list)

    @property
    def good(self) -> list[Sent]:
        return [s for s in self.sent if s.failure is None]

    def summary(self) -> dict[str, Any]:
        """Returns throughput over the whole round, percentiles (seconds) over its good requests, failures by kind."""
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
    """Returns nearest-rank percentiles: each is a measured value. Without values each is None."""
    ordered = sorted(values)
    return {f"p{p}": ordered[-(-len(ordered) * p // 100) - 1] if ordered else None for p in at}


def session(url: str, api_key: str | None, timeout: float) -> aiohttp.ClientSession:
    """Returns a session for `send`, without a limit of connections. Call it in a running event loop.

    `timeout`: seconds for a complete request.
    """
    return aiohttp.ClientSession(
        base_url=url.rstrip("/") + "/",
        headers=headers(api_key),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=timeout),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=may_use_proxy(url),
    )


class Stream:
    """Reads a streamed response in chunks of any size, and parses only events that may have new information."""

    def __init__(self) -> None:
        self.rest = b""  # of an incomplete line
        self.has_text = False
        self.tokens = 0
        self.ended = False

    def feed(self, piece: bytes) -> None:
        """Reads a chunk. Raises ServerError if it has an error in place of an event."""
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._read(line[5:].strip())

    def _read(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.ended = True
        # these names cannot occur unescaped in the text of an answer; skipped events are text after the first one
        elif not self.has_text or b'"error"' in data or (b'"usage"' in data and b'"usage":null' not in data):
            event = event_object(data)
            self.has_text = self.has_text or any(choice["delta"].get("content") for choice in event["choices"])
            if event.get("usage"):
                self.tokens = event["usage"]["completion_tokens"]


async def send(http: aiohttp.ClientSession, body: bytes) -> Sent:
    """Sends one streamed chat request, whose body is JSON."""
    sent, stream, start = Sent(), Stream(), time.perf_counter()
    try:
        async with http.post(ROUTE, data=body, headers=HEADERS) as response:
            if response.status != 200:
                raise refusal(response.status, await response.read())
            async for piece in response.content.iter_any():
                stream.feed(piece)
                if stream.has_text and not sent.first:
                    sent.first = time.perf_counter() - start
        if not stream.ended:
            raise ServerError("the stream ended early", "broken stream")
    except ServerError as error:
        sent.failure = error.kind
    except TimeoutError:
        sent.failure = "timeout"
    except (aiohttp.ClientPayloadError, ValueError):  # the stream ended early, or an event is not JSON
        sent.failure = "broken stream"
    except aiohttp.ClientError as error:
        sent.failure = type(error).__name__
    sent.tokens = stream.tokens
    sent.latency = time.perf_counter() - start
    sent.first = sent.first or sent.latency  # an empty answer has no first text
    return sent


async def closed_loop(
    http: aiohttp.ClientSession, bodies: Sequence[bytes], clients: int, done: Callable[[], None]
) -> Round:
    """Sends all `bodies` from `clients` clients, each of which waits for its answer."""
    queue = iter(bodies)
    found: list[Sent] = []

    async def client() -> None:
        for body in queue:
            found.append(await send(http, body))
            done()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Round(time.perf_counter() - start, found)


async def health_rate(http: aiohttp.ClientSession, clients: int, requests: int) -> float:
    """Returns requests per second of `clients` clients at /health, which answers without computation."""
    left = iter(range(requests))

    async def client() -> None:
        for _ in left:
            async with http.get(HEALTH_ROUTE) as response:
                await response.read()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return requests / (time.perf_counter() - start)


async def frontend_seconds(http: aiohttp.ClientSession) -> float | None:
    """Returns the CPU seconds of the server's front-end processes so far; None if its /metrics does not have them."""
    await asyncio.sleep(METRICS_SECONDS)
    async with http.get(METRICS_ROUTE) as response:
        lines = (await response.text()).splitlines() if response.status == 200 else []
    own = [line for line in lines if line.startswith("process_cpu_seconds_total{") and 'process="frontend' in line]
    return sum(float(line.rpartition(" ")[2]) for line in own) if own else None


async def open_loop(
    http: aiohttp.ClientSession, bodies: Sequence[bytes], rate: float, seed: int, done: Callable[[], None]
) -> Round:
    """Sends `rate` requests per second on average at exponentially distributed intervals, however slow answers are."""
    rng = random.Random(seed)
    found: list[Sent] = []

    async def one(body: bytes) -> None:
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
