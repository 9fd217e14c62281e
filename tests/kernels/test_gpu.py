"""Tests of the kernels on the GPU against float64 references, in the shapes of LLaDA2.0-mini and in odd ones."""

import pytest
import torch

from runtime.kernels.moe_router import RoutingConfig
from runtime.kernels.paged_attention import paged_attention
from runtime.layers.kv_pool import LAYOUTS
from tests.kernels import cases, topk_topp_sampling_cases
from tests.kernels.activation_cases import EVERY, check_gate_up_gemm
from tests.kernels.softmax_stats_cases import check_describe, check_hot, check_sure

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
layouts = pytest.mark.parametrize("layout", list(LAYOUTS))
dtypes = pytest.mark.parametrize("dtype", FLOATS.values(), ids=list(FLOATS))
two_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
MINI = RoutingConfig(8, 8, 4, True, 2.5, fused_shared_expert=True)


@dtypes
@pytest.mark.parametrize(("rows", "size"), [(1, 2048), (2048, 2048), (33, 4096), (7, 100)])
def test_norm(rows, size, dtype):
    cases.check_rms_norm(rows, size, dtype, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "size", "ranks"), [(7, 100, 3), (64, 2048, 4), (1000, 4096, 2)])
def test_norm_of_reduced_rows(rows, size, ranks, dtype):
    """The partial results of all ranks are on one device here."""
    cases.check_reduce_add_norm(rows, size, ranks, dtype, "cuda")


@dtypes
@pytest.mark.parametrize("rank", [16, 64])
@pytest.mark.parametrize(
    ("counts", "slots", "inputs", "parts"),
    [
        ([32] * 32, [n % 17 - 1 for n in range(32)], 2048, [3072]),
        ([32, 1, 700, 64], [3, -1, 0, 3], 2048, [2048, 512, 512]),
        ([5, 40], [0, 1], 100, [9, 200]),
    ],
)
def test_lora(counts, slots, inputs, parts, rank, dtype):
    cases.check_lora(counts, slots, inputs, parts, rank, dtype, "cuda")


@dtypes
@pytest.mark.parametrize(("rows", "width"), [(32, 5120), (2048, 512), (3, 1500)])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate(rows, width, activation, dtype):
    cases.check_gate_mul(rows, width, activation, dtype, "cuda")


@dtypes
@pytest.mark.parametrize(
    ("rows", "inputs", "size"),
    [
        (1, 8192, 1000),
        (32, 2048, 2048),
        (120, 5120, 2048),
        (256, 12288, 4096),
        (77, 18944, 3584),
        (256, 8200, 64),
        (257, 8192, 64),
        (40, 100, 36),
    ],
)  # fmt: skip
def test_gemm_and_norm(rows, inputs, size, dtype):
    cases.check_gemm_add_norm(rows, inputs, size, dtype, "cuda")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "inputs", "width"), [(1, 256, 512), (40, 2816, 2112), (300, 1000, 1500)])
@pytest.mark.parametrize("tile", EVERY)
def test_gate_up_gemm(rows, inputs, width, activation, tile, dtype):
    check_gate_up_gemm(rows, inputs, width, activation, tile, dtype, "cuda")


@dtypes
@pytest.mark.parametrize(("rows", "width"), [(7, 4), (60, 512), (200, 12288), (256, 12288)])
def test_gate_up_gemm_as_chosen(rows, width, dtype):
    check_gate_up_gemm(rows, 4096 if width > 4096 else 64, width, "silu", None, dtype, "cuda")


@dtypes
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim", "rotary"),
    [
        (32, 16, 4, 128, 64),
        (4096, 16, 4, 128, 64),
        (65, 32, 4, 128, 64),
        (9, 28, 4, 128, 128),
        (5, 4, 4, 20, 6),
        (300, 96, 8, 128, 128),
        (70, 96, 96, 64, 32),
        (33, 40, 1, 256, 64),
        (1, 1, 1, 512, 512),
    ],
)
@pytest.mark.parametrize("normed", [True, False])
def test_rotary(rows, heads, kv_heads, dim, rotary, dtype, normed):
    cases.check_rotary(rows, heads, kv_heads, dim, rotary, dtype, "cuda", normed)


@dtypes
@pytest.mark.parametrize(("dim", "kv_heads", "pair_stride", "v_from_k"), [(256, 8, 128, False), (512, 2, 256, True)])
def test_rotary_with_normed_values(dim, kv_heads, pair_stride, v_from_k, dtype):
    own = {"pair_stride": pair_stride, "v_norm": True, "v_from_k": v_from_k}
    cases.check_rotary(300, 16, kv_heads, dim, 128 if v_from_k else 256, dtype, "cuda", **own)


@dtypes
@layouts
@pytest.mark.parametrize(("rows", "page_size"), [(32, 32), (4096, 16), (77, 128)])
@pytest.mark.parametrize(("kv_heads", "dim"), [(4, 128), (32, 128), (1, 20), (2, 512)])
def test_kv_write(rows, page_size, kv_heads, dim, layout, dtype):
    cases.check_write_kv(rows, kv_heads, dim, page_size, layout, dtype, "cuda")


@pytest.mark.parametrize("rows", [1, 32, 2048])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("experts", "rule"),
    [(256, MINI), (8, RoutingConfig(2, 4, 2, True, 2.5)), (64, RoutingConfig(6, 1, 1, False, 1.0)),
     (12, RoutingConfig(5, 3, 2, True, 1.5)), (128, RoutingConfig(8, 1, 1, True, 1.0, "softmax")),
     (60, RoutingConfig(4, 1, 1, False, 1.0, "softmax")),
     (64, RoutingConfig(8, 1, 1, False, 1.0, "softmax", bias_in_weights=True)),
     (256, RoutingConfig(8, 1, 1, True, 2.5, capacity=48, block=32))],
)  # fmt: skip
def test_routing(rows, experts, rule, biased):
    cases.check_route(rows, experts, rule, biased, "cuda")


@pytest.mark.parametrize("rows", [1, 32, 300, 2048, 8192])
@pytest.mark.parametrize(("inputs", "experts"), [(2048, 256), (100, 60), (24, 8), (4096, 128)])
def test_router(rows, inputs, experts):
    cases.check_router(rows, inputs, experts, torch.bfloat16, "cuda")


@pytest.mark.parametrize("dead", [0.0, 0.3])
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize(
    ("rows", "experts", "top_k", "tile"),
    [(32, 256, 8, 16), (2048, 256, 8, 64), (8192, 256, 8, 128), (1, 8, 2, 16), (1000, 60, 4, 64), (999, 5, 1, 16)],
)
def test_expert_sort(rows, experts, top_k, tile, crowded, dead):
    cases.check_sort(rows, experts, top_k, tile, crowded, "cuda", dead)


@pytest.mark.parametrize("pairs", [1, 33, 512, 513, 65536])
@pytest.mark.parametrize("expert", [-1, 0, 77, 255])
def test_expert_sort_of_pairs_of_one_expert(pairs, expert):
    cases.check_sorted(torch.full((pairs, 1), expert, dtype=torch.int32, device="cuda"), 256, 64)


@dtypes
def test_experts_with_padding_rows(dtype):
    cases.check_moe(300, 256, 128, 32, 4, True, False, dtype, "cuda", dead=0.4)


@dtypes
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("rows", [1, 32, 512, 2048])
def test_experts(rows, crowded, dtype):
    cases.check_moe(rows, 512, 512, 64, 8, True, crowded, dtype, "cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "experts"), [(150, 1), (1300, 9), (6000, 40)])
def test_experts_with_tail_tiles(monkeypatch, rows, experts, dtype):
    cases.check_moe_with_a_rest(monkeypatch, rows, experts, dtype, "cuda")


@pytest.mark.parametrize("rows", [32, 1024])
def test_experts_in_minis_shape(rows):
    cases.check_moe(rows, 2048, 512, 256, 8, True, False, torch.bfloat16, "cuda")


@dtypes
@pytest.mark.parametrize(("hidden", "width", "experts", "top_k"), [(48, 24, 6, 3), (256, 96, 8, 2), (100, 36, 3, 1)])
def test_experts_of_awkward_sizes(hidden, width, experts, top_k, dtype):
    cases.check_moe(130, hidden, width, experts, top_k, False, False, dtype, "cuda")


@dtypes
@pytest.mark.parametrize("rows", [1, 16, 40, 128, 500])
@pytest.mark.parametrize(
    ("inputs", "vocab", "allowed_ids"), [(2048, 50000, ()), (100, 777, (775, 776)), (24, 1000, (999,))]
)
def test_head(rows, inputs, vocab, allowed_ids, dtype):
    cases.check_argmax(rows, inputs, vocab, vocab - 9, vocab - 7, allowed_ids, dtype, "cuda")


@dtypes
@pytest.mark.parametrize(("rows", "dead"), [(3, 0), (130, 30), (128, 32), (150, 30), (177, 15), (250, 6), (521, 119)])
def test_head_with_padding_rows(rows, dead, dtype):
    cases.check_argmax(rows, 512, 5000, 4991, 4993, (), dtype, "cuda", dead)


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


@pytest.mark.parametrize(("blocks", "size", "columns", "mask_id"), [(2, 32, 8, 9), (65, 32, 8, 0), (33, 256, 6, None)])
def test_threshold_unmask(blocks, size, columns, mask_id):
    cases.check_fill(blocks, size, columns, mask_id, "cuda")


@pytest.mark.parametrize(
    ("rows", "vocab", "mask_id", "max_token_id"),
    [(256, 262144, None, 262143), (300, 157184, 156895, 156894), (7, 600, 5, 590)],
)
@pytest.mark.parametrize("coolest", [0.2, 0.01])
@dtypes
def test_softmax_stats(rows, vocab, mask_id, max_token_id, coolest, dtype):
    check_describe(rows, vocab, mask_id, max_token_id, coolest, dtype, "cuda")


@dtypes
def test_softmax_stats_at_high_temperature(dtype):
    check_hot(64, 262144, dtype, "cuda")


@dtypes
def test_softmax_stats_of_certain_tokens(dtype):
    check_sure(64, 262144, dtype, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "size"), [(1, 64), (300, 2816)])
def test_sandwich(rows, size, dtype):
    cases.check_sandwich(rows, size, dtype, "cuda")


@dtypes
@pytest.mark.parametrize(("rows", "size", "top_k"), [(1, 64, 1), (300, 2816, 8)])
def test_sandwich_norms_of_topk_outputs(rows, size, top_k, dtype):
    cases.check_sandwich_of_choices(rows, size, top_k, dtype, "cuda")


@pytest.mark.parametrize(("rows", "vocab"), [(1, 300), (40, 5000), (24, 157_184)])
@pytest.mark.parametrize("ties", [False, True])
def test_topk_topp_sampling(rows, vocab, ties):
    topk_topp_sampling_cases.check_draw(rows, vocab, ties, "cuda")
