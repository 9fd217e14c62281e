"""Tests of kernel times by kind, from the events of a trace."""

import json

import pytest
import torch

from runtime.bench import kernel_times
from runtime.bench.kernel_times import kind_of, slowest


def event(name, ts, dur, cat="kernel"):
    return {"name": name, "ts": ts, "dur": dur, "cat": cat}


EVENTS = [
    event("_gate_up", 100.0, 10.0), event("cudaGraphLaunch", 90.0, 5.0, "cuda_runtime"),
    event("_reduce_add_norm", 112.0, 8.0), event("barrier_kernel", 115.0, 2.0),  # overlaps the previous kernel
    event("Memcpy DtoH", 130.0, 1.0, "gpu_memcpy"), event("_gate_up", 131.0, 9.0), {"name": "process_name", "ph": "M"},
]  # fmt: skip


def test_times_and_launches_per_step():
    found = kernel_times.kernel_times(EVENTS, 2)
    assert list(found) == ["gate and up of experts", "all-reduce", "copies", "idle"]
    assert found["gate and up of experts"] == {"us": 9.5, "launches": 1.0}
    assert found["all-reduce"] == {"us": 5.0, "launches": 1.0}
    assert found["idle"] == {"us": (2 + 10) / 2, "launches": 0.0}
    assert kernel_times.kernel_times([], 1) == {"idle": {"us": 0.0, "launches": 0.0}}


def test_the_slowest_kernels_are_first():
    assert slowest(EVENTS, 2, count=2) == [("_gate_up", 9.5, 1.0), ("_reduce_add_norm", 4.0, 0.5)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_fused_gate_up", "dense GEMMs"), ("_gate_up", "gate and up of experts"),
        ("_persistent_down", "down of experts"),
        ("ncclDevKernel_AllGather_RING_LL", "other collectives"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING", "all-reduce"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "dense GEMMs"), ("_qk_norm_rope_and_cache", "rotary and cache"),
        ("_partial_argmax", "lm_head and sampling"), ("_merge_split_kv", "attention"), ("elementwise_kernel", "other"),
        ("void c10d::symmetric_memory::two_shot_all_reduce_kernel_inplace<bfloat16, 16, 4>", "all-reduce"),
    ],
)  # fmt: skip
def test_kinds(name, kind):
    assert kind_of(name) == kind


@pytest.mark.gpu
def test_a_trace_has_the_kernels_of_a_replayed_graph():
    from runtime.bench.graph_capture import capture

    x = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    replay = capture(lambda: x @ x)
    found = kernel_times.kernel_times(kernel_times.record(lambda: [replay() for _ in range(3)]), 3)
    assert found["dense GEMMs"]["launches"] == 1.0, json.dumps(found)
    assert found["dense GEMMs"]["us"] > 0
