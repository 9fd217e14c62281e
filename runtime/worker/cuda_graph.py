"""Captures device work as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

Work = Callable[[], None]


class GraphCapturer:
    """Captures work that launches the same kernels on the same addresses each time.

    All graphs share one memory pool. Therefore only one runs at a time, and no result in the pool is read later.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):  # libraries allocate their workspace per stream: here, outside the pool
            some = torch.ones(16, 16, device=device)
            torch.mm(some, some)
        torch.cuda.synchronize(device)

    def __call__(self, work: Work) -> Work:
        """Runs the work once, so that kernels are compiled and loaded; then captures it and returns its replay."""
        work()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # no memory may be freed during capture
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        return graph.replay


def run_eagerly(work: Work) -> Work:
    """Replaces a `GraphCapturer` where capture is impossible: each replay runs the work again."""
    return work
