"""Trains a checkpoint and its adapter, and measures them: ``python -m training.demo.run --out DIR``.

The steps run one after another, each in a process of its own, since a GPU's memory holds one engine. A step whose
result is in DIR is skipped, so that the same command continues a run that was cut off. The exit code is 1 if a bar of
README.md is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.demo import everyday

# Evaluations by the name of their file, with the flags of `training.demo.evaluate`.
EVALUATIONS: Mapping[str, Sequence[str]] = {
    "people": ("--tasks", *everyday.TASKS, "--n", "300", "--show-wrong", "100"),
    "quality": ("--show-wrong", "4"),
    "balanced": ("--mode", "balanced"),
    "speed": ("--mode", "speed"),
    "edit": ("--algorithm", "edit"),
    "fp8": ("--quantization", "fp8"),
    "int8": ("--quantization", "int8"),
    "int4": ("--quantization", "int4"),
}
# Least accuracy: of tasks by kind, in the modes and formats that have these bars, and of people's prompts.
BY_KIND: Mapping[str, float] = {"short": 0.98, "long": 0.9}
BY_FILE: Mapping[str, float] = {"everyday": 0.95, "claimed": 0.96, "declined": 0.95}
_WITH_BARS_BY_KIND = ("quality", "edit", "fp8", "int8", "int4")
_BALANCED_LOSS = 0.02  # of pooled accuracy, at most
_BALANCED_SPEED = 5.0  # tokens per forward, at least
_PLOTS = 5  # of 32 seeds, at least


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train and measure the demo model. Other flags go to the training.")
    parser.add_argument("--out", type=Path, required=True, help="directory of the training, and of roman/ and *.json")
    parser.add_argument("--preset", default="gpu", help="of the training (gpu)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (cuda)")
    parser.add_argument("--n", type=int, default=500, help="held-out prompts per task (500)")
    parser.add_argument("--batch", type=int, default=128, help="requests decoded at a time (128)")
    parser.add_argument("--adapter-seconds", type=float, default=70.0, help="of the adapter's training (70)")
    args, training = parser.parse_known_args(argv)
    if any(flag.startswith("--minutes") for flag in training):
        parser.error("--minutes: would measure an unfinished training; set --total-minutes")
    checkpoint, trained = args.out / "checkpoint", args.out / "trained"
    if not trained.exists():
        state = ("--resume",) if (args.out / "state.pt").exists() else ()
        call = ("--preset", args.preset, "--out", str(args.out), "--eval-prompts", "0", *training, *state)
        _step("train", *call, "--device", args.device)
        trained.touch()
    if not (args.out / "roman" / "adapter_config.json").exists():
        call = ("--model", str(checkpoint), "--out", str(args.out / "roman"), "--seconds", str(args.adapter_seconds))
        _step("train_adapter", *call, "--device", args.device)
    for name, flags in EVALUATIONS.items():
        figures = args.out / f"{name}.json"
        if not figures.exists():
            call = ("--model", str(checkpoint), "--device", args.device, "--n", str(args.n), "--batch", str(args.batch))
            _step("evaluate", *call, *flags, "--json", str(figures))
    if not (args.out / "plots.json").exists():
        call = ("--model", str(checkpoint), "--device", args.device)
        _step("plots", *call, "--json", str(args.out / "plots.json"))
    measured = {name: json.loads((args.out / f"{name}.json").read_text()) for name in (*EVALUATIONS, "plots")}
    misses = missed_bars(measured)
    for miss in misses:
        print(f"misses a bar: {miss}", flush=True)
    return 1 if misses else 0


def missed_bars(measured: Mapping[str, Any]) -> list[str]:
    """Returns a text per bar that the figures miss.

    Args:
        measured: by the names of EVALUATIONS the figures of `training.demo.evaluate --json`, and by `plots` those of
            `training.demo.plots --json`.
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
    return misses


def _step(module: str, *arguments: str) -> None:
    """Runs a module of this package. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", f"training.demo.{module}", *arguments]
    print("+", *command[1:], flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
