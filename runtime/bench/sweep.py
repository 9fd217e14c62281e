"""`python -m runtime.bench sweep`: accuracy against speed, a curve for each acceptance rule, on the demo's long tasks.

Which rules there are the served model says, and each of them by which of its fields it trades
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
from runtime.demo.tasks import Task
from runtime.errors import ConfigError, RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.request.validation import check_declared

AXES = ("tokens per forward", "accuracy, %")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="these tasks; every long one without it")
    parser.add_argument(
        "--algorithm", nargs="+", metavar="NAME", help="these acceptance rules; all that fit the model without it"
    )
    parser.add_argument(
        "--values", nargs="+", type=_number, metavar="V", help="of the field of the one --algorithm, instead of its own"
    )
    plot.add_argument(parser, "tokens per forward against accuracy")


@dataclass(frozen=True)
class Sweep:
    """A rule and the values of its field that are tried; a rule that declares none is tried at its defaults."""

    rule: str
    field: str | None
    values: tuple[float | None, ...]

    def decoding(self, value: float | None) -> dict[str, Any]:
        """What a request says; a field ``outer.inner`` is the entry of an object."""
        fields: Any = value
        for name in reversed((self.field or "").split(".")):
            fields = {name: fields}
        return {"algorithm": self.rule} | (fields if self.field else {})


@dataclass(frozen=True)
class Point:
    """What a rule came to with one value of its field."""

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
        tasks = chosen_tasks(args.tasks, None if args.tasks else "long")
        found: Found = []
        with open_llm(args, args.batch) as llm:
            for walk in sweeps(llm.info, args.algorithm, args.values):
                points: list[Point] = []
                for value in walk.values:
                    title = walk.rule if value is None else f"{walk.rule}, {walk.field} {value:g}"
                    points.append(Point(value, run_tasks(llm, tasks, args, walk.decoding(value), title)))
                found.append((walk, points))
    except (ConfigError, RequestError) as error:
        print(error, file=sys.stderr)
        return 1
    named = ", ".join(task.name for task in tasks) if len(tasks) < 4 else f"{len(tasks)} tasks"
    title = f"{named}; held-out prompts of each: {args.n}"
    _print(title, tasks, found)
    if args.json:
        rules = [
            {"algorithm": walk.rule, "field": walk.field, "points": [point.row() for point in points]}
            for walk, points in found
        ]
        args.json.write_text(json.dumps({"n": args.n, "seed": args.seed, "rules": rules}, indent=1) + "\n")
    if args.plot:
        plot.draw(args.plot, title, AXES, curves(found), log_x=True)
    return 0


def sweeps(info: EngineInfo, names: Sequence[str] | None, values: Sequence[float] | None) -> list[Sweep]:
    """The rules of `wanted`, else all of the served model, with `values`, else what each declares.

    Raises:
        ConfigError: for a rule that the model does not have, and for values that are not of one rule's field.
        RequestError: for a value that the field does not take.
    """
    from runtime.algorithms import get_algorithm

    fitting = [rule.key for rule in info.algorithms]
    for name in names or ():
        if name not in fitting:
            raise ConfigError(f"--algorithm: {name} is no rule of this model; there are {', '.join(fitting)}")
    keys = list(dict.fromkeys(names or fitting))
    if values is None:
        return [_declared(key, info) for key in keys]
    if len(keys) != 1:
        raise ConfigError("--values: are of one rule's field; name that rule with --algorithm")
    speed_accuracy_knob = get_algorithm(keys[0]).speed_accuracy_knob
    if speed_accuracy_knob is None:
        raise ConfigError(f"--values: {keys[0]} declares no field by which it trades; leave them out")
    field = speed_accuracy_knob.field
    for value in values:
        check_declared(f"--values: {field.name}", value, field)
    return [Sweep(keys[0], field.name, tuple(values))]


def _declared(key: str, info: EngineInfo) -> Sweep:
    from runtime.algorithms import get_algorithm

    speed_accuracy_knob = get_algorithm(key).speed_accuracy_knob
    if speed_accuracy_knob is None:
        return Sweep(key, None, (None,))
    return Sweep(key, speed_accuracy_knob.field.name, speed_accuracy_knob.values_for(info.block_size))


def curves(found: Found) -> list[plot.Curve]:
    """One for each rule, over all tasks; of a single rule all tasks together, with the values, and each by itself."""
    if len(found) > 1:
        return [_curve(_name(walk), [pooled(p.tasks) for p in points]) for walk, points in found]
    ((_, points),) = found
    overall = _curve("all", [pooled(p.tasks) for p in points], [p.label for p in points])
    each = zip(*(p.tasks for p in points), strict=True)
    return [overall, *(_curve(some[0].task, [(r.accuracy, r.tokens_per_forward) for r in some]) for some in each)]


def _curve(name: str, scores: Sequence[tuple[float, float]], labels: Sequence[str] = ()) -> plot.Curve:
    """`scores`: (accuracy, tokens per forward)."""
    return plot.Curve(name, [(speed, 100 * accuracy) for accuracy, speed in scores], labels or [""] * len(scores))


def _name(walk: Sweep) -> str:
    if walk.field is None:
        return walk.rule
    return f"{walk.rule}: {walk.field} {walk.values[0]:g} to {walk.values[-1]:g}"


def _print(title: str, tasks: Sequence[Task], found: Found) -> None:
    """A row for each point; of a single rule with a column for each task."""
    from rich.console import Console
    from rich.table import Table

    each = tasks if len(found) == 1 else ()
    table = Table(title=title)
    table.add_column("rule")
    for name in ("field", "tokens/forward", "accuracy %", *(t.name for t in each)):
        table.add_column(name, justify="right")
    for walk, points in found:
        for point in points:
            accuracy, speed = pooled(point.tasks)
            figures = [f"{100 * value:.1f}" for value in (accuracy, *(r.accuracy for r in point.tasks[: len(each)]))]
            field = "" if walk.field is None else f"{walk.field} {point.label}"
            table.add_row(walk.rule, field, f"{speed:.2f}", *figures)
        table.add_section()
    Console().print(table)


def _number(text: str) -> float:
    """An int where it is written as one: fields tell them apart."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(f"{text!r} is not a number")
