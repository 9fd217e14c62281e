"""Work on the device recorded once and replayed: CUDA graphs, whose launches cost the host one each."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], None]


class Recorder(Protocol):
    def __call__(self, work: Work) -> Work:
        """Do the work once; its replay."""
        ...

    def cut(self) -> None:
        """Called by work: what follows is launched by itself, after what came before it. A device that has begun with
        a short part has something to do while the host launches the rest."""
        ...


class GraphRecorder:
    """Records work whose launches and addresses are the same each time. Graphs share their memory: only one runs at a
    time, and none leaves anything there that is read later, but the parts of one work for each other.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: list[torch.cuda.CUDAGraph] = []  # of the work that is being recorded, the last one open
        with torch.cuda.stream(self._stream):  # libraries take their scratch for a stream now, outside the pool
            some = torch.ones(16, 16, device=device)
            torch.mm(some, some)
        torch.cuda.synchronize(device)

    def __call__(self, work: Work) -> Work:
        """Everything is compiled and loaded when it is recorded."""
        work()
        torch.cuda.synchronize(self.device)
        collecting = gc.isenabled()
        gc.disable()  # nothing may be freed while launches are recorded
        try:
            with torch.cuda.stream(self._stream):
                self._begin()
                try:
                    work()
                finally:
                    self._graphs[-1].capture_end()
            graphs = self._graphs
        finally:
            self._graphs = []
            if collecting:
                gc.enable()

        def replay() -> None:
            for graph in graphs:
                graph.replay()

        return replay

    def cut(self) -> None:
        if self._graphs:
            self._graphs[-1].capture_end()
            self._begin()

    def _begin(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._graphs.append(graph)


class AtOnce:
    """In the place of a recorder where nothing can be recorded: each replay does the work anew."""

    def __call__(self, work: Work) -> Work:
        return work

    def cut(self) -> None:
        return
