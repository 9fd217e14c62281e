"""Tests of the batch-invariant kernels on the GPU: a row's bits do not depend on the batch size or its position."""

from functools import partial

import pytest
import torch

from runtime.kernels import linear
from runtime.kernels.activation import interleave_gate_up
from runtime.kernels.linear import batch_invariant_gemm, batch_invariant_tile_sizes
from runtime.kernels.moe_router import split_bf16x3
from runtime.kernels.nvfp4 import nvfp4_tile_sizes, run_nvfp4_gemm
from runtime.kernels.nvfp4_gemm import run_linear, select_linear_tile, select_tile
from runtime.kernels.ops import BATCH_INVARIANT_TRITON as FIXED
from runtime.kernels.paged_attention import paged_attention
from runtime.kernels.quantized_tensor import Fp8, quantize_fp8
from tests.kernels import batch_invariant_cases, quantized_cases
from tests.kernels.batch_invariant_cases import check_gemm
from tests.kernels.cases import attention_case, random, random_ids
from tests.kernels.weighted_embedding_cases import check_mean

pytestmark = pytest.mark.gpu  # selected by this marker only, so that a missing device is a failure and no skip
ROWS = 4500
PARTS = [slice(0, 1), slice(9, 41), slice(70, 134), slice(1, 130), slice(3, 515), slice(5, 2053)]
SHAPES = pytest.mark.parametrize(("inputs", "outputs"), [(2048, 3072), (512, 1000), (100, 36)])
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
FEW_BITS = pytest.mark.parametrize("kind", quantized_cases.KINDS)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])


def same(kernel, rows=ROWS):
    """Checks that `kernel` computes the same bits for slices of the rows as for all rows.

    Args:
        kernel: Takes a slice of the rows and returns one tensor or several.
    """
    full = kernel(slice(0, rows))
    for part in PARTS:
        found = kernel(part)
        for one, other in zip(found, full, strict=True) if isinstance(full, tuple) else [(found, full)]:
            assert torch.equal(one, other[part]), (part, int((one != other[part]).sum()))


def made(*shape, dtype=torch.bfloat16, seed=0, scale=1.0):
    return random(*shape, dtype=dtype, device="cuda", seed=seed, scale=scale)


@DTYPES
@SHAPES
def test_gemm(inputs, outputs, dtype):
    check_gemm(77, inputs, outputs, dtype, "cuda")
    x, weight = made(ROWS, inputs, dtype=dtype), made(outputs, inputs, dtype=dtype, seed=1)
    bias = made(outputs, dtype=dtype, seed=2)
    same(lambda part: batch_invariant_gemm(x[part], weight, bias))


@HALVES
def test_all_tiles_give_the_same_bits(dtype):
    x, weight = made(600, 2048, dtype=dtype), made(320, 2048, dtype=dtype, seed=1)
    tiles = {batch_invariant_tile_sizes(rows, 2048, 2) for rows in range(1, 8193)}
    assert len(tiles) > 1
    expected, *others = (batch_invariant_gemm(x, weight, None, torch.float32, tile) for tile in tiles)
    assert all(torch.equal(expected, other) for other in others)


@SHAPES
def test_fp8_gemm(inputs, outputs):
    x, weight = made(ROWS, inputs), quantize_fp8(made(outputs, inputs, seed=1))
    same(lambda part: FIXED.fp8_linear(x[part], weight, None))


@FEW_BITS
@DTYPES
@SHAPES
def test_group_quantized_gemm(inputs, outputs, kind, dtype):
    rows = ROWS if dtype == torch.bfloat16 else 2100
    same(quantized_cases.batch_invariant_linear(rows, inputs, outputs, kind, dtype, "cuda"), rows)


@FEW_BITS
@HALVES
def test_all_group_quantized_tiles_give_the_same_bits(kind, dtype):
    x = made(600, 2048, dtype=dtype)
    weight = quantized_cases.quantized(made(384, 2048, dtype=dtype, seed=1), kind)
    families = [({linear.group_quantized_tile_sizes(rows, weight, 2, batch_invariant=True) for rows in range(1, 8193)},
                 partial(linear.group_quantized_linear, batch_invariant=True))] if kind != "nvfp4" else [
        ({nvfp4_tile_sizes(rows, 2, batch_invariant=True) for rows in range(1, 8193)}, run_nvfp4_gemm),
        ({select(rows, 2048, outputs) for rows in (16, 32, 64, 128) for outputs in (320, 384)
          for select in (select_tile, select_linear_tile)}, run_linear),
    ]  # fmt: skip
    for tiles, kernel in families:
        assert len(tiles) > 1
        expected, *others = (kernel(x, weight, None, tile=tile) for tile in tiles)
        assert all(torch.equal(expected, other) for other in others)


@FEW_BITS
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize(("experts", "hidden", "width"), [(32, 2048, 512), (9, 100, 36), (6, 64, 24), (300, 64, 12)])
def test_group_quantized_experts(experts, hidden, width, kind, crowded):
    """Slices with few and with many rows give few and many pairs per expert."""
    same(
        quantized_cases.batch_invariant_moe(
            ROWS, hidden, width, experts, 4, kind, torch.bfloat16, "cuda", crowded=crowded
        )
    )


@FEW_BITS
def test_group_quantized_experts_in_float32(kind):
    same(quantized_cases.batch_invariant_moe(2100, 100, 36, 9, 4, kind, torch.float32, "cuda"), 2100)


@pytest.mark.parametrize(("experts", "hidden", "width"), [(32, 2048, 512), (9, 100, 36), (4, 64, 24)])
@pytest.mark.parametrize("kind", ["bfloat16", "float32", "fp8"])
@pytest.mark.parametrize(("crowded", "activation"), [(False, "silu"), (True, "silu"), (False, "gelu_tanh")])
def test_experts(experts, hidden, width, kind, crowded, activation):
    dtype, rows = (torch.float32, 2100) if kind == "float32" else (torch.bfloat16, ROWS)
    x, ids = made(rows, hidden, dtype=dtype), random_ids(rows, experts, 4, "cuda", crowded=crowded)
    weights, residual = made(rows, 4, dtype=torch.float32, seed=2).sigmoid(), made(rows, hidden, dtype=dtype, seed=3)
    gate_up = interleave_gate_up(made(experts, 2 * width, hidden, dtype=dtype, seed=4, scale=0.1))
    down = made(experts, hidden, width, dtype=dtype, seed=5, scale=0.1)
    norm, kernels = made(hidden, dtype=dtype, seed=6), FIXED
    if kind == "fp8":
        gate_up, down = (
            Fp8(*map(torch.stack, zip(*((q.values, q.scales) for q in map(quantize_fp8, w)), strict=True)))
            for w in (gate_up, down)
        )
        kernels = FIXED.for_quantization("fp8")
    same(lambda part: kernels.moe(x[part], ids[part], weights[part], gate_up, down, residual[part], activation), rows)
    same(
        lambda part: kernels.moe_add_norm(
            x[part], ids[part], weights[part], gate_up, down, None, residual[part], norm, 1e-6
        ),
        rows,
    )


@pytest.mark.parametrize(("experts", "inputs"), [(256, 2048), (6, 100)])
def test_router(experts, inputs):
    weight, x = made(experts, inputs, dtype=torch.float32, seed=1, scale=0.1), made(ROWS, inputs)
    parts, factor = split_bf16x3(weight), made(ROWS, dtype=torch.float32, seed=2)

    for states, times in ((x, None), (x.float() * 1.1, None), (x, factor)):

        def scores(part, states=states, times=times):
            splits = FIXED.router_logits(states[part], parts, None if times is None else times[part])
            return tuple(splits.unbind(0))

        same(scores)
    same(lambda part: FIXED.router_logits(x[part], weight))
    same(lambda part: FIXED.router_logits(x[part], weight, factor[part]))


@DTYPES
@pytest.mark.parametrize(("vocab", "inputs"), [(20_000, 2048), (333, 100)])
def test_head(vocab, inputs, dtype):
    hidden, weight = made(2100, inputs, dtype=dtype), made(vocab, inputs, dtype=dtype, seed=1, scale=0.05)
    same(lambda part: FIXED.lm_head_argmax(hidden[part], weight, mask_id=vocab - 1, max_token_id=vocab - 3), 2100)


@DTYPES
@pytest.mark.parametrize(("ids", "size"), [(40_000, 2816), (224, 64), (333, 100)])
def test_soft_embeddings(ids, size, dtype):
    for rows in (1, 50, 257):
        check_mean(rows, ids, size, dtype, "cuda")
    same(batch_invariant_cases.means(600, ids, size, dtype, "cuda"), 600)


@DTYPES
@pytest.mark.parametrize(("vocab", "size"), [(20_000, 2816), (224, 64)])
def test_head_with_softmax_stats(vocab, size, dtype):
    same(batch_invariant_cases.heads(600, vocab, size, dtype, "cuda"), 600)


@DTYPES
@pytest.mark.parametrize("size", [2816, 64])
def test_sandwich_norms(size, dtype):
    same(batch_invariant_cases.sandwiches(ROWS, size, dtype, "cuda"))


@pytest.mark.parametrize("experts", [128, 4])
def test_expert_selection(experts):
    same(batch_invariant_cases.routers(ROWS, experts, "cuda"))


@DTYPES
@pytest.mark.parametrize("width", [2112, 96])
def test_gates(width, dtype):
    same(batch_invariant_cases.gates(ROWS, width, dtype, "cuda"))


@DTYPES
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(16, 4, 128), (8, 8, 128), (8, 2, 256), (16, 2, 512), (4, 2, 16), (4, 1, 32)]
)
@pytest.mark.parametrize("window", [None, 200])
def test_attention(heads, kv_heads, dim, grouped, dtype, window):
    """Compares requests in one batch with chunks of each request alone, in query tiles of other sizes."""
    runs = [(512, 32), (0, 544), (96, 64), (1024, 1), (64, 300)]
    q, k, v, batch = attention_case(runs, heads, kv_heads, dim, 32, 32, dtype, "cuda", 1)
    attend = partial(paged_attention, scale=0.1, window=window, grouped=grouped, batch_invariant=True)
    full, row = attend(q, k, v, batch), 0
    for request, (cached, new) in enumerate(runs):
        for first in range(0, new, 32):
            rows = slice(row + first, row + min(first + 32, new))
            count, pages = rows.stop - rows.start, -(-(cached + new) // 32)
            own = {name: getattr(batch, name)[rows] for name in ("tokens", "positions", "slots", "visible_end")}
            own |= {name: getattr(batch, name)[rows] for name in ("window_pos", "is_editable")}
            tiles = torch.tensor([[0, 0, count]], dtype=torch.int32, device="cuda")
            piece = type(batch)(
                **own, query_tiles=tiles, page_table=batch.page_table[request : request + 1, :pages],
                page_size=batch.page_size, tile_rows=count, max_seq_len=cached + new,
            )  # fmt: skip
            assert torch.equal(attend(q[rows].contiguous(), k, v, piece), full[rows]), (request, first)
        row += new
