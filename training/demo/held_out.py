"""Writes held-out prompts with their expected answers for `runtime.bench`: ``python -m training.demo.held_out``."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import msgspec

from runtime.bench.held_out import HELD_OUT, Prompt
from training.demo import everyday
from training.demo.tasks import all_tasks, held_out_samples

COUNT = 32  # prompts per task of the file that ships


def prompts(count: int) -> list[Prompt]:
    """Returns held-out prompts, `count` per task, and all that people wrote.

    The latter are in random order, so that the first of them are of all kinds.
    """
    found = [task.prompt(sample) for task in all_tasks().values() for sample in held_out_samples(task, count)]
    for name in everyday.NAMES:
        written = list(everyday.prompts(name))
        random.Random(name).shuffle(written)
        found += written
    return found


def write(path: Path, count: int) -> None:
    path.write_bytes(msgspec.json.Encoder().encode_lines(prompts(count)))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write held-out prompts with their expected answers.")
    parser.add_argument("--n", type=int, default=COUNT, help=f"prompts per task; default: {COUNT}")
    parser.add_argument("--out", type=Path, default=HELD_OUT, metavar="FILE", help=f"default: {HELD_OUT.name} of bench")
    args = parser.parse_args(argv)
    write(args.out, args.n)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
