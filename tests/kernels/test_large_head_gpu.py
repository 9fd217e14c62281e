"""Tests of two-pass attention on the GPU against float64 references, in DiffusionGemma's shape and in odd ones."""

from dataclasses import replace

import pytest
import torch

from runtime.kernels.paged_attention import (
    MAX_WORKSPACE,
    paged_attention,
    paged_attention_reference,
    two_pass_attention,
    use_two_pass,
)
from runtime.layers.kv_pool import LAYOUTS
from tests.kernels.cases import assert_near, attention_case
from tests.kernels.large_head_cases import check_in_two, committing

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
layouts = pytest.mark.parametrize("layout", list(LAYOUTS))
dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])


@dtypes
@layouts
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(16, 2, 512), (7, 1, 512), (4, 2, 128), (8, 1, 64)])
@pytest.mark.parametrize("page_size", [32, 8, 1, 128])
def test_rows_that_see_anything(heads, kv_heads, dim, page_size, layout, dtype):
    runs = [(512, 300), (0, 256), (77, 1), (96, 32)]
    check_in_two(runs, None, heads, kv_heads, dim, page_size, dtype, "cuda", layout)


@dtypes
@layouts
def test_prompts_committed_rows_and_canvases_in_one_launch(layout, dtype):
    runs = [(512, 512), (768, 256), (0, 700), (300, 256), (0, 5), (1000, 77)]
    check_in_two(runs, [256, 0, 700, 0, 5, 77], 16, 2, 512, 32, dtype, "cuda", layout)


@layouts
@pytest.mark.parametrize("limit", [MAX_WORKSPACE, 1 << 26])
def test_a_captured_launch_reads_visible_ends_at_replay(monkeypatch, limit, layout):
    """Captures eight canvases, also with several passes, and replays the graph after visible ends were reduced."""
    monkeypatch.setattr("runtime.kernels.paged_attention.MAX_WORKSPACE", limit)
    monkeypatch.setattr("runtime.kernels.paged_attention.MIN_PROGRAMS", 32)
    q, k, v, batch = attention_case([(512, 256)] * 8, 16, 2, 512, 256, 32, torch.bfloat16, "cuda", layout=layout)
    batch = replace(batch, page_table=torch.nn.functional.pad(batch.page_table, (0, 16)))
    assert use_two_pass(q, 2, batch)
    paged_attention(q, k, v, batch, scale=0.05)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_attention(q, k, v, batch, scale=0.05)
    for seen in (batch, committing(batch, [0, 256, 9, 100, 0, 1, 0, 255])):
        batch.visible_end.copy_(seen.visible_end)
        graph.replay()
        expected = paged_attention_reference(q.double(), k.double(), v.double(), batch, scale=0.05)
        assert_near(out, expected, torch.bfloat16)


def test_launches_do_not_wait_for_the_device():
    q, k, v, batch = attention_case([(64, 256)] * 3, 16, 2, 512, 32, 32, torch.bfloat16, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        two_pass_attention(q, k, v, batch, scale=0.1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
