"""Tests of the kernels on the GPU against float64 references, in the shapes of LLaDA2.0-mini and in odd ones."""

import pytest
import torch

from runtime.kernels.moe_router import RoutingConfig
from runtime.kernels.paged_attention import paged_attention
from runtime.layers.kv_pool import LAYOUTS
from tests.kernels import cases
from tests.kernels.activation_cases import EVERY, check_gate_up_gemm
from tests.kernels.softmax_stats_cases import check_describe, check_hot, check_sure
from tests.kernels.tables import ALL, NO_DTYPE, table
from tests.kernels.topk_topp_sampling_cases import check_draw

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
layouts = pytest.mark.parametrize("layout", list(LAYOUTS))
dtypes = pytest.mark.parametrize("dtype", FLOATS.values(), ids=list(FLOATS))
two_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
MINI = RoutingConfig(8, 8, 4, True, 2.5, fused_shared_expert=True)


PAIR, HALVES = (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16)
ROUTING = [
    (256, MINI), (8, RoutingConfig(2, 4, 2, True, 2.5)), (64, RoutingConfig(6, 1, 1, False, 1.0)),
    (12, RoutingConfig(5, 3, 2, True, 1.5)), (128, RoutingConfig(8, 1, 1, True, 1.0, "softmax")),
    (60, RoutingConfig(4, 1, 1, False, 1.0, "softmax")),
    (64, RoutingConfig(8, 1, 1, False, 1.0, "softmax", bias_in_weights=True)),
    (256, RoutingConfig(8, 1, 1, True, 2.5, capacity=48, block=32)),
]  # fmt: skip
ROTARY = [
    (32, 16, 4, 128, 64), (4096, 16, 4, 128, 64), (65, 32, 4, 128, 64), (9, 28, 4, 128, 128), (5, 4, 4, 20, 6),
    (300, 96, 8, 128, 128), (70, 96, 96, 64, 32), (33, 40, 1, 256, 64), (1, 1, 1, 512, 512),
]  # fmt: skip
LORA = [
    ([32] * 32, [n % 17 - 1 for n in range(32)], 2048, [3072]), ([5, 40], [0, 1], 100, [9, 200]),
    ([32, 1, 700, 64], [3, -1, 0, 3], 2048, [2048, 512, 512]),
]  # fmt: skip
SORTED = [(32, 256, 8, 16), (2048, 256, 8, 64), (8192, 256, 8, 128), (1, 8, 2, 16), (1000, 60, 4, 64), (999, 5, 1, 16)]
HEADS = [(2048, 50000, ()), (100, 777, (775, 776)), (24, 1000, (999,))]
KERNELS = [
    *table("rms_norm", cases.check_rms_norm, ALL, (1, 2048), (2048, 2048), (33, 4096), (7, 100)),
    *table("reduce_add_norm", cases.check_reduce_add_norm, PAIR, (7, 100, 3), (64, 2048, 4), (1000, 4096, 2)),
    *table("lora", cases.check_lora, ALL, *((*case, rank) for rank in (16, 64) for case in LORA)),
    *table("gate", cases.check_gate_mul, ALL, *(
        (*shape, kind) for kind in ("silu", "gelu_tanh") for shape in ((32, 5120), (2048, 512), (3, 1500)))),
    *table("gemm_and_norm", cases.check_gemm_add_norm, ALL, (1, 8192, 1000), (32, 2048, 2048), (120, 5120, 2048),
           (256, 12288, 4096), (77, 18944, 3584), (256, 8200, 64), (257, 8192, 64), (40, 100, 36)),
    *table("gate_up_gemm", check_gate_up_gemm, HALVES, *(
        (*shape, kind, tile) for tile in EVERY for kind in ("silu", "gelu_tanh")
        for shape in ((1, 256, 512), (40, 2816, 2112), (300, 1000, 1500)))),
    *table("gate_up_gemm", check_gate_up_gemm, ALL, (7, 64, 4, "silu", None), (60, 64, 512, "silu", None),
           (200, 4096, 12288, "silu", None), (256, 4096, 12288, "silu", None)),
    *(row for normed in (True, False) for row in table("rotary", cases.check_rotary, ALL, *ROTARY, normed=normed)),
    *table("rotary", cases.check_rotary, ALL, (300, 16, 8, 256, 256), pair_stride=128, v_norm=True),
    *table("rotary", cases.check_rotary, ALL, (300, 16, 2, 512, 128), pair_stride=256, v_norm=True, v_from_k=True),
    *table("kv_write", cases.check_write_kv, ALL, *(
        (rows, *heads, page, layout) for layout in LAYOUTS for heads in ((4, 128), (32, 128), (1, 20), (2, 512))
        for rows, page in ((32, 32), (4096, 16), (77, 128)))),
    *table("routing", cases.check_route, NO_DTYPE, *(
        (rows, *case, biased) for rows in (1, 32, 2048) for case in ROUTING for biased in (False, True))),
    *table("router", cases.check_router, HALVES[:1], *(
        (rows, *shape) for rows in (1, 32, 300, 2048, 8192)
        for shape in ((2048, 256), (100, 60), (24, 8), (4096, 128)))),
    *(row for dead in (0.0, 0.3) for row in table("sort", cases.check_sort, NO_DTYPE, *(
        (*case, crowded) for crowded in (False, True) for case in SORTED), dead=dead)),
    *table("experts with padding rows", cases.check_moe, ALL, (300, 256, 128, 32, 4, True, False), dead=0.4),
    *table("experts", cases.check_moe, ALL, *(
        (rows, 512, 512, 64, 8, True, crowded) for crowded in (False, True) for rows in (1, 32, 512, 2048))),
    *table("experts in mini's shape", cases.check_moe, HALVES[:1], *(
        (rows, 2048, 512, 256, 8, True, False) for rows in (32, 1024))),
    *table("experts of awkward sizes", cases.check_moe, ALL, *(
        (130, *shape, False, False) for shape in ((48, 24, 6, 3), (256, 96, 8, 2), (100, 36, 3, 1)))),
    *table("head", cases.check_argmax, ALL, *(
        (rows, inputs, vocab, vocab - 9, vocab - 7, ids)
        for rows in (1, 16, 40, 128, 500) for inputs, vocab, ids in HEADS)),
    *(row for rows, dead in ((3, 0), (130, 30), (128, 32), (150, 30), (177, 15), (250, 6), (521, 119))
      for row in table("head", cases.check_argmax, ALL, (rows, 512, 5000, 4991, 4993, ()), dead=dead)),
    *table("next_segments", cases.check_next_segments, NO_DTYPE, *((ends,) for ends in (
        ["filled"], ["continues", "edited later", "filled"] * 50, ["eos behind a mask", "finished with masks"],
        ["eos", "filled"], ["ignored eos", "end of the output"], ["filled to the end"] * 3, ["unknown"],
        ["no block", "eos", "no block"], ["continues", "eos in a finished block", "end that may be edited"],
        ["eos that may be edited"], ["no block"] * 2, ["nothing opens", "filled"], ["another opens", "filled"]))),
    *table("uniform_numbers", cases.check_uniform_numbers, NO_DTYPE, (1, 0), (300, 1), (513, 2)),
    *table("segments", cases.check_segments, NO_DTYPE, ([5], 5, 32), ([32, 7, 1], 64, 16), ([300, 1, 2], 310, 256)),
    *table("bitmask_argmax", cases.check_bitmask_argmax, NO_DTYPE, (1, 1000), (9, 70), (64, 157_184)),
    *table("threshold_unmask", cases.check_fill, NO_DTYPE, (2, 32, 8, 9), (65, 32, 8, 0), (33, 256, 6, None)),
    *table("softmax_stats", check_describe, ALL, *(
        (*shape, coolest) for coolest in (0.2, 0.01)
        for shape in ((256, 262144, None, 262143), (300, 157184, 156895, 156894), (7, 600, 5, 590)))),
    *table("softmax_stats_when_hot", check_hot, ALL, (64, 262144)),
    *table("softmax_stats_of_certain_tokens", check_sure, ALL, (64, 262144)),
    *table("sandwich", cases.check_sandwich, PAIR, (1, 64), (300, 2816)),
    *table("sandwich_of_choices", cases.check_sandwich_of_choices, ALL, (1, 64, 1), (300, 2816, 8)),
    *table("topk_topp_sampling", check_draw, NO_DTYPE, *(
        (*shape, ties) for ties in (False, True) for shape in ((1, 300), (40, 5000), (24, 157_184)))),
]  # fmt: skip


@pytest.mark.parametrize(("check", "arguments", "own"), KERNELS)
def test_kernel(check, arguments, own):
    """The partial results of all ranks of `reduce_add_norm` are on one device here."""
    check(*arguments, "cuda", **own)


@pytest.mark.parametrize("pairs", [1, 33, 512, 513, 65536])
@pytest.mark.parametrize("expert", [-1, 0, 77, 255])
def test_expert_sort_of_pairs_of_one_expert(pairs, expert):
    cases.check_sorted(torch.full((pairs, 1), expert, dtype=torch.int32, device="cuda"), 256, 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "experts"), [(150, 1), (1300, 9), (6000, 40)])
def test_experts_with_tail_tiles(monkeypatch, rows, experts, dtype):
    cases.check_moe_with_a_rest(monkeypatch, rows, experts, dtype, "cuda")


@dtypes
@layouts
@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 4), (32, 4), (28, 4), (4, 4), (7, 1)])
def test_attention_decodes_and_prefills_in_one_launch(heads, kv_heads, layout, dtype):
    runs = [(512, 32), (0, 700), (1024, 64), (96, 1), (256, 256), (0, 33)]
    cases.check_attention(runs, heads, kv_heads, 128, 32, 32, None, dtype, "cuda", layout)


@two_dtypes
@layouts
@pytest.mark.parametrize("window", [None, 1, 100, 4096])
@pytest.mark.parametrize(("block_size", "page_size"), [(32, 8), (8, 32), (32, 64), (4, 128), (1, 16), (8, 1)])
def test_attention_blocks_pages_and_windows(block_size, page_size, window, layout, dtype):
    runs = [(320, 64), (0, 300), (64, 5)]
    cases.check_attention(runs, 8, 2, 64, block_size, page_size, window, dtype, "cuda", layout)


@two_dtypes
@layouts
@pytest.mark.parametrize("dim", [16, 20, 80, 256, 512])
def test_attention_head_dims(dim, layout, dtype):
    cases.check_attention([(64, 32), (0, 200)], 4, 2, dim, 32, 32, None, dtype, "cuda", layout)
    cases.check_attention([(300, 256), (0, 700)], 16, 2, dim, 256, 32, 100, dtype, "cuda", layout)


@dtypes
@layouts
@pytest.mark.parametrize("window", [None, 48])
@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 4), (4, 4)])
def test_attention_of_rows_that_see_anything(heads, kv_heads, window, layout, dtype):
    runs = [(512, 300), (0, 256), (77, 1), (96, 32)]
    cases.check_sight(runs, heads, kv_heads, 128, 32, window, dtype, "cuda", layout)


@two_dtypes
@layouts
@pytest.mark.parametrize("window", [1, 2, 65, 200])
def test_attention_of_rows_that_see_nothing_in_the_first_tiles(window, layout, dtype):
    cases.check_attention([(0, 300), (190, 40)], 8, 2, 128, 1, 16, window, dtype, "cuda", layout)


@layouts
@pytest.mark.parametrize("splits", [1, 4])
def test_attention_of_a_row_does_not_depend_on_the_batch(layout, splits):
    q, k, v, batch = cases.attention_case(
        [(512, 32)] * 4 + [(0, 100)], 16, 4, 128, 32, 32, torch.bfloat16, "cuda", layout=layout
    )
    scale = {"scale": 128**-0.5, "splits": splits}
    together = paged_attention(q, k, v, batch, **scale)
    first = cases.make_batch([([0] * 544, 512, 544)], batch.page_table[:1], block_size=32, page_size=32)
    assert torch.equal(paged_attention(q[:32].contiguous(), k, v, first, **scale), together[:32])


def test_launches_do_not_wait_for_the_device():
    """No kernel of a step reads sizes back to the host. With "error", torch raises on host syncs that it detects."""
    q, k, v, batch = cases.attention_case([(64, 32)] * 3, 8, 2, 64, 32, 32, torch.bfloat16, "cuda")
    x = torch.randn(96, 256, device="cuda", dtype=torch.bfloat16)
    ids = cases.random_ids(96, 16, 4, "cuda")
    weights = torch.rand(96, 4, device="cuda")
    gate_up = torch.randn(16, 128, 256, device="cuda", dtype=torch.bfloat16)
    down = torch.randn(16, 256, 64, device="cuda", dtype=torch.bfloat16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        paged_attention(q, k, v, batch, scale=0.1)
        cases.fused_moe.fused_moe(x, ids, weights, gate_up, down, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
