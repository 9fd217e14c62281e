"""Runs held-out demo prompts through an `LLM` and checks the answers, for `eval` and `sweep`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.bench import output
from runtime.demo import everyday
from runtime.demo.tasks import Sample, Task, all_tasks, held_out_samples
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
    parser.add_argument("--quantization", help="format of linear layers and experts: fp8, int8, int4")
    parser.add_argument("--batch", type=int, default=32, help="requests per batch; default: 32")
    parser.add_argument("--n", type=int, default=500, help="held-out prompts per task; default: 500")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of held-out prompts; default: 0")
    output.add_json(parser)


def chosen_tasks(
    names: Sequence[str] | None, kind: str | None = None, known: Mapping[str, Task] | None = None
) -> list[Task]:
    """Returns the tasks of these names.

    Args:
        names: names in `known`, or of the files of everyday.py; None for all of `known`.
        kind: if set, only tasks of this kind.
        known: None for the tasks that the shipped checkpoint was trained on.

    Raises:
        ConfigError: a name is unknown.
    """
    known = all_tasks() if known is None else known
    tasks = {**known, **everyday.TASKS}
    if unknown := sorted(set(names or ()) - set(tasks)):
        raise ConfigError(f"--tasks: {', '.join(unknown)} is not a demo task; known: {', '.join(sorted(tasks))}")
    picked = [tasks[n] for n in names] if names else list(known.values())
    return [t for t in picked if kind is None or t.kind == kind]


def prompts_of(task: Task, count: int, seed: int) -> list[Sample]:
    """Returns `count` held-out prompts of a task; at most all prompts of a file of everyday.py."""
    if task.name in everyday.TASKS:
        return everyday.chosen(count, seed, task.name)
    return held_out_samples(task, count, seed)


def open_llm(args: argparse.Namespace, batch: int) -> Any:
    """Returns an `LLM` that decodes `batch` requests at a time."""
    from runtime import LLM

    named = {"device": args.device, "dtype": args.dtype, "quantization": args.quantization}
    return LLM(
        model=args.model, plugin=args.plugin, max_num_reqs=batch, **{k: v for k, v in named.items() if v is not None}
    )


def run_task(
    llm: Any,
    task: Task,
    samples: Sequence[Sample],
    decoding: dict[str, Any],
    chunk: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Result:
    """Decodes every sample greedily, `chunk` prompts per call, and checks the answers."""
    from runtime import SamplingParams

    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, seed=0, decoding=decoding)
    right = tokens = nfe = 0
    answers: list[str] = []
    for at in range(0, len(samples), chunk):
        part = samples[at : at + chunk]
        outs = llm.generate([s.messages for s in part], params)
        for sample, out in zip(part, outs, strict=True):
            answers.append(out.text)
            right += task.check(sample, out.text)
            tokens += len(out.token_ids) + out.eos
            nfe += out.nfe
        advance(len(part))
    return Result(task.name, task.kind, len(samples), right, tokens, nfe, tuple(answers))


def run_tasks(
    llm: Any, tasks: Sequence[Task], args: argparse.Namespace, decoding: dict[str, Any], title: str
) -> list[Result]:
    """Runs all tasks, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    results = []
    if args.n < 1:
        raise ConfigError("--n: must be at least 1")
    console = Console()  # without a terminal, a finished bar would leave an empty line
    with Progress(*columns, transient=True, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=args.n * len(tasks))
        for task in tasks:
            progress.update(bar, description=f"{title}: {task.name}")
            samples = prompts_of(task, args.n, args.seed)
            chunk = max(4 * args.batch, 16)
            results.append(run_task(llm, task, samples, decoding, chunk, lambda n: progress.advance(bar, n)))
    return results
