"""`python -m runtime.bench sweep`: accuracy against speed over acceptance thresholds, on the long tasks."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from runtime.bench import plot
from runtime.bench.accuracy import add_model_arguments, chosen_tasks, open_llm, pooled, run_tasks
from runtime.errors import ConfigError, RequestError

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="these tasks; every long one without it")
    parser.add_argument("--thresholds", nargs="+", type=float, default=list(THRESHOLDS), metavar="T")
    plot.add_argument(parser, "tokens per forward against accuracy")


def main(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    try:
        tasks = chosen_tasks(args.tasks, None if args.tasks else "long")
        points: list[dict[str, Any]] = []
        with open_llm(args, args.batch) as llm:
            for threshold in args.thresholds:
                decoding: dict[str, Any] = {"accept_threshold": threshold}
                if args.algorithm is not None:
                    decoding["algorithm"] = args.algorithm
                results = run_tasks(llm, tasks, args, decoding, f"threshold {threshold}")
                accuracy, speed = pooled(results)
                points.append(
                    {
                        "accept_threshold": threshold,
                        "accuracy": accuracy,
                        "tokens_per_forward": speed,
                        "tasks": [r.row() for r in results],
                    }
                )
    except (ConfigError, RequestError) as error:
        print(error, file=sys.stderr)
        return 1
    table = Table(title=f"{args.n} held-out prompts a task")
    table.add_column("threshold", justify="right")
    table.add_column("tokens/forward", justify="right")
    for name in ("accuracy %", *(t.name for t in tasks)):
        table.add_column(name, justify="right")
    for point in points:
        scores = [point["accuracy"], *(t["accuracy"] for t in point["tasks"])]
        figures = [f"{100 * s:.1f}" for s in scores]
        table.add_row(f"{point['accept_threshold']:g}", f"{point['tokens_per_forward']:.2f}", *figures)
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({"algorithm": args.algorithm, "points": points}, indent=1) + "\n")
    if args.plot:
        plot.draw(
            args.plot, f"{args.n} held-out prompts a task", ("tokens per forward", "accuracy, %"), _curves(points)
        )
    return 0


def _curves(points: list[dict[str, Any]]) -> list[plot.Curve]:
    """All tasks together, and each by itself; every point is a threshold."""
    labels = [f"{p['accept_threshold']:g}" for p in points]
    curves = [plot.Curve("all", [(p["tokens_per_forward"], 100 * p["accuracy"]) for p in points], labels)]
    for rows in zip(*(p["tasks"] for p in points), strict=True):
        dots = [(row["tokens_per_forward"], 100 * row["accuracy"]) for row in rows]
        curves.append(plot.Curve(rows[0]["task"], dots, [""] * len(dots)))
    return curves
