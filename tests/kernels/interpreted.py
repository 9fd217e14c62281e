"""Tests of the kernels on small shapes in Triton's interpreter, on the CPU.

Only test_interpreter.py collects this file, in a separate process: the environment variable that selects the
interpreter must be set before the kernels are imported.

All combinations take several minutes more: TRITON_INTERPRET=1 pytest -m "slow or not slow" FILE
"""

from dataclasses import replace
from itertools import product

import pytest
import torch
import triton

from runtime.kernels import common, fused_softmax_stats, weighted_embedding
from runtime.kernels.common import HEADS_TILE
from runtime.kernels.fused_moe import fused_moe, moe_align
from runtime.kernels.fused_moe.fused_moe import run_persistent
from runtime.kernels.fused_moe.moe_align import ONE_LAUNCH_PAIRS
from runtime.kernels.moe_router import RoutingConfig
from runtime.kernels.paged_attention import paged_attention, paged_attention_reference
from runtime.layers.kv_pool import LAYOUTS
from tests.kernels import batch_invariant_cases, cases, in_order, interpreting  # noqa: F401
from tests.kernels.activation_cases import SMALL, check_gate_up_gemm
from tests.kernels.batch_invariant_cases import check_gemm
from tests.kernels.softmax_stats_cases import check_describe, check_hot, check_sure
from tests.kernels.tables import ALL, NO_DTYPE, table
from tests.kernels.topk_topp_sampling_cases import check_draw
from tests.kernels.watch import watch
from tests.kernels.weighted_embedding_cases import check_mean


@pytest.fixture
def watched(monkeypatch):
    return watch(monkeypatch)


layouts = pytest.mark.parametrize("layout", list(LAYOUTS))
# Tests that hardly depend on the layout of the KV cache use one layout; the others have the marker slow.
one_layout = pytest.mark.parametrize(
    "layout", [pytest.param(layout, marks=() if layout == "unified" else pytest.mark.slow) for layout in LAYOUTS]
)
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
dtypes = pytest.mark.parametrize("dtype", FLOATS.values(), ids=list(FLOATS))
# The interpreter's dot product of bfloat16 multiplies raw bits, so GEMMs are checked in the other two dtypes.
DOTS = (torch.float32, torch.float16)
matrix_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
# Plain loads and TMA loads, each in one dtype.
KINDS_OF_LOADS = pytest.mark.parametrize(
    ("described", "dtype"), [(False, torch.float32), (True, torch.float16)], ids=["loads", "boxes"]
)


SMALL_HEADS = [(3, 4, 2, 16, 8), (3, 3, 3, 24, 24), (3, 7, 1, 8, 2), (3, 4, 4, 20, 6)]
ELEMENTWISE = [
    *table("rms_norm", cases.check_rms_norm, ALL, (1, 8), (3, 100)),
    *table("reduce_add_norm", cases.check_reduce_add_norm, ALL, (1, 8, 2), (7, 100, 3)),
    *table("lora", cases.check_lora, DOTS, ([8, 3, 20], [1, -1, 0], 40, [24], 16),
           ([40, 5], [0, 2], 1100, [130, 70, 9], 16), ([300], [0], 32, [16, 16], 16)),
    *table("gate", cases.check_gate_mul, ALL, *product((2,), (1500, 24), ("silu", "gelu_tanh"))),
    *table("gemm", check_gemm, DOTS, (1, 8, 3), (70, 48, 40), (5, 200, 130)),
    *table("gemm_and_norm", cases.check_gemm_add_norm, ALL, (3, 40, 24)),
    *table("gate_up_gemm", check_gate_up_gemm, DOTS, *((*shape, tile) for tile in SMALL for shape in (
        (1, 8, 8, "silu"), (40, 72, 56, "gelu_tanh"), (5, 40, 12, "silu")))),
    *(row for normed, clip in ((True, None), (False, None), (True, 0.5))
      for row in table("rotary", cases.check_rotary, ALL, *SMALL_HEADS, normed=normed, clip=clip)),
    *table("rotary", cases.check_rotary, ALL, (3, 4, 2, 16, 16), v_norm=True),
    *table("rotary", cases.check_rotary, ALL, (3, 4, 2, 16, 4), pair_stride=8, v_norm=True, v_from_k=True),
    *table("rotary", cases.check_rotary, ALL, (3, 4, 2, 24, 6), pair_stride=12),
    *table("rotary", cases.check_rotary, ALL, (3, 4, 2, 20, 6), pair_stride=5, v_from_k=True, clip=0.5),
    *table("kv_write", cases.check_write_kv, ALL, *((11, 3, 20, 4, layout) for layout in LAYOUTS)),
    *table("kv_write", cases.check_write_kv, ALL[2:], *((3, 20, 256, 8, layout) for layout in LAYOUTS)),
    *table("next_segments", cases.check_next_segments, NO_DTYPE, *((ends,) for ends in (
        ["filled"], ["continues", "edited later", "filled"] * 50, ["eos behind a mask", "finished with masks"],
        ["eos", "filled"], ["ignored eos", "end of the output"], ["filled to the end"] * 3, ["unknown"],
        ["no block", "eos", "no block"], ["continues", "eos in a finished block", "end that may be edited"],
        ["eos that may be edited"], ["no block"] * 2, ["nothing opens", "filled"], ["another opens", "filled"]))),
    *table("uniform_numbers", cases.check_uniform_numbers, NO_DTYPE, (1, 0), (300, 1), (513, 2)),
    *table("segments", cases.check_segments, NO_DTYPE, ([5], 5, 32), ([32, 7, 1], 64, 16), ([300, 1, 2], 310, 256)),
    *table("bitmask_argmax", cases.check_bitmask_argmax, NO_DTYPE, (1, 40), (3, 5000)),
    *table("threshold_unmask", cases.check_fill, NO_DTYPE, (1, 8, 3, 9), (33, 32, 7, None), (70, 12, 6, 0)),
    *table("sandwich", cases.check_sandwich, DOTS, (1, 8), (5, 48)),
    *table("sandwich_of_choices", cases.check_sandwich_of_choices, ALL, (1, 8, 1), (5, 48, 3), (4, 40, 8)),
    *table("softmax_stats_when_hot", check_hot, ALL, (3, 300)),
    *table("softmax_stats_of_certain_tokens", check_sure, ALL, (30, 300)),
    *table("topk_topp_sampling", check_draw, NO_DTYPE, *(
        (*shape, ties) for ties in (False, True) for shape in ((12, 17), (9, 300), (7, 5000)))),
]  # fmt: skip


@pytest.mark.parametrize(("check", "arguments", "own"), ELEMENTWISE)
def test_elementwise(check, arguments, own):
    check(*arguments, "cpu", **own)


@matrix_dtypes
@pytest.mark.parametrize(("rows", "ids", "size"), [(1, 9, 8), (70, 300, 40), (150, 130, 136)])
def test_elementwise_soft_embedding(monkeypatch, rows, ids, size, dtype):
    monkeypatch.setattr(weighted_embedding, "SPLIT_SIZE", 128)
    check_mean(rows, ids, size, dtype, "cpu")
    monkeypatch.setattr(weighted_embedding, "SPLIT_SIZE", 16384)
    check_mean(rows, ids, size, dtype, "cpu")


@pytest.mark.parametrize("made", ["means", "heads", "sandwiches", "routers", "gates"])
def test_elementwise_kernels_are_batch_invariant(monkeypatch, made):
    """Checks the kernels that models with self-conditioning use."""
    in_order.patch(monkeypatch)
    monkeypatch.setattr(weighted_embedding, "SPLIT_SIZE", 128)
    monkeypatch.setattr(fused_softmax_stats, "PIECE", 128)
    half, rows = torch.float16, 256 if made == "means" else 64
    arguments = {
        "means": (300, 40, half), "heads": (300, 40, half), "sandwiches": (48, half), "routers": (6,),
        "gates": (24, half),
    }  # fmt: skip
    in_order.check_alike(getattr(batch_invariant_cases, made)(rows, *arguments[made], "cpu"), rows, 3)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "own"),
    [
        (1, 1, 64, {}), (7, 1, 64, {"normed": False}), (96, 8, 64, {}), (96, 96, 64, {"clip": 0.5}),
        (40, 40, 128, {"pair_stride": 64, "v_norm": True}), (96, 1, 128, {"v_from_k": True}),
        (28, 4, 256, {"normed": False, "clip": 0.5}), (33, 3, 200, {"v_norm": True, "v_from_k": True}),
        (16, 2, 512, {"pair_stride": 256, "v_norm": True, "v_from_k": True}),
    ],
)  # fmt: skip
def test_elementwise_rotary_splits_heads_among_programs(watched, heads, kv_heads, dim, own):
    cases.check_rotary(2, heads, kv_heads, dim, dim // 4, torch.float32, "cpu", **own)
    assert watched.widest <= max(HEADS_TILE, triton.next_power_of_2(dim))


ROUTING = [
    (8, RoutingConfig(2, 4, 2, True, 2.5), True),
    (6, RoutingConfig(3, 1, 1, True, 1.0), False),
    (12, RoutingConfig(5, 3, 2, False, 1.5), True),
    (5, RoutingConfig(2, 5, 3, True, 1.0), False),
    (256, RoutingConfig(8, 8, 4, True, 2.5), True),
    (128, RoutingConfig(8, 1, 1, True, 1.0, "softmax"), False),
    (6, RoutingConfig(2, 1, 1, False, 1.0, "softmax"), False),
    (12, RoutingConfig(4, 3, 2, True, 1.5, "softmax"), True),
    (64, RoutingConfig(8, 1, 1, False, 1.0, "softmax", bias_in_weights=True), True),
    (12, RoutingConfig(3, 3, 2, True, 2.0, bias_in_weights=True), True),
    (12, RoutingConfig(2, 1, 1, True, 2.5, capacity=5, block=4), True),
    (6, RoutingConfig(3, 1, 1, True, 1.0, capacity=3, block=3), False),
    (20, RoutingConfig(4, 1, 1, False, 1.0, "softmax", capacity=7, block=8), True),
    (8, RoutingConfig(4, 4, 2, True, 2.5, fused_shared_expert=True), True),
    (12, RoutingConfig(3, 1, 1, False, 1.5, "softmax", capacity=5, block=4, fused_shared_expert=True), False),
]
MOE = [
    *table("routing", cases.check_route, NO_DTYPE, *((10 if case[1].capacity else 4, *case) for case in ROUTING)),
    *table("router", cases.check_router, DOTS[1:], (1, 16, 4), (20, 200, 70), (70, 64, 5), (3, 1100, 64)),
    *table("experts", cases.check_moe, DOTS[1:], (1, 16, 16, 4, 2, False, False), (20, 48, 24, 5, 3, False, False),
           (36, 32, 80, 2, 1, True, False)),
    *table("experts", cases.check_moe, DOTS[:1], (20, 48, 24, 5, 3, True, False), (40, 32, 16, 8, 2, True, True)),
    *table("padding rows", cases.check_moe, DOTS[:1], (40, 32, 16, 8, 3, True, False), (40, 32, 16, 8, 3, False, False),
           dead=0.4),
    *table("gelu", cases.check_moe, DOTS[:1], (20, 32, 24, 4, 2, False, False), activation="gelu_tanh"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "arguments", "own"), MOE)
def test_moe(check, arguments, own):
    check(*arguments, "cpu", **own)


@pytest.mark.parametrize(
    ("crowded", "dead"),
    [(False, 0.0), (True, 0.3), *(pytest.param(*both, marks=pytest.mark.slow) for both in ((True, 0.0), (False, 0.3)))],
)
@pytest.mark.parametrize(
    ("rows", "experts", "top_k", "tile"), [(1, 8, 2, 16), (40, 6, 3, 16), (300, 20, 4, 16), (171, 64, 3, 128)]
)
def test_moe_sort(monkeypatch, rows, experts, top_k, tile, crowded, dead):
    for few in (moe_align.ONE_LAUNCH_PAIRS, 0):
        monkeypatch.setattr(moe_align, "ONE_LAUNCH_PAIRS", few)
        cases.check_sort(rows, experts, top_k, tile, crowded, "cpu", dead)


SIZES = [(few, pairs) for few, last in ((0, 1029), (512, 513)) for pairs in (1, 255, 256, 257, 512, last)]
LARGE = product(
    (0, ONE_LAUNCH_PAIRS), (ONE_LAUNCH_PAIRS - 1, ONE_LAUNCH_PAIRS, ONE_LAUNCH_PAIRS + 1, 2 * ONE_LAUNCH_PAIRS + 5)
)


@pytest.mark.parametrize(("few", "pairs"), [*SIZES, *(pytest.param(*size, marks=pytest.mark.slow) for size in LARGE)])
@pytest.mark.parametrize("experts", [1, 13])
def test_moe_sort_of_pairs_of_one_expert(monkeypatch, pairs, experts, few):
    """Checks that pairs are sorted if one expert or none gets all of them, and if expert ids descend."""
    monkeypatch.setattr(moe_align, "ONE_LAUNCH_PAIRS", few)
    monkeypatch.setattr(moe_align, "CHUNKS_PER_STEP", 4)
    for expert in {-1, 0, experts - 1}:
        cases.check_sorted(torch.full((pairs, 1), expert, dtype=torch.int32), experts, 16)
    falling = (torch.arange(pairs, dtype=torch.int32).flip(0) * experts // pairs)[:, None]
    cases.check_sorted(falling, experts, 32)


@KINDS_OF_LOADS
@pytest.mark.parametrize(
    ("rows", "hidden", "width", "experts", "top_k"),
    [(5, 48, 12, 12, 1), (70, 40, 24, 3, 2), (300, 32, 16, 3, 1), (130, 24, 40, 1, 1)],
)
def test_moe_experts_with_every_tile_height(monkeypatch, rows, hidden, width, experts, top_k, described, dtype):
    monkeypatch.setattr(common, "supports_tma", lambda matrix: described and matrix.stride(0) % 8 == 0)
    cases.check_moe(rows, hidden, width, experts, top_k, True, rows == 70, dtype, "cpu", dead=0.1)


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize(("rows", "hidden", "width", "experts", "top_k"), [(300, 40, 24, 2, 1), (210, 152, 72, 3, 2)])
def test_moe_experts_with_persistent_down_gemm(monkeypatch, rows, hidden, width, experts, top_k, described):
    """Checks the down GEMM with enough pairs that each persistent program processes several tiles."""
    monkeypatch.setattr(moe_align, "ONE_LAUNCH_PAIRS", 0)
    monkeypatch.setattr(common, "supports_tma", lambda matrix: described)
    seen = []
    monkeypatch.setattr(fused_moe, "run_persistent", lambda *args: seen.append(run_persistent(*args)))
    cases.check_moe(rows, hidden, width, experts, top_k, True, False, torch.float16, "cpu", dead=0.1)
    assert seen


@pytest.mark.parametrize(
    ("rows", "experts", "few", "dtype"),
    [
        (140, 1, True, torch.float32), (280, 1, False, torch.float16), (430, 3, True, torch.float16),
        (430, 3, False, torch.float32),
    ],
)  # fmt: skip
def test_moe_experts_with_tail_tiles(monkeypatch, rows, experts, few, dtype):
    if not few:
        monkeypatch.setattr(moe_align, "ONE_LAUNCH_PAIRS", 0)
    for described in (False, True):
        monkeypatch.setattr(common, "supports_tma", lambda matrix, on=described: on and matrix.stride(0) % 8 == 0)
        cases.check_moe_with_a_rest(monkeypatch, rows, experts, dtype, "cpu")


@pytest.mark.parametrize(
    ("rows", "vocab", "mask_id", "max_token_id", "coolest"),
    [(6, 40, None, 39, 0.2), (30, 300, 7, 250, 0.01), (9, 600, 599, 598, 0.2)],
)
@dtypes
def test_elementwise_softmax_stats(monkeypatch, rows, vocab, mask_id, max_token_id, coolest, dtype):
    monkeypatch.setattr(fused_softmax_stats, "PIECE", 64)
    monkeypatch.setattr(fused_softmax_stats, "WRITE_PIECE", 64)
    check_describe(rows, vocab, mask_id, max_token_id, coolest, dtype, "cpu")


@KINDS_OF_LOADS
@pytest.mark.parametrize(
    ("rows", "inputs", "vocab", "mask_id", "max_token_id", "allowed_ids"),
    [(1, 16, 40, 39, 38, ()), (17, 24, 300, 7, 250, (299,)), (70, 40, 129, None, 128, ()), (3, 8, 600, 5, 5, (598, 2))],
)
def test_elementwise_head(monkeypatch, rows, inputs, vocab, mask_id, max_token_id, allowed_ids, described, dtype):
    monkeypatch.setattr(common, "supports_tma", lambda matrix: described)
    cases.check_argmax(rows, inputs, vocab, mask_id, max_token_id, allowed_ids, dtype, "cpu")


@KINDS_OF_LOADS
@pytest.mark.parametrize(("rows", "dead"), [(3, 2), (130, 9), (20, 140), (177, 1), (200, 7), (258, 30)])
def test_elementwise_head_with_padding_rows(monkeypatch, rows, dead, described, dtype):
    """Also covers a program that processes a full tile and the tail, and tiles with padding only."""
    monkeypatch.setattr(common, "supports_tma", lambda matrix: described)
    cases.check_argmax(rows, 24, 300, 7, 250, (299,), dtype, "cpu", dead)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "layout", "dtype"),
    [
        (4, 2, "unified", torch.float32), (2, 2, "distinct", torch.float16), (7, 1, "unified", torch.float16),
        (7, 1, "distinct", torch.float32),
    ],
)  # fmt: skip
def test_attention_groups(heads, kv_heads, layout, dtype):
    cases.check_attention([(8, 4), (0, 9), (3, 1)], heads, kv_heads, 16, 4, 8, None, dtype, "cpu", layout)


@one_layout
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(2, 2, 4), (6, 2, 24), (2, 1, 200), (2, 2, 512)])
def test_attention_head_dims(heads, kv_heads, dim, window, layout):
    cases.check_attention([(37, 8), (0, 20)], heads, kv_heads, dim, 8, 16, window, torch.float32, "cpu", layout)


@one_layout
@pytest.mark.parametrize(
    ("block_size", "page_size", "window"),
    [(8, 4, None), (4, 16, None), (16, 8, 5), (1, 4, None), (4, 1, 1), (8, 4, 33), (32, 32, 40)],
)
def test_attention_pages_and_windows(block_size, page_size, window, layout):
    runs = [(40, 8), (0, 36), (64, 5)]
    cases.check_attention(runs, 2, 1, 20, block_size, page_size, window, torch.float32, "cpu", layout)


@one_layout
@pytest.mark.parametrize("window", [None, 3])
def test_attention_of_rows_that_see_anything(window, layout):
    cases.check_sight([(9, 6), (0, 11), (5, 1)], 2, 1, 16, 4, window, torch.float32, "cpu", layout)


# A KV tile has 32 keys in float32 and 64 in float16. A page holds a part of a tile, one tile, or several.
pages_of_rounds = pytest.mark.parametrize(
    ("page_size", "dtype", "window"),
    [
        (16, torch.float32, None), (32, torch.float32, 104), (48, torch.float16, 104), (64, torch.float16, None),
        (128, torch.float32, None), (128, torch.float16, 104),
    ],
)  # fmt: skip


@one_layout
@pages_of_rounds
def test_attention_with_kv_tiles_smaller_and_larger_than_pages(page_size, window, dtype, layout):
    """Checks KV tiles smaller and larger than a page.

    Each row sees one key more than the row before it. All rows see all keys of the KV tiles in the middle, but only
    some rows see those of the first and the last. Where a page holds two tiles, the window's first tile is its second.
    """
    cases.check_attention([(200, 20)], 2, 1, 16, 1, page_size, window, dtype, "cpu", layout)


@layouts
@pages_of_rounds
def test_attention_in_splits_of_one_length(monkeypatch, page_size, window, dtype, layout):
    """Checks splits of constant length. With a window the first split is empty; in float32 the next begins inside."""
    monkeypatch.setattr("runtime.kernels.paged_attention.SPLIT_SIZE", 64)
    q, k, v, batch = cases.attention_case([(200, 20)], 2, 1, 16, 1, page_size, dtype, "cpu", layout=layout)
    expected = paged_attention_reference(q.double(), k.double(), v.double(), batch, scale=0.25, window=window)
    cases.assert_near(paged_attention(q, k, v, batch, scale=0.25, window=window, batch_invariant=True), expected, dtype)


@one_layout
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(
    ("dim", "page_size", "dtype"), [(200, 8, torch.float32), (200, 32, torch.float16), (512, 16, torch.float16)]
)
def test_attention_of_large_heads_masks_what_some_rows_do_not_see(dim, page_size, dtype, window, layout):
    """Checks KV tiles that some rows do not see in full, and KV tiles of one, two and many pages."""
    cases.check_sight([(70, 40), (150, 30)], 2, 1, dim, page_size, window, dtype, "cpu", layout)
    cases.check_attention([(130, 40)], 2, 1, dim, 40, page_size, window, dtype, "cpu", layout)


@one_layout
@pytest.mark.parametrize("window", [1, 2, 33])
def test_attention_of_rows_that_see_nothing_in_the_first_tiles(window, layout):
    """The first rows of a program see the first KV tile, its last rows only later ones."""
    cases.check_attention([(0, 100)], 2, 1, 16, 1, 16, window, torch.float32, "cpu", layout)


@layouts
@pytest.mark.parametrize(
    ("cached", "window", "first"),
    [(200, 9, 192), (202, 8, 192), (200, 8, 192), (201, 9, 192), (200, 10, 160), (200, 500, 0), (200, None, 0)],
)
def test_attention_reads_only_tiles_that_a_window_reaches(watched, cached, window, first, layout):
    """Checks the keys that are read for a canvas of 8 rows, whose windows begin at its first position."""
    q, k, v, batch = cases.attention_case([(cached, 8)], 2, 1, 16, 8, 16, torch.float32, "cpu", layout=layout)
    batch = replace(batch, window_pos=torch.full((8,), cached))
    watched.clear()
    paged_attention(q, k, v, batch, scale=0.25, window=window)
    memory = torch.arange(k.untyped_storage().nbytes() // 4)
    for cache, exact in ((k, True), (v, layout == "unified")):
        touched, offsets = watched.touched(cache), memory.as_strided(cache.shape, cache.stride())
        read = set()
        for position in range(-(-(cached + 8) // 16) * 16):
            of_token = offsets[int(batch.page_table[0, position // 16]), position % 16].flatten().tolist()
            if touched.intersection(of_token):
                read.add(position)
        end = cached + 8 if exact else -(-(cached + 8) // 16) * 16  # transposed values: all 16 tokens of a page
        assert read == set(range(first, end))
