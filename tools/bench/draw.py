"""`python -m tools.bench draw FILE.json ... --plot FILE.png`: draws results of earlier runs with `--json` as curves.

Results of `steps --live` are milliseconds over batch size, those of `serve` latency over throughput.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from runtime.bench import plot
from runtime.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json", help="results of one tool")
    parser.add_argument(
        "--names", nargs="+", metavar="NAME",
        help="name of each file's curves; default: model and format for steps, none for serve",
    )  # fmt: skip
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="cases of steps to draw; default: all")
    parser.add_argument("--title", default="", help="title of the plot")
    plot.add_argument(parser, "the curves")


def main(args: argparse.Namespace) -> int:
    names = args.names or [""] * len(args.files)
    if len(names) != len(args.files) or args.plot is None:
        print("--plot is required, and --names needs one entry per file", file=sys.stderr)
        return 2
    reports = [_read(path) for path in args.files]
    for path, report in zip(args.files, reports, strict=True):
        if not isinstance(report, dict) or not ({"setup", "loads"} & report.keys()):
            raise ConfigError(f"{path} has no results of steps or serve; use a file that they wrote with --json")
    of_steps = ["setup" in report for report in reports]
    if any(of_steps) != all(of_steps):
        print("results of steps and serve cannot be drawn together; use one plot per tool", file=sys.stderr)
        return 2
    make, axes = (steps, ("requests", "ms")) if any(of_steps) else (loads, ("requests/s", "latency, ms"))
    try:
        for report in reports if args.cases and all(of_steps) else []:
            report["results"] = [row for row in report["results"] if row["case"] in args.cases]
        curves = [curve for report, name in zip(reports, names, strict=True) for curve in make(report, name)]
    except (KeyError, TypeError, IndexError) as error:
        reason = f"a file lacks {error}; use results that steps --live or serve wrote with --json"
        raise ConfigError(reason) from None
    if not curves:
        raise ConfigError("the files have no results to draw; use other files or other --cases")
    plot.draw(args.plot, args.title, axes, curves, log_x=all(of_steps))
    return 0


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} is not readable JSON: {reason}") from None


def steps(report: dict[str, Any], name: str) -> list[plot.Curve]:
    """Returns one curve per case and context: milliseconds over batch size."""
    setup = report["setup"]
    name = name or f"{setup['model']} {setup['quantization'] or setup['dtype']}"
    found: dict[str, list[tuple[float, float]]] = {}
    for row in report["results"]:
        which = ", ".join(filter(None, [name, row["case"].replace("plain", ""), f"context {row['context']}"]))
        found.setdefault(which, []).append((row["batch"], row["wall_ms"]))
    return [plot.Curve(which, dots, [f"{y:.1f}" for _, y in dots]) for which, dots in found.items()]


def loads(report: dict[str, Any], name: str) -> list[plot.Curve]:
    """Returns curves of median and 90th percentile latency over requests per second, by clients and by rate.

    They use the first round of each load.
    """
    found = []
    for kind in ("clients", "rate"):
        mine = [(load[kind], load["rounds"][0]) for load in report["loads"] if kind in load]
        for percentile in ("p50", "p90") if mine else ():
            dots = [(one["requests_per_second"], 1000 * one["latency"][percentile]) for _, one in mine]
            label = f"{name} {percentile} by {kind}".strip()
            found.append(plot.Curve(label, dots, [f"{value:g}" for value, _ in mine]))
    return found
