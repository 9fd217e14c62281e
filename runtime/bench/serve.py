"""``python -m runtime.bench serve``: measures throughput and latencies of a server under load over HTTP.

Loads the server at ``--url``, or starts one on a free port. ``--compare-llm`` also runs the same prompts through
``runtime.LLM`` in this process, at batch 32, which shows the cost of HTTP and of the server's processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import uvloop

from runtime.bench import output, plot, started
from runtime.bench.held_out import read_tasks
from runtime.bench.load import closed_loop, frontend_seconds, health_rate, open_loop, session
from runtime.bench.multiprocess_load import load_processes
from runtime.bench.sizes import above_zero
from runtime.client import DEFAULT_URL, is_address
from runtime.errors import ConfigError

Body = dict[str, Any]

LLM_BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    started.add_arguments(parser)
    parser.add_argument("--api-key", metavar="KEY")
    parser.add_argument("--clients", type=int, nargs="+", metavar="N", help="closed loop; default: 1 32")
    parser.add_argument(
        "--rate", type=above_zero, nargs="+", metavar="R", help="open loop: requests per second, Poisson"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="processes of the clients; default: 1")
    parser.add_argument("--requests", type=int, default=128, metavar="N", help="requests per round; default: 128")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="rounds per load; default: 1")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="tokens per answer; default: 64")
    parser.add_argument("--ignore-eos", action="store_true", help="every answer takes all of --max-tokens")
    parser.add_argument(
        "--accept-threshold", type=float, metavar="P", help="accept_threshold of requests; 0 fills a block per step"
    )
    parser.add_argument("--mode", choices=("speed", "balanced", "quality"))
    parser.add_argument(
        "--timeout", type=above_zero, default=300.0, metavar="S", help="seconds per request; default: 300"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of prompts and arrivals; default: 0")
    parser.add_argument("--at-once", action="store_true", help="also load /health with the same clients")
    parser.add_argument("--compare-llm", action="store_true", help=f"also run LLM.generate at batch {LLM_BATCH}")
    output.add_json(parser, "everything measured")
    plot.add_argument(parser, "throughput against latency")


def main(args: argparse.Namespace) -> int:
    loads: list[tuple[str, float]] = [("clients", n) for n in args.clients or ([] if args.rate else [1, 32])]
    loads += [("rate", r) for r in args.rate or []]
    if min(args.requests, args.rounds, *(args.clients or ())) < 1:
        print("--requests, --rounds and --clients must be above 0", file=sys.stderr)
        return 2
    fewest = min((value for kind, value in loads if kind == "clients"), default=args.requests)
    if not 1 <= args.processes <= fewest:
        limit = "--requests, as there are no --clients" if args.rate and not args.clients else "the lowest of --clients"
        print(f"--processes: must be between 1 and {fewest:g}, {limit}", file=sys.stderr)
        return 2
    if args.url and not is_address(args.url):
        print(f"--url: {args.url!r} is not a server's address, such as {DEFAULT_URL}", file=sys.stderr)
        return 2
    if (sentence := started.flags_error(args)) is not None:
        print(sentence, file=sys.stderr)
        return 2
    try:
        with started.checkpoint(args) as model:
            return _run(args, loads, model)
    except (ConfigError, RuntimeError, aiohttp.ClientError, OSError) as error:
        print(error or type(error).__name__, file=sys.stderr)
        return 1


def _run(args: argparse.Namespace, loads: list[tuple[str, float]], model: str | None) -> int:
    with started.running(args, model) as url:
        rows, at_once = uvloop.run(_measure(args, url, loads))
    report: dict[str, Any] = {"settings": _settings(args), "loads": rows}
    if at_once:
        report["at_once"] = at_once
    if args.compare_llm:
        numbers = [row["prompts"] for row in rows[-1]["rounds"]]
        for row in rows:
            if row.get("clients") == LLM_BATCH:
                numbers = [found["prompts"] for found in row["rounds"]]
        report["llm"] = _with_llm(args, model, numbers)
    _show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.plot:
        plot.draw(args.plot, "throughput against latency", ("tokens/s", "latency, ms"), _curves(rows))
    return 0 if all(row["failures"] == {} for load in rows for row in load["rounds"]) else 1


def bodies(args: argparse.Namespace, round_number: int) -> list[Body]:
    """Returns the chat requests of one round: prompts of the demo's tasks, with salts so that no cache helps."""
    fields: Body = {"max_tokens": args.max_tokens, "ignore_eos": args.ignore_eos, "temperature": 0.0}
    decoding = {"mode": args.mode, "accept_threshold": args.accept_threshold}
    if decoding := {name: value for name, value in decoding.items() if value is not None}:
        fields["decoding"] = decoding
    # a tool result requires a call before it, which tasks write as text
    tasks = [task for task in read_tasks().values() if task.kind != "written" and not task.name.startswith("tool_")]
    rng = random.Random(f"bench/{args.seed}/{round_number}")
    return [
        {"messages": rng.choice(rng.choice(tasks).prompts).messages, "cache_salt": f"{rng.random()}", **fields}
        for _ in range(args.requests)
    ]


async def _measure(
    args: argparse.Namespace, url: str, loads: list[tuple[str, float]]
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Returns the results of each load, and requests per second of /health by clients."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    more: Body = {"stream": True, "stream_options": {"include_usage": True}}
    if args.url and args.model:
        more["model"] = args.model

    def made(number: int) -> list[bytes]:
        return [json.dumps(body | more).encode() for body in bodies(args, number)]

    rows, number = [], 0
    async with session(url, args.api_key, args.timeout) as client, contextlib.AsyncExitStack() as stack:
        await closed_loop(client, made(-1)[:2], 1, lambda: None)
        several = None
        if args.processes > 1:
            several = stack.enter_context(load_processes(args.processes, url, args.api_key, args.timeout))
        with Progress(*columns, transient=True) as progress:
            for kind, value in loads:
                rounds = []
                for _ in range(args.rounds):
                    todo = made(number)
                    bar = progress.add_task(f"{kind} {value:g}", total=len(todo))
                    before = await frontend_seconds(client)
                    done: Callable[[], None] = lambda bar=bar: progress.advance(bar)  # type: ignore[misc]  # noqa: E731
                    if several is not None and kind == "clients":
                        result = await several.closed_loop(todo, int(value))
                    elif several is not None:
                        result = await several.open_loop(todo, value, args.seed + number)
                    elif kind == "clients":
                        result = await closed_loop(client, todo, int(value), done)
                    else:
                        result = await open_loop(client, todo, value, args.seed + number, done)
                    after = await frontend_seconds(client)
                    used = None if before is None or after is None else 1000 * (after - before) / len(todo)
                    rounds.append(result.summary() | {"frontend_ms_per_request": used, "prompts": number})
                    progress.remove_task(bar)
                    number += 1
                rows.append({kind: value, "rounds": rounds})
        at_once = {
            f"{n:g}": await health_rate(client, int(n), args.requests)
            for kind, n in loads
            if args.at_once and kind == "clients"
        }
    return rows, at_once


def _with_llm(args: argparse.Namespace, model: str | None, numbers: list[int]) -> dict[str, Any]:
    """Runs the prompts of these rounds through LLM.generate, at most LLM_BATCH at once, in this process."""
    from runtime import LLM, SamplingParams

    rounds = []
    if args.arch is not None:
        from runtime.bench.random_weights import random_llm

        made = random_llm(model, max_num_reqs=LLM_BATCH)
    else:
        made = LLM(model=None if args.url else model, max_num_reqs=LLM_BATCH)
    with made as llm:
        for number in [-1, *numbers]:  # the first warms up
            todo = bodies(args, number)
            decoding = todo[0].get("decoding")
            ask = {"max_tokens": args.max_tokens, "ignore_eos": args.ignore_eos, "decoding": decoding}
            params = [SamplingParams(temperature=0.0, cache_salt=body["cache_salt"], **ask) for body in todo]
            start = time.perf_counter()
            outputs = llm.generate([body["messages"] for body in todo], params)
            seconds = time.perf_counter() - start
            tokens = sum(len(output.token_ids) for output in outputs)
            rounds.append({"seconds": seconds, "tokens_per_second": tokens / seconds, "prompts": number})
    return {"batch": LLM_BATCH, "rounds": rounds[1:]}


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    hidden = ("api_key", "json", "plot", "tool")
    return {name: value for name, value in vars(args).items() if name not in hidden}


def _median(rounds: list[dict[str, Any]], *path: str) -> float | None:
    values = []
    for found in rounds:
        value: Any = found
        for name in path:
            value = value[name]
        if value is not None:
            values.append(value)
    return statistics.median(values) if values else None


def _curves(loads: list[dict[str, Any]]) -> list[plot.Curve]:
    """Returns curves of median and 90th percentile latency over throughput. Each point is a load, closed or open."""
    curves = []
    for kind in ("clients", "rate"):
        for percentile in ("p50", "p90"):
            dots, labels = [], []
            for load in (one for one in loads if kind in one):
                speed = _median(load["rounds"], "tokens_per_second")
                latency = _median(load["rounds"], "latency", percentile)
                if speed is not None and latency is not None:
                    dots.append((speed, 1000 * latency))
                    labels.append(f"{load[kind]:g}")
            if dots:
                curves.append(plot.Curve(f"{percentile} by {kind}", dots, labels))
    return curves


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    rounds = report["settings"]["rounds"]
    number = report["settings"]["requests"]
    title = f"{number} requests per round, medians of {rounds} round(s); times in ms, CPU of the front end per request"
    table = Table(title=title)
    times_shown = ("ttft p50", "p90", "p99", "latency p50", "p90", "p99", "CPU")
    for name in ("load", "ok", "failed", "req/s", "tokens/s", *times_shown):
        table.add_column(name, justify="left" if name == "load" else "right")

    def figure(value: float | None, scale: float = 1.0) -> str:
        return "-" if value is None else f"{value * scale:.1f}"

    for load in report["loads"]:
        kind = "clients" if "clients" in load else "rate"
        each = load["rounds"]
        failed = ", ".join(f"{n} x {k}" for row in each for k, n in row["failures"].items())
        times = [figure(_median(each, what, p), 1000) for what in ("ttft", "latency") for p in ("p50", "p90", "p99")]
        table.add_row(
            f"{load[kind]:g} {kind}" if kind == "clients" else f"{load[kind]:g} req/s",
            str(sum(row["ok"] for row in each)),
            failed or "0",
            figure(_median(each, "requests_per_second")),
            figure(_median(each, "tokens_per_second")),
            *times,
            "-" if (used := _median(each, "frontend_ms_per_request")) is None else f"{used:.2f}",
        )
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    speeds = {
        load["clients"]: _median(load["rounds"], "tokens_per_second") for load in report["loads"] if "clients" in load
    }
    if len(speeds) > 1 and (least := speeds[min(speeds)]):
        fastest = speeds[max(speeds)] or 0.0
        console.print(f"{max(speeds):g} clients against {min(speeds):g}: {fastest / least:.2f} times the tokens/s")
    for clients, answers in report.get("at_once", {}).items():
        rounds = next(load["rounds"] for load in report["loads"] if load.get("clients") == float(clients))
        ratio = (_median(rounds, "requests_per_second") or 0.0) / answers
        console.print(f"{clients} clients at /health: {answers:.1f} req/s; chat reaches {ratio:.2f} of that")
    if "llm" in report:
        own = _median(report["llm"]["rounds"], "tokens_per_second") or 0.0
        console.print(f"LLM.generate at batch {LLM_BATCH}: {own:.1f} tokens/s")
        if speeds and own:
            console.print(f"{max(speeds):g} clients over HTTP: {(speeds[max(speeds)] or 0.0) / own:.2f} of that")
