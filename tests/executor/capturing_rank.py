"""Runs a rank on the CPU that captures graphs, and logs each capture with its step.

Arguments: ``LOG FAILING``, then those of a rank.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.executor import rank_worker
from runtime.worker import memory, warmup
from runtime.worker.cuda_graph_runner import CudaGraphRunner, Work


class Capturer:
    """Captures work so that replays run it again. The captures with the numbers `failing` fail after running it."""

    def __init__(self, failing: tuple[int, ...]) -> None:
        self.failing = failing
        self.captures = 0

    def __call__(self, work: Work) -> Work:
        self.captures += 1
        work()
        if self.captures in self.failing:
            raise RuntimeError("out of memory")
        return work


def capture_on_cpu(patch: pytest.MonkeyPatch, log: Callable[[str], Any], failing: tuple[int, ...] = ()) -> None:
    """Makes this process capture, and leaves all but the largest graphs to steps and to idle times."""
    capturer, steps = Capturer(failing), [0]
    launch, sample = CudaGraphRunner._launch, CudaGraphRunner.launch_sampling

    def logged(self: CudaGraphRunner, descriptor: Any, graph: Any, *arguments: Any) -> bool:
        if graph.replay is None:
            log(f"{steps[0]} {re.sub(' at 0x[0-9a-f]+', '', str(descriptor))}")
        return launch(self, descriptor, graph, *arguments)

    def counted(self: CudaGraphRunner, *arguments: Any) -> None:  # rank 0 may launch a forward early, but no sampling
        steps[0] += 1
        sample(self, *arguments)

    patch.setattr(CudaGraphRunner, "_launch", logged)
    patch.setattr(CudaGraphRunner, "launch_sampling", counted)
    patch.setattr(memory, "_uses_cuda_graphs", lambda config, *_: not config.enforce_eager)
    patch.setattr(memory, "GraphCapturer", lambda device: capturer)
    patch.setattr(warmup, "READY_REQUESTS", 0)


def main() -> int:
    path, failing, *arguments = sys.argv[1:]

    def log(line: str) -> None:
        with Path(path).open("a") as file:
            file.write(line + "\n")

    with pytest.MonkeyPatch.context() as patch:
        capture_on_cpu(patch, log, tuple(map(int, failing.split(","))) if failing else ())
        return rank_worker.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
