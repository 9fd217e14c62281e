"""Runs held-out demo prompts through an `LLM` and checks the answers, for `eval` and `sweep`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.bench import output
from runtime.bench.held_out import HELD_OUT, Kind, Task, read_tasks
from runtime.errors import ConfigError

MAX_TOKENS = 400  # per answer; more than the longest correct answer


@dataclass(frozen=True)
class Result:
    """Results of one task. `tokens` includes end tokens, because they are decoded like the others."""

    task: str
    kind: str
    count: int
    right: int
    tokens: int
    nfe: int
    answers: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        return self.right / self.count

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.nfe

    def row(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "kind": self.kind,
            "count": self.count,
            "accuracy": self.accuracy,
            "tokens_per_forward": self.tokens_per_forward,
            "tokens": self.tokens,
            "nfe": self.nfe,
        }


def pooled(results: Iterable[Result]) -> tuple[float, float]:
    """Returns the mean accuracy over all prompts, and tokens per forward: sum of tokens / sum of forwards."""
    found = list(results)
    count = sum(r.count for r in found)
    return sum(r.right for r in found) / count, sum(r.tokens for r in found) / sum(r.nfe for r in found)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="checkpoint directory; default: the shipped demo")
    parser.add_argument("--device", help="cpu or cuda; default: cuda if available")
    parser.add_argument("--dtype", help="default: float32 on the CPU, bfloat16 on CUDA")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE.py", help="plugin to load, repeatable")
    parser.add_argument("--quantization", help="format of linear layers and experts: fp8, int8, int4, nvfp4")
    parser.add_argument("--decoding-strategy", metavar="STRATEGY", help="default: that of the family")
    parser.add_argument("--sampling-mode", choices=("naive", "edit"), help="as of the server; dmax needs edit")
    parser.add_argument("--batch", type=int, default=32, help="requests per batch; default: 32")
    parser.add_argument(
        "--prompts", type=Path, default=HELD_OUT, metavar="FILE",
        help="prompts with expected answers, as training.demo.held_out writes them; default: those of the package",
    )  # fmt: skip
    parser.add_argument("--n", type=int, help="prompts per task, the first of the file; default: all")
    output.add_json(parser)


def chosen_tasks(args: argparse.Namespace, kinds: Sequence[Kind] = ("short", "long")) -> list[Task]:
    """Returns the tasks of `--tasks` with `--n` prompts each; without `--tasks`, all tasks of these kinds.

    Raises:
        ConfigError: the file has no such task, or a task has fewer prompts.
    """
    known = read_tasks(args.prompts)
    if unknown := sorted(set(args.tasks or ()) - set(known)):
        raise ConfigError(f"--tasks: {', '.join(unknown)} is not a demo task; known: {', '.join(sorted(known))}")
    tasks = [known[name] for name in args.tasks] if args.tasks else [t for t in known.values() if t.kind in kinds]
    if args.n is None:
        return tasks
    if args.n < 1:
        raise ConfigError("--n: must be at least 1")
    for task in tasks:
        if args.n > len(task.prompts):
            raise ConfigError(f"--n: {task.name} has {len(task.prompts)} prompts; lower --n, or name another --prompts")
    return [Task(task.name, task.prompts[: args.n]) for task in tasks]


def open_llm(args: argparse.Namespace, batch: int) -> Any:
    """Returns an `LLM` that decodes `batch` requests at a time."""
    from runtime import LLM

    names = ("device", "dtype", "quantization", "decoding_strategy", "sampling_mode")
    named = {name: value for name in names if (value := getattr(args, name)) is not None}
    return LLM(model=args.model, plugin=args.plugin, max_num_reqs=batch, **named)


def run_task(
    llm: Any,
    task: Task,
    decoding: dict[str, Any],
    chunk: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Result:
    """Decodes every prompt greedily, `chunk` prompts per call, and checks the answers."""
    from runtime import SamplingParams

    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, seed=0, decoding=decoding)
    right = tokens = nfe = 0
    answers: list[str] = []
    for at in range(0, len(task.prompts), chunk):
        part = task.prompts[at : at + chunk]
        outs = llm.generate([prompt.messages for prompt in part], params)
        for prompt, out in zip(part, outs, strict=True):
            answers.append(out.text)
            right += prompt.is_right(out.text)
            tokens += len(out.token_ids) + out.eos
            nfe += out.nfe
        advance(len(part))
    return Result(task.name, task.kind, len(task.prompts), right, tokens, nfe, tuple(answers))


def run_tasks(
    llm: Any, tasks: Sequence[Task], args: argparse.Namespace, decoding: dict[str, Any], title: str
) -> list[Result]:
    """Runs all tasks, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    results = []
    console = Console()  # without a terminal, a finished bar would leave an empty line
    with Progress(*columns, transient=True, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=sum(len(task.prompts) for task in tasks))
        for task in tasks:
            progress.update(bar, description=f"{title}: {task.name}")
            chunk = max(4 * args.batch, 16)
            results.append(run_task(llm, task, decoding, chunk, lambda n: progress.advance(bar, n)))
    return results
