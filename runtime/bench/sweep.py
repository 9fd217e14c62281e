"""`python -m runtime.bench sweep`: accuracy over speed, one curve per unmasking algorithm, on the demo's long tasks.

The served model lists its algorithms. Each declares the field that trades accuracy for speed
(`UnmaskingAlgorithm.speed_accuracy_knob`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.bench import plot
from runtime.bench.accuracy import Result, add_model_arguments, chosen_tasks, open_llm, pooled, run_tasks
from runtime.bench.held_out import Task
from runtime.errors import ConfigError, RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.request.validation import check_declared

AXES = ("tokens per forward", "accuracy, %")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="tasks to run; default: all long ones")
    parser.add_argument(
        "--algorithm", nargs="+", metavar="NAME", help="unmasking algorithms; default: all that fit the model"
    )
    parser.add_argument(
        "--values",
        nargs="+",
        type=_number,
        metavar="V",
        help="values of the field of a single --algorithm; default: those it declares",
    )
    plot.add_argument(parser, "tokens per forward against accuracy")


@dataclass(frozen=True)
class Sweep:
    """An algorithm and the values of its field to try. An algorithm without such a field is tried at its defaults."""

    algorithm: str
    field: str | None
    values: tuple[float | None, ...]

    def decoding(self, value: float | None) -> dict[str, Any]:
        """Returns `decoding` of a request. A field ``outer.inner`` is an entry of an object."""
        fields: Any = value
        for name in reversed((self.field or "").split(".")):
            fields = {name: fields}
        return {"algorithm": self.algorithm} | (fields if self.field else {})


@dataclass(frozen=True)
class Point:
    """Results of an algorithm with one value of its field."""

    value: float | None
    tasks: Sequence[Result]

    def row(self) -> dict[str, Any]:
        accuracy, speed = pooled(self.tasks)
        tasks = [result.row() for result in self.tasks]
        return {"value": self.value, "accuracy": accuracy, "tokens_per_forward": speed, "tasks": tasks}

    @property
    def label(self) -> str:
        return "" if self.value is None else f"{self.value:g}"


Found = list[tuple[Sweep, list[Point]]]


def main(args: argparse.Namespace) -> int:
    try:
        tasks = chosen_tasks(args, ("long",))
        found: Found = []
        with open_llm(args, args.batch) as llm:
            for walk in sweeps(llm.info, args.algorithm, args.values):
                points: list[Point] = []
                for value in walk.values:
                    title = walk.algorithm if value is None else f"{walk.algorithm}, {walk.field} {value:g}"
                    points.append(Point(value, run_tasks(llm, tasks, args, walk.decoding(value), title)))
                found.append((walk, points))
    except (ConfigError, RequestError) as error:
        print(error, file=sys.stderr)
        return 1
    named = ", ".join(task.name for task in tasks) if len(tasks) < 4 else f"{len(tasks)} tasks"
    title = f"{named}; held-out prompts of each: {args.n or 'all'}"
    _print(title, tasks, found)
    if args.json:
        algorithms = [
            {"algorithm": walk.algorithm, "field": walk.field, "points": [point.row() for point in points]}
            for walk, points in found
        ]
        args.json.write_text(json.dumps({"n": args.n, "algorithms": algorithms}, indent=1) + "\n")
    if args.plot:
        plot.draw(args.plot, title, AXES, curves(found), log_x=True)
    return 0


def sweeps(info: EngineInfo, names: Sequence[str] | None, values: Sequence[float] | None) -> list[Sweep]:
    """Returns the algorithms to sweep, with the values of their fields.

    Args:
        info: of the engine.
        names: keys of algorithms; None for all of the served model.
        values: values of the field of a single algorithm; None for those that each algorithm declares.

    Raises:
        ConfigError: the model does not have an algorithm, or values are given for several algorithms.
        RequestError: the field does not accept a value.
    """
    from runtime.algorithms.base import get_algorithm

    fitting = [algorithm.key for algorithm in info.algorithms]
    for name in names or ():
        if name not in fitting:
            raise ConfigError(f"--algorithm: {name} is not an algorithm of this model; available: {', '.join(fitting)}")
    keys = list(dict.fromkeys(names or fitting))
    if values is None:
        return [_declared(key, info) for key in keys]
    if len(keys) != 1:
        raise ConfigError("--values: belong to the field of one algorithm; name it with --algorithm")
    speed_accuracy_knob = get_algorithm(keys[0]).speed_accuracy_knob
    if speed_accuracy_knob is None:
        raise ConfigError(f"--values: {keys[0]} has no field that trades accuracy for speed; leave --values out")
    field = speed_accuracy_knob.field
    for value in values:
        check_declared(f"--values: {field.name}", value, field)
    return [Sweep(keys[0], field.name, tuple(values))]


def _declared(key: str, info: EngineInfo) -> Sweep:
    from runtime.algorithms.base import get_algorithm

    speed_accuracy_knob = get_algorithm(key).speed_accuracy_knob
    if speed_accuracy_knob is None:
        return Sweep(key, None, (None,))
    return Sweep(key, speed_accuracy_knob.field.name, speed_accuracy_knob.values_for(info.block_size))


def curves(found: Found) -> list[plot.Curve]:
    """Returns one curve per algorithm over all tasks. A single algorithm also has one curve per task."""
    if len(found) > 1:
        return [_curve(_name(walk), [pooled(p.tasks) for p in points]) for walk, points in found]
    ((_, points),) = found
    overall = _curve("all", [pooled(p.tasks) for p in points], [p.label for p in points])
    each = zip(*(p.tasks for p in points), strict=True)
    return [overall, *(_curve(some[0].task, [(r.accuracy, r.tokens_per_forward) for r in some]) for some in each)]


def _curve(name: str, scores: Sequence[tuple[float, float]], labels: Sequence[str] = ()) -> plot.Curve:
    """Returns a curve. `scores` are pairs of accuracy and tokens per forward."""
    return plot.Curve(name, [(speed, 100 * accuracy) for accuracy, speed in scores], labels or [""] * len(scores))


def _name(walk: Sweep) -> str:
    if walk.field is None:
        return walk.algorithm
    return f"{walk.algorithm}: {walk.field} {walk.values[0]:g} to {walk.values[-1]:g}"


def _print(title: str, tasks: Sequence[Task], found: Found) -> None:
    """Prints one row per point. A single algorithm also has one column per task."""
    from rich.console import Console
    from rich.table import Table

    each = tasks if len(found) == 1 else ()
    table = Table(title=title)
    table.add_column("algorithm")
    for name in ("field", "tokens/forward", "accuracy %", *(t.name for t in each)):
        table.add_column(name, justify="right")
    for walk, points in found:
        for point in points:
            accuracy, speed = pooled(point.tasks)
            figures = [f"{100 * value:.1f}" for value in (accuracy, *(r.accuracy for r in point.tasks[: len(each)]))]
            field = "" if walk.field is None else f"{walk.field} {point.label}"
            table.add_row(walk.algorithm, field, f"{speed:.2f}", *figures)
        table.add_section()
    Console().print(table)


def _number(text: str) -> float:
    """Parses a number: an int if it is written as one, because fields distinguish int and float."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(f"{text!r} is not a number")
