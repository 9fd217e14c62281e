"""Work on the device recorded once and replayed: a CUDA graph, whose launches cost the host one."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

Work = Callable[[], None]


class GraphRecorder:
    """Records work whose launches and addresses are the same each time. Graphs share their memory: only one runs at a
    time, and none leaves anything there that is read later.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):  # libraries take their scratch for a stream now, outside the pool
            some = torch.ones(16, 16, device=device)
            torch.mm(some, some)
        torch.cuda.synchronize(device)

    def __call__(self, work: Work) -> Work:
        """Does the work once, so that everything is compiled and loaded, and returns its replay."""
        work()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # nothing may be freed while launches are recorded
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


def at_once(work: Work) -> Work:
    """In the place of a recorder where nothing can be recorded: each replay does the work anew."""
    return work
