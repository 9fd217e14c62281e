"""Times a function after warm-up runs."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from runtime.bench.graph_capture import capture


def median(work: Callable[[], object], device: torch.device, args: argparse.Namespace) -> float:
    """Returns median milliseconds of `work` after warm-up runs, by device events on CUDA, else by the host's clock."""
    for _ in range(args.warmup):
        work()
    if device.type != "cuda":
        return _rounded([_clocked(work) for _ in range(args.repeats)])
    times = []
    for _ in range(args.repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return _rounded(times)


def gap_floor(device: torch.device, args: argparse.Namespace) -> float:
    """Returns median milliseconds between a small CUDA graph and the next one, which the host launches after its end.

    No step that waits for results on the host can have a smaller gap before the next one.
    """
    value = torch.zeros(1, device=device)
    replay = capture(lambda: value + 1)
    gaps = []
    for _ in range(args.warmup + args.repeats):
        end, begin = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        replay()
        end.record()
        end.synchronize()
        begin.record()
        replay()
        begin.synchronize()
        gaps.append(end.elapsed_time(begin))
    return _rounded(gaps[args.warmup :])


def _clocked(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def _rounded(times: list[float]) -> float:
    return round(statistics.median(times), 3)
