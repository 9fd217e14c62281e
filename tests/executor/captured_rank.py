"""Runs a rank on the CPU whose steps take the path of captured steps: each replay runs the work again."""

from __future__ import annotations

import sys

from runtime.executor import rank_worker
from runtime.worker import memory
from runtime.worker.cuda_graph_runner import run_eagerly


def pretend() -> None:
    memory._uses_cuda_graphs = lambda config, *_: not config.enforce_eager
    memory.GraphCapturer = lambda device: run_eagerly  # type: ignore[assignment,misc]


if __name__ == "__main__":
    sys.exit(rank_worker.main(prepare=pretend))
