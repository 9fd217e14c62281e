"""Measures the time from process start to ready, by phase.

Each run starts a server. With ``--arch`` it serves random weights that are written to files first. Runs with an empty
kernel cache and runs with a filled one are measured, unless ``--kernels`` selects one of them. With ``--clients``,
requests arrive from the moment of /ready on, while CUDA graphs are left to capture. Two periods of the same load are
compared.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from runtime.bench.load import send, session
from runtime.bench.output import add_json
from runtime.bench.serve import bodies
from runtime.bench.sizes import above_zero, check_positive
from runtime.bench.started import launched
from runtime.errors import ConfigError

POLL_SECONDS = 0.02
LIMIT_SECONDS = 1800.0
ANSWER_TOKENS = 128  # per answer of --clients


@dataclass(frozen=True)
class StartTimes:
    """Seconds of one start.

    Attributes:
        health: from the start of the process to the first answer of /health.
        engine: until the first weight is loaded: imports of the engine, and the checks of flags and files.
        weights: until the last weight is loaded.
        kernels: until /ready: kernel compilation, memory profiling and CUDA graph capture.
        ready: all of these.
        graphs: from /ready until all CUDA graphs are captured, while no request runs.
        weight_bytes: bytes of the loaded weights.
        host_memory: bytes of peak resident memory until /ready, summed over the server's processes. Pages that they
            share count once per process. 0 without /proc.
    """

    health: float
    engine: float
    weights: float
    kernels: float
    ready: float
    graphs: float
    weight_bytes: int
    host_memory: int


@dataclass(frozen=True)
class FirstLoad:
    """Load from the moment of /ready on, in two periods of the same length.

    Attributes:
        clients: number of clients, each of which waits for its answer.
        seconds: length of a period.
        first: tokens per second of the first period.
        second: tokens per second of the second period.
        graphs_left: CUDA graphs left to capture at /ready, after the first period and after the second.
        failures: requests that failed.
    """

    clients: int
    seconds: float
    first: float
    second: float
    graphs_left: tuple[int, int, int]
    failures: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="checkpoint directory (default: the demo)")
    parser.add_argument("--arch", help="named shape: write a checkpoint of random weights first, and serve it")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="where --arch writes (default: a temporary one)")
    parser.add_argument("--server-args", default="", metavar="'--FLAG ...'", help="flags of the server")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="starts per state of the cache (%(default)s)")
    parser.add_argument(
        "--kernels", choices=["both", "cold", "warm"], default="both", help="kernel caches to measure (%(default)s)"
    )
    parser.add_argument(
        "--drop-page-cache", action="store_true", help="remove the checkpoint's files from the page cache before a run"
    )
    parser.add_argument("--clients", type=int, metavar="N", help="also load a started server from /ready on")
    parser.add_argument(
        "--period",
        type=above_zero,
        default=60.0,
        metavar="S",
        help="seconds of each period of --clients (%(default)s)",
    )
    add_json(parser)


def main(args: argparse.Namespace) -> int:
    if args.arch and args.model:
        raise ConfigError("--arch writes a checkpoint of its own; leave out --model")
    check_positive(args, "runs", "clients")
    with _checkpoint(args) as model, tempfile.TemporaryDirectory(prefix="unmask-kernels-") as filled:
        rows: list[dict[str, Any]] = []
        for state in ("cold", "warm"):
            if args.kernels not in ("both", state):
                continue
            if state == "warm" and not rows:
                _measure(args, model, filled)  # fills the cache
            for run in range(args.runs):
                with tempfile.TemporaryDirectory(prefix="unmask-kernels-") as empty:
                    # the first cold start fills the cache of the warm ones
                    times = _measure(args, model, filled if state == "warm" or run == 0 else empty)
                rows.append({"kernel_cache": state, **asdict(times)})
                print(_row(state, times), flush=True)
        for state in dict.fromkeys(row["kernel_cache"] for row in rows):
            own = [row for row in rows if row["kernel_cache"] == state]
            columns = {name: statistics.median(row[name] for row in own) for name in asdict(times)}
            print(_row(f"{state}, median of {len(own)}", StartTimes(**columns)), flush=True)
        if args.clients:
            load = _measure_load(args, model, filled)
            fraction = load.first / load.second if load.second else math.nan
            rows.append(asdict(load))
            print(
                f"{load.clients} clients from /ready on: {load.first:.0f} tokens/s in {load.seconds:.0f} s, then "
                f"{load.second:.0f} tokens/s ({fraction:.1%}); graphs left "
                f"{' > '.join(map(str, load.graphs_left))}; {load.failures} requests failed"
            )
    if args.json:
        args.json.write_text(json.dumps(rows))
    return 0


def _row(label: str, times: StartTimes) -> str:
    rate = times.weight_bytes / times.weights / 1e9 if times.weights else 0.0
    return (
        f"kernel cache {label}: ready {times.ready:6.2f} s = health {times.health:5.2f} + engine {times.engine:5.2f} + "
        f"weights {times.weights:5.2f} ({rate:.2f} GB/s) + kernels and graphs {times.kernels:5.2f}; "
        f"other graphs {times.graphs:5.2f}; host memory {times.host_memory / 1e9:.2f} GB"
    )


@contextmanager
def _checkpoint(args: argparse.Namespace) -> Iterator[str | None]:
    if args.arch is None:
        yield args.model
        return
    from runtime.bench.random_weights import write_files, write_tensors
    from runtime.bench.sizes import check_served_weights

    check_served_weights(args.arch, args.server_args)

    with tempfile.TemporaryDirectory(prefix="unmask-start-", dir=args.directory) as directory:
        write_files(Path(directory), args.arch)
        written = write_tensors(Path(directory), args.arch)
        print(f"{args.arch}: {written / 1e9:.1f} GB of weights in {directory}", flush=True)
        yield directory


def _measure(args: argparse.Namespace, model: str | None, kernel_cache: str) -> StartTimes:
    """Starts a server once, waits until it is ready, and stops it."""
    if args.drop_page_cache and model is not None:
        for file in Path(model).iterdir():
            with open(file, "rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.monotonic()
    with launched(model, args.server_args, TRITON_CACHE_DIR=kernel_cache) as (server, port):
        return _poll(server, port, began)


def _poll(server: subprocess.Popen[bytes], port: int, began: float) -> StartTimes:
    health = first = last = 0.0
    weight_bytes = 0
    while time.monotonic() - began < LIMIT_SECONDS:
        if server.poll() is not None:
            raise ConfigError(f"the server exited with status {server.returncode} before it was ready")
        status, body = _get(port, "/startup")
        now = time.monotonic() - began
        if status:
            health = health or now
            phase = body.get("phase")
            if phase == "weights" and body["bytes"]:
                first = first or now
                weight_bytes = body["total_bytes"]
            elif phase == "warmup" or status == 200:
                last = last or now
        if status == 200 and _get(port, "/ready")[0] == 200:
            first, last = first or last, last or now  # a small model is loaded between two requests
            host_memory = peak_memory(server.pid)
            graphs = _poll_graphs(port) - began - now
            return StartTimes(health, first - health, last - first, now - last, now, graphs, weight_bytes, host_memory)
        time.sleep(POLL_SECONDS)
    raise ConfigError(f"the server was not ready after {LIMIT_SECONDS:.0f} s")


def peak_memory(pid: int) -> int:
    """Returns the bytes of peak resident memory of a process and of its descendants that still run."""
    parents: dict[int, int] = {}
    peaks: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # the process has exited
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            process = int(fields["Pid"])
            parents[process] = int(fields["PPid"])
            peaks[process] = int(fields.get("VmHWM", "0 kB").split()[0]) * 1024  # kernel threads have none
    family = {pid}
    while children := {process for process, parent in parents.items() if parent in family} - family:
        family |= children
    return sum(peaks.get(process, 0) for process in family)


def _measure_load(args: argparse.Namespace, model: str | None, kernel_cache: str) -> FirstLoad:
    """Starts a server, and loads it for two periods as soon as it is ready."""
    with launched(model, args.server_args, TRITON_CACHE_DIR=kernel_cache) as (server, port):
        began = time.monotonic()
        while _get(port, "/ready")[0] != 200:
            if server.poll() is not None or time.monotonic() - began > LIMIT_SECONDS:
                raise ConfigError("the server was not ready")
            time.sleep(POLL_SECONDS)
        return uvloop.run(_load(port, args.clients, args.period))


async def _load(port: int, clients: int, seconds: float) -> FirstLoad:
    settings = argparse.Namespace(
        seed=0, requests=256, max_tokens=ANSWER_TOKENS, ignore_eos=True, mode=None, accept_threshold=None
    )
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    queue = (json.dumps(body | stream).encode() for number in itertools.count() for body in bodies(settings, number))
    answers: list[tuple[float, float, int]] = []  # begin, end, tokens
    failures = 0

    async with session(f"http://127.0.0.1:{port}", None, LIMIT_SECONDS) as http:
        start = time.perf_counter()

        async def client() -> None:
            nonlocal failures
            while (begin := time.perf_counter() - start) < 2 * seconds:
                sent = await send(http, next(queue))
                failures += sent.failure is not None
                answers.append((begin, begin + sent.latency, sent.tokens))

        async def graphs_left(after: float) -> int:
            await asyncio.sleep(after)
            while not await asyncio.to_thread(_metric, port, "unmask_kv_pages"):  # the engine has not reported yet
                await asyncio.sleep(POLL_SECONDS)
            return int(await asyncio.to_thread(_metric, port, "unmask_graphs_pending"))

        left = [asyncio.create_task(graphs_left(after)) for after in (0, seconds, 2 * seconds)]
        await asyncio.gather(*(client() for _ in range(clients)))
        first, middle, last = await asyncio.gather(*left)
    rates = [tokens_between(answers, at, at + seconds) / seconds for at in (0, seconds)]
    return FirstLoad(clients, seconds, rates[0], rates[1], (first, middle, last), failures)


def tokens_between(answers: list[tuple[float, float, int]], start: float, stop: float) -> float:
    """Returns the tokens of a period. An answer across its border counts in proportion to its time in the period.

    Args:
        answers: begin and end in seconds, and the number of tokens, of each answer.
        start: start of the period in seconds.
        stop: end of the period in seconds.
    """
    return sum(tokens * max(min(end, stop) - max(begin, start), 0.0) / (end - begin) for begin, end, tokens in answers)


def _poll_graphs(port: int) -> float:
    """Waits until no CUDA graph is left to capture. Returns the time."""
    while True:
        pages, pending = _metric(port, "unmask_kv_pages"), _metric(port, "unmask_graphs_pending")
        if pages and not pending:  # both are 0 until the engine has reported
            return time.monotonic()
        time.sleep(POLL_SECONDS)


def _metric(port: int, name: str) -> float:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def _get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Returns status and JSON body; status 0 if there is no answer yet."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}
