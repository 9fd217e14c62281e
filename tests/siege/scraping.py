"""Measures the cost of hostile pods for the operator: ``python -m tests.siege.scraping``.

The operator reads ``/metrics`` and ``/startup`` of pods whose images its users choose. Here 100 pods, in a separate
process, send one kind of answer, and the operator's own code reads them all once. Honest pods are the control. The
exit code is 1 if a bar is missed, see `Cost.missed`.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from unmask_operator.autoscaler.scrape import scrape
from unmask_operator.controller.pod_progress import PodProgress
from unmask_operator.objects import Key
from unmask_operator.pod_http import TIMEOUT_SECONDS, pod_session

PODS = 100
STALL_SECONDS = 0.1
CPU_SECONDS = 1.0
GROWTH_MB = 30.0
TARGETS = ("queuedRequestsPerReplica",)
BEAT_SECONDS = 0.02
OK = b"HTTP/1.1 200 OK\r\n"
HONEST = b"unmask_requests_running 1\nunmask_requests_waiting 0\nunmask_kv_usage_ratio 0.1\n"
LOADING = b'{"status": "loading", "phase": "weights", "percent": 10}'
LARGE = 4 << 20  # bytes


def answers() -> Mapping[str, bytes]:
    """Returns the answer of each kind of pod, which it sends after the headers of any request."""
    names = b"".join(b"%x\n" % number for number in range(LARGE // 7))
    many = b",".join(b'"%d": {"uri": 1}' % number for number in range(14_000))
    return {
        "honest metrics": OK + b"\r\n" + HONEST,
        "honest startup": OK + b"\r\n" + LOADING,
        "metrics of short rows": OK + b"\r\n" + names,
        "metrics of near misses": OK + b"\r\n" + b"unmask_requests_waiting\n" * 200_000,
        "metrics in chunks of one byte": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 400_000,
        "metrics under many headers": OK + b"X: y\r\n" * 100_000,
        "metrics with a long value": OK + b"\r\nunmask_requests_waiting " + b"1" * 250_000,
        "startup with many adapters": OK + b'\r\n{"status": "started", "adapters": {' + many + b"}}",
        "startup of nested lists": OK + b"\r\n" + b"[" * 250_000,
        "startup of numbers": OK + b"\r\n[" + b"1," * 125_000,
    }


@dataclass(frozen=True)
class Cost:
    """Cost of reading all pods once."""

    kind: str
    seconds: float
    cpu_seconds: float
    stall_seconds: float  # the longest time in which the event loop was blocked
    growth_mb: float
    readings: int

    def missed(self) -> list[str]:
        """Returns the bars that are missed. All honest pods must be read."""
        if self.kind.startswith("honest"):
            return [] if self.readings == PODS else [f"{self.readings} of {PODS} honest pods were read"]
        bars = (
            ("event loop stalled, s", self.stall_seconds, STALL_SECONDS),
            ("CPU, s", self.cpu_seconds, CPU_SECONDS),
            ("memory grew, MB", self.growth_mb, GROWTH_MB),
        )
        return [f"{what}: {figure:.3g} (bar {bar:g})" for what, figure, bar in bars if figure > bar]


def _serve(listener: socket.socket, answer: bytes) -> None:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()
        except (OSError, EOFError):
            writer.transport.abort()

    async def run() -> None:
        async with await asyncio.start_server(send, sock=listener, backlog=2 * PODS) as server:
            await server.serve_forever()

    asyncio.run(run())


@contextmanager
def pods(answer: bytes) -> Iterator[int]:
    """Yields the port at which 127.0.0.1 answers for all pods."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(listener, answer), daemon=True)
        process.start()
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()
            process.join()


def _memory_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


async def _read(kind: str, port: int, timeout: float) -> int:
    """Reads every pod as the operator does, and returns the number of pods with a reading."""
    async with pod_session() as session:
        if "metrics" in kind:
            addresses = {f"pod-{number}": "127.0.0.1" for number in range(PODS)}
            readings, _ = await scrape(session, addresses, TARGETS, port, timeout)
            return len(readings)
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": []}
        found = [
            (Key("default", "service"), {"metadata": {"uid": str(number)}, "spec": {}, "status": status})
            for number in range(PODS)
        ]
        progress = PodProgress(lambda: found, lambda _: None, lambda _: {}, port)
        await progress.poll(session)
        return len(progress.loads)


def measure(kind: str, answer: bytes, timeout: float = TIMEOUT_SECONDS) -> Cost:
    """Measures the reading of pods that send `answer`. `timeout`: seconds for the metrics of one pod."""
    longest = peak = 0.0

    async def beat() -> None:
        nonlocal longest, peak
        while True:
            start = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)
            longest = max(longest, time.monotonic() - start - BEAT_SECONDS)
            peak = max(peak, _memory_mb())

    async def run(port: int) -> Cost:
        beats = asyncio.create_task(beat())
        memory, cpu, start = _memory_mb(), time.process_time(), time.monotonic()
        readings = await _read(kind, port, timeout)
        seconds, cpu = time.monotonic() - start, time.process_time() - cpu
        beats.cancel()
        return Cost(kind, seconds, cpu, longest, max(peak, _memory_mb()) - memory, readings)

    with pods(answer) as port:
        return asyncio.run(run(port))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.siege.scraping", description=__doc__)
    parser.parse_args()
    missed = 0
    for kind, answer in answers().items():
        # One process per kind, to measure its memory. Processes of a Pool could not have children.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            cost = pool.submit(measure, kind, answer).result()
        found = cost.missed()
        missed += bool(found)
        print(
            f"{kind:30} {cost.readings:3} read, {cost.seconds:5.2f} s, {cost.cpu_seconds:5.2f} s of CPU, stall "
            f"{cost.stall_seconds * 1000:4.0f} ms, {cost.growth_mb:+5.1f} MB: {'; '.join(found) or 'holds'}",
            flush=True,
        )
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
