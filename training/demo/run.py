"""Trains a checkpoint and its adapter, and measures them: ``python -m training.demo.run --out DIR``.

The steps run one after another, each in a process of its own, since a GPU's memory holds one engine. A step whose
result is in DIR is skipped, so that the same command continues a run that was cut off.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    return 0


def _step(module: str, *arguments: str) -> None:
    """Runs a module of this package. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", f"training.demo.{module}", *arguments]
    print("+", *command[1:], flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
