"""Observers of a siege, in separate processes: the prober, and a server for comparison."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

PROBE_EVERY = 0.05  # seconds
PROBE_TIMEOUT = 1.0  # the default of Kubernetes
OK = b"HTTP/1.1 200 "

Stopped = Callable[[], bool]
Report = Callable[[Any], None]


def probe(port: int, timeout: float = PROBE_TIMEOUT) -> tuple[str | None, float]:
    """Requests /health on a new connection, as a kubelet does. Returns the failure, if any, and the seconds."""
    start = time.monotonic()
    failure, answer = None, b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
            while len(answer) < len(OK):
                sock.settimeout(max(start + timeout - time.monotonic(), 0.001))
                if not (part := sock.recv(4096)):
                    break
                answer += part
        if not answer.startswith(OK):
            failure = f"answered {answer[9:12].decode(errors='replace')}" if answer[12:] else "closed unanswered"
    except OSError as error:
        failure = type(error).__name__
    return failure, time.monotonic() - start


def prober(stopped: Stopped, report: Report, port: int, stand_in: int) -> dict[str, Any]:
    """Probes until stopped, alternating with a server that does nothing else, whose delays are due to the machine.

    `longest` is the longest time from a probe to the next good answer: the time of failed probes counts too.
    """
    seconds: list[float] = []
    own: list[float] = []
    failures: Counter[str] = Counter()
    in_a_row = max_in_a_row = 0
    longest = 0.0
    bad_since: float | None = None
    report("probing")
    following = time.monotonic()
    while not stopped():
        start = time.monotonic()
        failure, took = probe(port)
        bad_since = start if bad_since is None else bad_since
        longest = max(longest, time.monotonic() - bad_since)
        if failure is None:
            seconds.append(took)
            bad_since, in_a_row = None, 0
        else:
            failures[failure] += 1
            in_a_row += 1
            max_in_a_row = max(max_in_a_row, in_a_row)
        own.append(probe(stand_in)[1])
        following = max(following + PROBE_EVERY, time.monotonic())
        time.sleep(max(following - time.monotonic(), 0.001))
    return {
        "probes": len(seconds) + failures.total(),
        "failed": failures.total(),
        "failures": dict(failures),
        "most_failed_in_a_row": max_in_a_row,
        "longest_seconds": round(longest, 4),
        "p99_seconds": round(quantile(seconds, 0.99), 4),
        "stand_in_longest_seconds": round(max(own, default=0.0), 4),
    }


def stand_in(stopped: Stopped, report: Report) -> None:
    """Runs a server that answers 200 to anything. Its times show the delays that are due to the machine."""

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


def quantile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)] if ordered else 0.0
