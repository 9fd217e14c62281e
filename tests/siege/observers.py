"""Those who look on, each in a process of its own: the prober, a stand-in for comparison, and the good clients."""

from __future__ import annotations

import asyncio
import random
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import aiohttp

PROBE_EVERY = 0.05  # seconds
PROBE_TIMEOUT = 1.0  # as Kubernetes has it unless told otherwise
GIVE_UP = 60.0  # seconds a client waits for an answer
OK = b"HTTP/1.1 200 "
PROMPTS = ("Solve: 12 + 30.", "Sort: 5 3 9 1.", "Spell: lantern.", "Count from 3 to 9.")

Stopped = Callable[[], bool]
Report = Callable[[Any], None]


def probe(port: int, timeout: float = PROBE_TIMEOUT) -> tuple[bool, float]:
    """Ask for /health on a new connection, as a kubelet does; whether it was well, and the seconds it took."""
    start = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
            answer = b""
            while len(answer) < len(OK):
                sock.settimeout(max(start + timeout - time.monotonic(), 0.001))
                if not (part := sock.recv(4096)):
                    break
                answer += part
    except OSError:
        return False, time.monotonic() - start
    return answer.startswith(OK), time.monotonic() - start


def prober(stopped: Stopped, report: Report, port: int, stand_in: int) -> dict[str, Any]:
    """Probe until stopped, and beside it a server that does nothing else: what that takes is the machine's doing.

    `longest` is the longest time from asking to the next good answer: a probe that is given up counts on.
    """
    seconds: list[float] = []
    own: list[float] = []
    failed = in_a_row = most_in_a_row = 0
    longest = 0.0
    bad_since: float | None = None
    report("probing")
    following = time.monotonic()
    while not stopped():
        start = time.monotonic()
        well, took = probe(port)
        if well:
            seconds.append(took)
            longest = max(longest, time.monotonic() - (bad_since if bad_since is not None else start))
            bad_since, in_a_row = None, 0
        else:
            failed += 1
            in_a_row += 1
            most_in_a_row = max(most_in_a_row, in_a_row)
            bad_since = start if bad_since is None else bad_since
        own.append(probe(stand_in)[1])
        following = max(following + PROBE_EVERY, time.monotonic())
        time.sleep(max(following - time.monotonic(), 0.001))
    if bad_since is not None:
        longest = max(longest, time.monotonic() - bad_since)
    return {
        "probes": len(seconds) + failed,
        "failed": failed,
        "most_failed_in_a_row": most_in_a_row,
        "longest_seconds": round(longest, 4),
        "p99_seconds": round(quantile(seconds, 0.99), 4),
        "over_bar": sum(s > 0.2 for s in seconds) + failed,
        "stand_in_longest_seconds": round(max(own, default=0.0), 4),
        "stand_in_p99_seconds": round(quantile(own, 0.99), 4),
    }


def stand_in(stopped: Stopped, report: Report) -> None:
    """A server that answers 200 to anything: how long the machine takes when the server has nothing to do."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK + b"OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            report(server.sockets[0].getsockname()[1])
            while not stopped():
                await asyncio.sleep(0.2)

    asyncio.run(serve())


async def chat(client: aiohttp.ClientSession, prompt: str, streamed: bool) -> tuple[str | None, float]:
    """One short chat to its end: what failed, if anything, and the seconds it took."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 32, "stream": streamed}
    start = time.monotonic()
    try:
        async with client.post("/v1/chat/completions", json=body) as answer:
            text = await answer.text()
            failure = None if answer.status == 200 else f"{answer.status}: {text[:120]}"
            if failure is None and streamed and not ("[DONE]" in text and '"error"' not in text):
                failure = f"a stream without its end: {text[-120:]!r}"
            if failure is None and not streamed and '"finish_reason"' not in text:
                failure = f"an answer without its end: {text[-120:]!r}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        failure = f"{type(error).__name__}: {error}"
    return failure, time.monotonic() - start


def session(port: int, key: str, kept: bool) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(force_close=not kept, limit=0)
    return aiohttp.ClientSession(
        f"http://127.0.0.1:{port}",
        connector=connector,
        headers={"Authorization": f"Bearer {key}"},
        timeout=aiohttp.ClientTimeout(total=GIVE_UP),
    )


def usual(stopped: Stopped, report: Report, port: int, key: str, times: int) -> float:
    """The median of a few requests, one after the other."""

    async def ask() -> float:
        taken = []
        async with session(port, key, kept=False) as client:
            for i in range(times):
                failure, seconds = await chat(client, PROMPTS[i % len(PROMPTS)], streamed=False)
                if failure is not None:
                    raise RuntimeError(f"the idle server failed a good request: {failure}")
                taken.append(seconds)
        return statistics.median(taken)

    return asyncio.run(ask())


def innocent(stopped: Stopped, report: Report, port: int, key: str) -> dict[str, Any]:
    """One request a second, each on a connection of its own, whether or not the one before has ended."""

    async def ask() -> dict[str, Any]:
        tasks = []
        async with session(port, key, kept=False) as client:
            report("asking")
            following = time.monotonic()
            while not stopped():
                if time.monotonic() >= following:
                    following += 1
                    prompt = PROMPTS[len(tasks) % len(PROMPTS)]
                    tasks.append(asyncio.create_task(chat(client, prompt, streamed=False)))
                await asyncio.sleep(0.05)
            return tally(await asyncio.gather(*tasks))

    return asyncio.run(ask())


def good_clients(stopped: Stopped, report: Report, port: int, key: str, count: int, think: float) -> dict[str, Any]:
    """`count` clients with some time to think: every other one keeps its connection, every third one streams."""

    async def one(number: int, done: list[tuple[str | None, float]]) -> None:
        rng = random.Random(number)
        async with session(port, key, kept=number % 2 == 0) as client:
            await asyncio.sleep(rng.uniform(0, think))
            while not stopped():
                done.append(await chat(client, rng.choice(PROMPTS), streamed=number % 3 == 0))
                end = time.monotonic() + rng.uniform(0.5, 1.5) * think
                while not stopped() and time.monotonic() < end:
                    await asyncio.sleep(0.2)

    async def all_of_them() -> dict[str, Any]:
        done: list[tuple[str | None, float]] = []
        report("asking")
        await asyncio.gather(*(one(i, done) for i in range(count)))
        return tally(done)

    return asyncio.run(all_of_them())


def tally(done: list[tuple[str | None, float]]) -> dict[str, Any]:
    failures = [failure for failure, _ in done if failure is not None]
    seconds = [taken for failure, taken in done if failure is None]
    return {
        "requests": len(done),
        "failed": len(failures),
        "failures": sorted(set(failures))[:5],
        "median_seconds": round(statistics.median(seconds), 3) if seconds else None,
        "p99_seconds": round(quantile(seconds, 0.99), 3),
        "longest_seconds": round(max((taken for _, taken in done), default=0.0), 3),
    }


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0
