"""Trains a checkpoint and its adapter, and measures them: ``python -m training.demo.run --out DIR``.

Each step is a separate process, since a GPU's memory holds one engine. On one GPU they run one after another. With
``--gpus N`` the training uses N GPUs, and then N other steps run at a time. A step with a result in DIR is skipped, so
that the same command continues an interrupted run. The exit code is 1 if a bar of README.md is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.demo import everyday
from training.demo.presets import PRESETS

# Evaluations by the name of their file, with the flags of `runtime.bench eval`.
EVALUATIONS: Mapping[str, Sequence[str]] = {
    "people": ("--tasks", *everyday.NAMES, "--show-wrong", "100"),
    "quality": ("--show-wrong", "4"),
    "balanced": ("--mode", "balanced"),
    "speed": ("--mode", "speed"),
    "edit": ("--algorithm", "edit"),
    "fp8": ("--quantization", "fp8"),
    "int8": ("--quantization", "int8"),
    "int4": ("--quantization", "int4"),
}
# Minimum accuracy: of tasks by kind, in the modes and formats that have these bars, and of people's prompts.
BY_KIND: Mapping[str, float] = {"short": 0.98, "long": 0.9}
BY_FILE: Mapping[str, float] = {"everyday": 0.95, "claimed": 0.96, "declined": 0.95}
_WITH_BARS_BY_KIND = ("quality", "edit", "fp8", "int8", "int4")
_BALANCED_LOSS = 0.02  # of pooled accuracy, at most
_BALANCED_SPEED = 5.0  # tokens per forward, at least
_PLOTS = 7  # of 20 seeds, at least, and as many different texts
_EDGES = 0.95  # of each figure of `training.demo.edges`, at least; 23 of 24 turns are more
_PROMPTS = "held_out.jsonl"
_MODULES = ("edges", "plots")  # of training.demo, with figures in files of their names
MEASURED = (*EVALUATIONS, *_MODULES)


@dataclass(frozen=True)
class Step:
    """A module to run. Its output goes to `log` if other steps run at the same time."""

    result: Path  # exists once the step has run
    log: Path
    arguments: Sequence[str]  # of python -m


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train and measure the demo model. Other flags go to the training.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the training, and of roman/ and *.json")
    parser.add_argument("--preset", default="gpu", choices=sorted(PRESETS), help="preset of the training; default: gpu")
    parser.add_argument("--device", default="cuda", help="cuda or cpu; default: cuda")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine, or processes on a CPU; default: 1")
    parser.add_argument("--n", type=int, default=500, help="held-out prompts per task; default: 500")
    parser.add_argument("--batch", type=int, default=128, help="requests per batch; default: 128")
    parser.add_argument(
        "--adapter-seconds", type=float, default=70.0, help="seconds of the adapter's training; default: 70"
    )
    args, training = parser.parse_known_args(argv)
    if any(flag.startswith("--minutes") for flag in training):
        parser.error("--minutes: would measure an unfinished training; set --total-minutes")
    rows = PRESETS[args.preset].rows
    if args.gpus < 1 or rows % args.gpus:
        parser.error(f"--gpus: {args.gpus} must divide the {rows} rows of a batch")
    trained = args.out / "trained"
    if not trained.exists():
        state = ("--resume",) if (args.out / "state.pt").exists() else ()
        call = ("--preset", args.preset, "--out", str(args.out), "--eval-prompts", "0", *training, *state)
        _run([*launcher(args.gpus), "training.demo.train", *call, "--device", args.device])
        trained.touch()
    prompts = args.out / _PROMPTS
    if not prompts.exists():
        _run(["-m", "training.demo.held_out", "--n", str(args.n), "--out", str(prompts)])
    _run_all([step for step in _steps_after_training(args) if not step.result.exists()], args.gpus)
    measured = {name: json.loads((args.out / f"{name}.json").read_text()) for name in MEASURED}
    misses = missed_bars(measured)
    for miss in misses:
        print(f"misses a bar: {miss}", flush=True)
    return 1 if misses else 0


def missed_bars(measured: Mapping[str, Any]) -> list[str]:
    """Returns a text per bar that the figures miss.

    Args:
        measured: by the names of EVALUATIONS the figures of `runtime.bench eval --json`, and by `edges` and `plots`
            those of these modules' `--json`.
    """
    misses = []
    for name in _WITH_BARS_BY_KIND:
        for row in measured[name]["tasks"]:
            if row["accuracy"] < BY_KIND[row["kind"]]:
                misses.append(f"{name}: {row['task']} {row['accuracy']:.1%}, below {BY_KIND[row['kind']]:.0%}")
    for row in measured["people"]["tasks"]:
        if row["accuracy"] < BY_FILE[row["task"]]:
            misses.append(f"people: {row['task']} {row['accuracy']:.1%}, below {BY_FILE[row['task']]:.0%}")
    pooled = {name: measured[name]["pooled"] for name in ("quality", "balanced", "edit")}
    if pooled["balanced"]["accuracy"] < pooled["quality"]["accuracy"] - _BALANCED_LOSS:
        misses.append(f"balanced: {pooled['balanced']['accuracy']:.1%} pooled, 2 points below quality")
    if pooled["balanced"]["tokens_per_forward"] < _BALANCED_SPEED:
        misses.append(f"balanced: {pooled['balanced']['tokens_per_forward']:.2f} tokens per forward, below 5")
    if pooled["edit"]["accuracy"] < pooled["quality"]["accuracy"]:
        misses.append(f"edit: {pooled['edit']['accuracy']:.1%} pooled, below quality")
    for row in measured["plots"]["requests"]:
        if len(row["plots"]) < _PLOTS:
            misses.append(f"plots: {len(row['plots'])} for {row['prompt']!r}, below {_PLOTS}")
    for row in measured["edges"]["edges"]:
        if row["right"] < _EDGES * row["count"]:
            misses.append(f"edges: {row['name']} {row['right']} of {row['count']}, below {_EDGES:.0%}")
        if row.get("unknown_calls"):
            misses.append(f"edges: {row['name']} {row['unknown_calls']} calls of tools that were not offered")
    return misses


def launcher(gpus: int) -> list[str]:
    """Returns the arguments of python that run a module in one process, or in one process per GPU."""
    if gpus == 1:
        return ["-m"]
    # The address keeps torchrun from looking up the name of the machine.
    flags = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(gpus))
    return ["-m", "torch.distributed.run", *flags, "-m"]


def _steps_after_training(args: argparse.Namespace) -> list[Step]:
    """Returns the adapter's training, which takes longest, the edges, the plots and the evaluations."""
    model = ("--model", str(args.out / "checkpoint"), "--device", args.device)
    adapter = ("--out", str(args.out / "roman"), "--seconds", str(args.adapter_seconds))
    calls: list[tuple[str, Path, tuple[str, ...]]] = [
        ("adapter", args.out / "roman" / "adapter_config.json", ("training.demo.train_adapter", *model, *adapter))
    ]
    for name in _MODULES:
        figures = args.out / f"{name}.json"
        calls.append((name, figures, (f"training.demo.{name}", *model, "--json", str(figures))))
    for name, flags in EVALUATIONS.items():
        figures = args.out / f"{name}.json"
        prompts = ("--prompts", str(args.out / _PROMPTS), "--batch", str(args.batch))
        calls.append((name, figures, ("runtime.bench", "eval", *model, *prompts, *flags, "--json", str(figures))))
    return [Step(result, args.out / f"{name}.log", arguments) for name, result, arguments in calls]


def _run_all(steps: Sequence[Step], gpus: int) -> None:
    """Runs the steps, as many at a time as there are GPUs.

    An error cancels the pending steps. It is raised when the running ones have ended.

    Raises:
        subprocess.CalledProcessError: a step failed.
    """
    if gpus == 1:
        for step in steps:
            _run(["-m", *step.arguments])
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    free: queue.Queue[str] = queue.Queue()
    for device in visible.split(",")[:gpus] if visible else map(str, range(gpus)):
        free.put(device)

    def run(step: Step) -> None:
        device = free.get()
        try:
            with step.log.open("w") as log:
                _run(["-m", *step.arguments], env={**os.environ, "CUDA_VISIBLE_DEVICES": device}, stdout=log)
        finally:
            free.put(device)

    with ThreadPoolExecutor(gpus) as pool:
        running = {pool.submit(run, step): step.log for step in steps}
        try:
            for future in as_completed(running):
                log = running[future]
                print(f"{log}:\n{log.read_text()}", end="", flush=True)  # at the end, so that steps' lines do not mix
                future.result()
        except subprocess.CalledProcessError:
            pool.shutdown(cancel_futures=True)
            raise


def _run(arguments: Sequence[str], **options: Any) -> None:
    """Runs python. Raises CalledProcessError if it fails. With `stdout` in the options, errors go there too."""
    print(" ".join(("+", *arguments)) + "\n", end="", flush=True)  # one string, since steps print from threads
    if "stdout" in options:
        options["stderr"] = subprocess.STDOUT
    subprocess.run([sys.executable, *arguments], check=True, **options)


if __name__ == "__main__":
    raise SystemExit(main())
