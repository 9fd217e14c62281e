"""Measures a checkpoint on the wider tasks: ``python -m training.demo.evaluate --model DIR``.

The flags are those of ``python -m runtime.bench eval``, which measures the tasks of the shipped checkpoint.
"""

from __future__ import annotations

import argparse

import runtime
from runtime.bench import eval as evaluation
from training.demo.tasks import all_tasks


def main(argv: list[str] | None = None) -> int:
    runtime.wait_passively()
    parser = argparse.ArgumentParser(description="Measure a checkpoint of the demo model on the wider tasks.")
    evaluation.add_arguments(parser)
    return evaluation.main(parser.parse_args(argv), all_tasks())


if __name__ == "__main__":
    raise SystemExit(main())
