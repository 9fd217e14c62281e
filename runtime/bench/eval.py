"""`python -m runtime.bench eval`: accuracy and tokens per forward on held-out prompts of the demo tasks.

The exit code is 1 if a limit does not hold: `--min-short`, `--min-long`, `--min-tokens-per-forward`, and with
`--compare-batch` equal outputs at batch size 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from runtime.bench.accuracy import (
    Result,
    add_model_arguments,
    chosen_tasks,
    open_llm,
    pooled,
    run_tasks,
)
from runtime.bench.held_out import Task
from runtime.errors import ConfigError, RequestError
from runtime.plugins import load_plugins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--tasks", nargs="+", metavar="TASK", help="tasks to run; default: all but `everyday`, `claimed` and `declined`"
    )
    parser.add_argument("--algorithm", help="unmasking algorithm, such as threshold or edit; default: the server's")
    parser.add_argument(
        "--mode", choices=("quality", "balanced", "speed"), help="default: quality, if the algorithm has modes"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="value of a field of the algorithm, such as accept_threshold=0.8, repeatable",
    )
    parser.add_argument(
        "--compare-batch", action="store_true", help="also decode one prompt at a time; answers must be equal"
    )
    parser.add_argument("--min-short", type=float, metavar="FRACTION", help="minimum accuracy of each short task")
    parser.add_argument("--min-long", type=float, metavar="FRACTION", help="minimum accuracy of each long task")
    parser.add_argument("--min-tokens-per-forward", type=float, metavar="N", help="minimum pooled tokens per forward")
    parser.add_argument("--show-wrong", type=int, default=0, metavar="N", help="print N wrong answers per task")


def main(args: argparse.Namespace) -> int:
    try:
        return _evaluate(args)
    except (ConfigError, RequestError) as error:
        print(error, file=sys.stderr)
        return 1


def _evaluate(args: argparse.Namespace) -> int:
    from rich.console import Console

    tasks = chosen_tasks(args)
    load_plugins(args.plugin)
    decoding: dict[str, Any] = {} if args.algorithm is None else {"algorithm": args.algorithm}
    values = field_values(args.set)
    with open_llm(args, args.batch) as llm:
        if args.mode or _has_modes(args.algorithm or llm.info.default_algorithm):
            decoding["mode"] = args.mode or "quality"
        decoding |= values
        results = run_tasks(llm, tasks, args, decoding, f"batch {args.batch}")
    console = Console()
    console.print(_table(results, f"{args.n or 'all'} held-out prompts per task, {decoding}, batch {args.batch}"))
    if args.show_wrong:
        _show_wrong(console, results, tasks, args.show_wrong)
    faults = _below(results, args)
    if args.compare_batch:
        with open_llm(args, 1) as llm:
            alone = run_tasks(llm, tasks, args, decoding, "batch 1")
        differing = differences(results, alone)
        total = sum(r.count for r in results)
        console.print(f"batch 1 and batch {args.batch}: {differing} of {total} answers differ")
        if differing:
            faults.append(f"{differing} answers depend on the batch")
    if args.json:
        accuracy, speed = pooled(results)
        figures = {
            "decoding": decoding,
            "batch": args.batch,
            "tasks": [r.row() for r in results],
            "pooled": {"accuracy": accuracy, "tokens_per_forward": speed},
            "faults": faults,
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _has_modes(algorithm: str) -> bool:
    from runtime.algorithms.base import algorithm_keys, get_algorithm

    return algorithm in algorithm_keys() and bool(get_algorithm(algorithm).modes)


def field_values(settings: Sequence[str]) -> dict[str, Any]:
    """Parses FIELD=VALUE settings. Values are JSON, else text, and are validated with a request. Raises ConfigError."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign or not name or not text:
            raise ConfigError(f"--set {setting!r}: is not of the form FIELD=VALUE, such as accept_threshold=0.8")
        if name in values:
            raise ConfigError(f"--set {setting!r}: {name} is set twice; keep one value")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def differences(left: Sequence[Result], right: Sequence[Result]) -> int:
    """Returns for how many prompts the two answers differ."""
    return sum(a != b for x, y in zip(left, right, strict=True) for a, b in zip(x.answers, y.answers, strict=True))


def _table(results: Sequence[Result], title: str) -> Any:
    from rich.table import Table

    table = Table(title=title)
    table.add_column("task")
    table.add_column("kind")
    for name in ("accuracy %", "tokens/forward", "tokens", "forwards"):
        table.add_column(name, justify="right")
    for r in results:
        figures = f"{100 * r.accuracy:.1f}", f"{r.tokens_per_forward:.2f}", f"{r.tokens:,}", f"{r.nfe:,}"
        table.add_row(r.task, r.kind, *figures)
    for kind in ("short", "long", "written", "all"):
        some = [r for r in results if kind in (r.kind, "all")]
        if some:
            accuracy, speed = pooled(some)
            table.add_row(f"pooled {kind}", "", f"{100 * accuracy:.1f}", f"{speed:.2f}", style="bold")
    return table


def _below(results: Sequence[Result], args: argparse.Namespace) -> list[str]:
    """Returns one sentence per limit that does not hold."""
    bars = {"short": args.min_short, "long": args.min_long, "written": None}
    faults = [
        f"{r.task}: {100 * r.accuracy:.1f} % is below the bar of {100 * bars[r.kind]:.1f} % for {r.kind} tasks"
        for r in results
        if bars[r.kind] is not None and r.accuracy < bars[r.kind]
    ]
    speed, least = pooled(results)[1], args.min_tokens_per_forward
    if least is not None and speed < least:
        faults.append(f"{speed:.2f} tokens per forward, pooled, is below {least}")
    return faults


def _show_wrong(console: Any, results: Sequence[Result], tasks: Sequence[Task], limit: int) -> None:
    """Prints at most `limit` wrong answers per task."""
    for result, task in zip(results, tasks, strict=True):
        wrong = [(p, text) for p, text in zip(task.prompts, result.answers, strict=True) if not p.is_right(text)]
        for prompt, text in wrong[:limit]:
            asked = prompt.messages[-1]["content"]
            console.print(f"{result.task}: {asked!r} -> {text!r}, expected {prompt.answer!r}", markup=False)
