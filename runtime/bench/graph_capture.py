"""Captures a forward as a CUDA graph, and checks its output."""

from __future__ import annotations

from collections.abc import Callable

import torch


@torch.inference_mode()
def capture(forward: Callable[[], torch.Tensor]) -> Callable[[], object]:
    """Captures `forward` as a CUDA graph. Returns its replay, which launches the same kernels without the host.

    Raises:
        RuntimeError: the output of a replay differs from the eager output.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        forward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    eager = forward()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        replayed = forward()
    graph.replay()
    torch.cuda.synchronize()
    if not torch.allclose(eager.float(), replayed.float(), rtol=1e-2, atol=1e-2):
        raise RuntimeError("the outputs of the replayed CUDA graph differ from those of the eager forward")
    return graph.replay
