"""Device time of steps by kind of kernel, from a trace of torch's profiler."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

# Parts of kernel names, by kind. The first kind that matches counts; all others are "other".
KINDS = {
    "all-reduce": ("all_reduce", "AllReduce", "barrier_kernel", "_reduce_add_norm"),
    "other collectives": ("nccl",),
    "norms": ("_rms_norm", "_mlp_norms"),
    "attention": ("_paged_attention", "_merge_split_kv", "_scores", "_values"),
    "rotary and cache": ("_qk_norm_rope_and_cache",),
    "router": ("_router", "_select_experts"),
    "dense GEMMs": ("gemm", "nvjet", "cutlass", "splitK", "_fused_gate_up", "_linear"),
    "gate and up of experts": ("_gate_up",),
    "down of experts": ("_down",),
    "sum of experts": ("_moe_sum",),
    "sort of experts": ("_sort", "_count", "_prefix_sum", "_scatter"),
    "lm_head and sampling": (
        "_argmax",
        "_merge_partials",
        "_unmask",
        "_piece_stats",
        "_merge_pieces",
        "_search",
        "_sample",
    ),
    "copies": ("Memcpy", "Memset", "copy"),
}
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a trace's events on the device


def record(work: Callable[[], object]) -> list[dict[str, Any]]:
    """Runs `work` under torch's profiler. Returns the events of its trace, with times in microseconds."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as made:
        work()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as directory:
        path = Path(directory) / "trace.json"
        made.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def kernel_times(events: Sequence[dict[str, Any]], steps: int) -> dict[str, dict[str, float]]:
    """Returns microseconds and launches per step, by kind of kernel.

    "idle" is the time from the first kernel's start to the last one's end in which none runs.

    Args:
        events: of a trace.
        steps: number of steps in it.
    """
    found: dict[str, dict[str, float]] = {}
    device = sorted((event for event in events if event.get("cat") in DEVICE), key=lambda event: event["ts"])
    idle, end = 0.0, device[0]["ts"] if device else 0.0
    for event in device:
        row = found.setdefault(kind_of(event["name"]), {"us": 0.0, "launches": 0.0})
        row["us"] += event["dur"] / steps
        row["launches"] += 1 / steps
        idle += max(event["ts"] - end, 0.0) / steps
        end = max(end, event["ts"] + event["dur"])
    found = dict(sorted(found.items(), key=lambda item: -item[1]["us"]))
    found["idle"] = {"us": idle, "launches": 0.0}
    return {kind: {name: round(value, 1) for name, value in row.items()} for kind, row in found.items()}


def slowest(events: Sequence[dict[str, Any]], steps: int, count: int = 12) -> list[tuple[str, float, float]]:
    """Returns the kernels that take longest in total: name, microseconds and launches per step."""
    totals: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") in DEVICE:
            total = totals.setdefault(event["name"][:80], [0.0, 0.0])
            total[0] += event["dur"] / steps
            total[1] += 1 / steps
    ordered = sorted(totals.items(), key=lambda item: -item[1][0])[:count]
    return [(name, round(us, 1), round(launches, 1)) for name, (us, launches) in ordered]


def kind_of(name: str) -> str:
    """Returns the kind of a kernel."""
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "other")
