"""Observers of a siege, in separate processes: the prober, and a server for comparison."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PROBE_EVERY = 0.05  # seconds
PROBE_TIMEOUT = 1.0  # the default of Kubernetes
SLOW = 0.2  # seconds from which a probe is recorded
WORST = 10  # spells that are reported
OK = b"HTTP/1.1 200 "

Stopped = Callable[[], bool]
Report = Callable[[Any], None]


@dataclass
class Spell:
    """Successive probes that failed or were slow. `at` is a time of time.monotonic() until `since` converts it."""

    at: float
    seconds: float = 0.0  # until the next probe that is answered quickly
    failed: int = 0
    slow: int = 0
    how: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "seconds": round(self.seconds, 3),
            "failed": self.failed,
            "slow": self.slow,
            "how": dict(self.how),
        }


def worst(spells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the `WORST` longest spells, longest first."""
    return sorted(spells, key=lambda spell: -spell["seconds"])[:WORST]


def since(start: float, spells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the spells with `at` as seconds since `start`."""
    return [{**spell, "at": round(spell["at"] - start, 1)} for spell in spells]


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
    except ConnectionRefusedError:
        failure = "refused"
    except (ConnectionResetError, BrokenPipeError):
        failure = "reset"
    except TimeoutError:
        failure = "timed out"
    except OSError as error:
        failure = f"{type(error).__name__}: {error}"
    return failure, time.monotonic() - start


def prober(stopped: Stopped, report: Report, port: int, stand_in: int) -> dict[str, Any]:
    """Probes until stopped, alternating with a server that does nothing else, whose delays are due to the machine.

    `longest` is the longest time from a probe to the next good answer: the time of failed probes counts too.
    """
    seconds: list[float] = []
    own: list[float] = []
    failed = in_a_row = max_in_a_row = 0
    longest = 0.0
    bad_since: float | None = None
    spells: list[Spell] = []
    spell: Spell | None = None
    report("probing")
    following = time.monotonic()
    while not stopped():
        start = time.monotonic()
        failure, took = probe(port)
        if failure is None:
            seconds.append(took)
            longest = max(longest, time.monotonic() - (bad_since if bad_since is not None else start))
            bad_since, in_a_row = None, 0
        else:
            failed += 1
            in_a_row += 1
            max_in_a_row = max(max_in_a_row, in_a_row)
            bad_since = start if bad_since is None else bad_since
        if spell is not None:
            spell.seconds = time.monotonic() - spell.at
        if failure is None and took <= SLOW:
            spell = None
        else:
            if spell is None:
                spell = Spell(start, time.monotonic() - start)
                spells.append(spell)
            spell.failed += failure is not None
            spell.slow += failure is None
            spell.how[failure or "slow"] += 1
        own.append(probe(stand_in)[1])
        following = max(following + PROBE_EVERY, time.monotonic())
        time.sleep(max(following - time.monotonic(), 0.001))
    if bad_since is not None:
        longest = max(longest, time.monotonic() - bad_since)
    return {
        "probes": len(seconds) + failed,
        "failed": failed,
        "most_failed_in_a_row": max_in_a_row,
        "longest_seconds": round(longest, 4),
        "p99_seconds": round(quantile(seconds, 0.99), 4),
        "over_bar": sum(s > SLOW for s in seconds) + failed,
        "spells": len(spells),
        "worst": worst([spell.summary() for spell in spells]),
        "stand_in_longest_seconds": round(max(own, default=0.0), 4),
        "stand_in_p99_seconds": round(quantile(own, 0.99), 4),
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
