"""Compares each kernel with its reference on random inputs.

The interpreter (small shapes, CPU) and the GPU suite (realistic shapes) share these checks. References run in float64,
on inputs rounded to the kernel's dtype.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from runtime.kernels.activation import Activation, act_and_mul, act_and_mul_reference, interleave_gate_up
from runtime.kernels.bitmask_argmax import bitmask_argmax, bitmask_argmax_reference
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.fused_argmax import lm_head_argmax, lm_head_argmax_reference
from runtime.kernels.fused_moe import fused_moe, tile_config
from runtime.kernels.fused_moe.fused_moe import (
    TopKOutputs,
    fused_moe_add_norm,
    moe_reference,
    moe_sum,
    moe_sum_reference,
)
from runtime.kernels.fused_moe.moe_align import moe_align_block_size, moe_align_block_size_reference
from runtime.kernels.fused_moe.tile_config import FusedMoEConfig, GemmConfig, clamp_to_shape
from runtime.kernels.layernorm import (
    add_rms_norm,
    add_rms_norm_reference,
    gemm_add_norm,
    gemm_add_norm_reference,
    post_mlp_norms,
    post_mlp_norms_reference,
    pre_mlp_norms,
    pre_mlp_norms_reference,
    reduce_add_norm,
    rms_norm,
    rms_norm_reference,
)
from runtime.kernels.lora import LoRABatch, add_lora, add_lora_reference
from runtime.kernels.moe_router import (
    RoutingConfig,
    router_logits,
    select_experts,
    select_experts_reference,
    split_bf16x3,
)
from runtime.kernels.next_segments import (
    CHOSEN_ROWS,
    CONTINUES,
    FINAL,
    HEADER,
    LEFT,
    NO_BLOCK,
    UNKNOWN,
    BlockCounters,
    BlockEnd,
    Offer,
    choose_segments,
    choose_segments_reference,
)
from runtime.kernels.paged_attention import paged_attention, paged_attention_reference
from runtime.kernels.rotary_and_cache import (
    QKNormRopeConfig,
    qk_norm_rope_and_cache,
    qk_norm_rope_and_cache_reference,
    qk_norm_rope_reference,
    write_kv_reference,
)
from runtime.kernels.segments import (
    COUNT,
    FIELDS,
    PADDING,
    REMAINDER,
    SLOT,
    RowTables,
    Segment,
    expand_segments,
    expand_segments_reference,
)
from runtime.kernels.uniform_numbers import uniform_numbers, uniform_numbers_reference
from runtime.kernels.unmask import BlockInputs, SampledRows, threshold_unmask, threshold_unmask_reference
from runtime.layers.kv_pool import LAYOUTS, KVShape, LayerKV
from tests.models.paged import make_batch, page_tables
from tests.tiles import make_query_tiles

# Largest ||out - ref|| / ||ref|| that rounding of the result, and of a kernel's intermediate values, can explain.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def random(*shape: int, dtype: torch.dtype, device: str, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(dtype).to(device)


def assert_near(out: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype, slack: float = 1.0) -> None:
    assert out.dtype == dtype
    assert out.shape == reference.shape
    assert torch.isfinite(out).all()
    error = (out.double() - reference.double()).norm() / reference.double().norm()
    assert error < TOLERANCE[dtype] * slack, f"relative error {error:.2e}"


def check_rms_norm(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    x, residual = (random(rows, size, dtype=dtype, device=device, seed=s) for s in (1, 2))
    weight = 1 + random(size, dtype=dtype, device=device, seed=3, scale=0.2)
    assert_near(rms_norm(x, weight, 1e-6), rms_norm_reference(x.double(), weight.double(), 1e-6), dtype)
    assert_near(rms_norm(x, None, 1e-6), rms_norm_reference(x.double(), None, 1e-6), dtype)
    out, total = add_rms_norm(x, residual, weight, 1e-6)
    _, expected_total = add_rms_norm_reference(x.double(), residual.double(), weight.double(), 1e-6)
    assert_near(total, expected_total, dtype)
    assert_near(out, rms_norm_reference(total.double(), weight.double(), 1e-6), dtype)
    splits = random(3, rows, size, dtype=torch.float32, device=device, seed=4)
    out, total = add_rms_norm(splits, residual, weight, 1e-6)
    assert_near(total, splits.double().sum(0) + residual.double(), dtype)
    assert_near(out, rms_norm_reference(total.double(), weight.double(), 1e-6), dtype)


def check_reduce_add_norm(rows: int, size: int, ranks: int, dtype: torch.dtype, device: str) -> None:
    """Checks `reduce_add_norm` on all rows and on one; rows outside the range are neither read nor written."""
    partial = random(ranks, rows, size, dtype=dtype, device=device, seed=1)
    residual = random(rows, size, dtype=dtype, device=device, seed=2)
    weight = 1 + random(size, dtype=dtype, device=device, seed=3, scale=0.2)
    for first, end, norm in ((0, rows, weight), (rows // 3, rows // 3 + 1, None)):
        inputs = partial.clone()
        known, total = (torch.full_like(residual, float("nan")) for _ in range(2))
        known[first:end] = residual[first:end]
        reduce_add_norm(inputs.unbind(), slice(first, end), known, norm, 1e-6, total)
        expected = partial.double().sum(0) + residual.double()
        assert_near(total[first:end], expected[first:end], dtype)
        normed = rms_norm_reference(total[first:end].double(), None if norm is None else norm.double(), 1e-6)
        assert_near(inputs[0, first:end], normed, dtype)
        assert (inputs[:, first:end] == inputs[0, first:end]).all()
        for others in (slice(0, first), slice(end, rows)):
            assert torch.equal(inputs[:, others], partial[:, others])
            assert torch.isnan(total[others]).all()


def check_gemm_add_norm(rows: int, inputs: int, size: int, dtype: torch.dtype, device: str) -> None:
    x, weight = (random(n, inputs, dtype=dtype, device=device, seed=s) for n, s in ((rows, 1), (size, 2)))
    residual = random(rows, size, dtype=dtype, device=device, seed=3, scale=inputs**0.5)
    norm = 1 + random(size, dtype=dtype, device=device, seed=4, scale=0.2)
    arguments = x, weight, residual, norm
    expected = gemm_add_norm_reference(*(each.double() for each in arguments), 1e-6)
    for made, reference in zip(gemm_add_norm(*arguments, 1e-6), expected, strict=True):
        assert_near(made, reference, dtype)


def check_gate_mul(rows: int, width: int, activation: Activation, dtype: torch.dtype, device: str) -> None:
    x = random(rows, 2 * width, dtype=dtype, device=device, seed=4, scale=3.0)
    assert_near(act_and_mul(x, activation), act_and_mul_reference(x.double(), activation), dtype)


def check_rotary(
    rows: int, heads: int, kv_heads: int, dim: int, rotary: int, dtype: torch.dtype, device: str, normed: bool = True,
    clip: float | None = None, pair_stride: int | None = None, v_norm: bool = False, v_from_k: bool = False,
) -> None:  # fmt: skip
    qkv = random(rows, (heads + (1 if v_from_k else 2) * kv_heads) * dim, dtype=dtype, device=device, seed=5)
    weights = [1 + random(dim, dtype=dtype, device=device, seed=s, scale=0.2) if normed else None for s in (6, 7)]
    positions = torch.randint(0, 900, (rows,), generator=torch.Generator().manual_seed(8)).to(device)
    angles = torch.outer(torch.arange(900.0), 10000.0 ** (-torch.arange(0, rotary, 2) / rotary))
    table = torch.cat([angles.cos(), angles.sin()], dim=-1).to(device)
    wide = [None if w is None else w.double() for w in weights]
    config = QKNormRopeConfig(heads, kv_heads, 1e-6, clip, pair_stride, v_norm, v_from_k)
    expected = qk_norm_rope_reference(qkv.double(), positions, table.double(), *wide, config)
    k, v = qkv.new_empty(rows, 1, kv_heads, 1, dim), qkv.new_empty(rows, 1, kv_heads, dim)  # pages of one row
    q = qk_norm_rope_and_cache(qkv, positions, table, *weights, config, torch.arange(rows, device=device), k, v)
    got = (q, k[:, 0, :, 0], v[:, 0])
    for out, reference in zip(got, expected, strict=True):
        assert_near(out, reference, dtype)
    if clip is not None:
        assert got[2].abs().max() <= clip < qkv.abs().max(), "no value was clipped"
    elif not v_norm:
        assert torch.equal(got[2].double(), expected[2])


def check_write_kv(
    rows: int, kv_heads: int, dim: int, page_size: int, layout: str, dtype: torch.dtype, device: str
) -> None:
    pages = -(-rows // page_size) + 2
    slots = torch.randperm(pages * page_size, generator=torch.Generator().manual_seed(9))[:rows].to(device)
    slots[rows // 2] = -1  # a padding row
    qkv = random(rows, 3 * kv_heads * dim, dtype=dtype, device=device, seed=10)
    table = torch.tensor([[1.0, 0.0]], device=device)  # no rotation: the stored bits are known exactly
    got, expected = (layer_of(layout, pages, page_size, kv_heads, dim, -7.0, dtype, device) for _ in range(2))
    config = QKNormRopeConfig(kv_heads, kv_heads, 1e-6)
    for store, kv in ((qk_norm_rope_and_cache, got), (qk_norm_rope_and_cache_reference, expected)):
        q = store(qkv.clone(), torch.zeros_like(slots), table, None, None, config, slots, kv.k, kv.v)
        assert torch.equal(q.flatten(1), qkv[:, : kv_heads * dim])
    for ours, theirs in zip(got, expected, strict=True):
        ours, theirs = ours.flatten(3)[..., :dim], theirs.flatten(3)[..., :dim]
        assert torch.equal(ours, theirs)
        assert int((ours != -7.0).sum()) == (rows - 1) * kv_heads * dim


def check_route(rows: int, experts: int, rule: RoutingConfig, biased: bool, device: str) -> None:
    logits = random(rows, experts, dtype=torch.float32, device=device, seed=12, scale=2.0)
    bias = random(experts, dtype=torch.float32, device=device, seed=13, scale=0.3) if biased else None
    first = None
    if rule.capacity:  # full blocks, then a shorter one, as at the end of a sequence
        first = torch.arange(rows, device=device) // rule.block * rule.block
    if rows % 2 == 0:  # partial sums, as the split-K router GEMM returns them
        splits = random(3, rows, experts, dtype=torch.float32, device=device, seed=11)
        logits = torch.cat([splits, (logits - splits.sum(0))[None]])
    ids, weights = select_experts(logits, bias, rule, first)
    # Sums the splits in order: another order may resolve near ties differently.
    summed = logits if logits.dim() == 2 else ((logits[0] + logits[1]) + logits[2]) + logits[3]
    expected_ids, expected = select_experts_reference(summed, bias, rule, first)
    assert ids.dtype == torch.int32
    # Two sigmoids may round a near tie differently. That is allowed in 1 of 500 rows.
    same = (ids == expected_ids).all(dim=1)
    assert int((~same).sum()) <= rows // 500
    torch.testing.assert_close(weights[same], expected[same], rtol=5e-6, atol=1e-7)


def check_router(rows: int, inputs: int, experts: int, dtype: torch.dtype, device: str) -> None:
    """Checks that router logits are about as accurate as float32, although the matrix units take 16-bit splits."""
    x = random(rows, inputs, dtype=dtype, device=device, seed=40)
    weight = random(experts, inputs, dtype=torch.float32, device=device, seed=41, scale=inputs**-0.5)
    parts = split_bf16x3(weight, dtype)
    if dtype == torch.bfloat16:
        assert torch.equal(parts[0].float() + (parts[1].float() + parts[2].float()), weight)
    expected = x.double() @ weight.double().T
    wide = x.float() + random(rows, inputs, dtype=torch.float32, device=device, seed=42, scale=1e-3)
    factor = 0.1 + random(rows, dtype=torch.float32, device=device, seed=43).abs()
    for states, scores in ((x, expected), (wide, wide.double() @ weight.double().T)):
        for times in (None, factor):
            scaled = scores if times is None else scores * times.double()[:, None]
            got = router_logits(states, parts, times)
            assert got.shape[1:] == scores.shape
            assert (got.sum(0).double() - scaled).norm() / scaled.norm() < 2e-6
    torch.testing.assert_close(router_logits(x, weight).double(), expected, rtol=1e-4, atol=1e-5)
    own = router_logits(x, weight, factor, batch_invariant=True)
    torch.testing.assert_close(own.double(), expected * factor.double()[:, None], rtol=1e-4, atol=1e-5)


def random_ids(
    rows: int, experts: int, top_k: int, device: str, crowded: bool = False, dead: float = 0.0
) -> torch.Tensor:
    """Returns distinct random expert ids per row.

    Args:
        crowded: A few experts get nearly all rows, many get none.
        dead: Fraction of padding rows, and of padding (-1) among the ids of the other rows.
    """
    generator = torch.Generator().manual_seed(14)
    ranks = torch.rand(rows, experts, generator=generator)
    if crowded:
        ranks[:, :top_k] += 0.95
    ids = ranks.topk(top_k, dim=-1).indices.int()
    for shape in ((rows, 1), (rows, top_k)):
        ids = ids.masked_fill(torch.rand(shape, generator=generator) < dead, -1)
    return ids.to(device)


def check_sort(rows: int, experts: int, top_k: int, tile: int, crowded: bool, device: str, dead: float = 0.0) -> None:
    check_sorted(random_ids(rows, experts, top_k, device, crowded, dead), experts, tile)


def check_sorted(ids: torch.Tensor, experts: int, tile: int) -> None:
    got = moe_align_block_size(ids, experts, tile)
    expected = moe_align_block_size_reference(ids, experts, tile, gaps=got.gaps)
    alive = int((ids >= 0).sum())
    assert got.order.shape == expected.order.shape
    assert torch.equal(got.order[:alive], expected.order[:alive])
    assert torch.equal(got.tiles, expected.tiles)


def check_moe(
    rows: int, hidden: int, width: int, experts: int, top_k: int, shared: bool, crowded: bool,
    dtype: torch.dtype, device: str, activation: Activation = "silu", dead: float = 0.0,
) -> None:  # fmt: skip
    x = random(rows, hidden, dtype=dtype, device=device, seed=15)
    gate_up = random(experts, 2 * width, hidden, dtype=dtype, device=device, seed=16, scale=hidden**-0.5)
    down = random(experts, hidden, width, dtype=dtype, device=device, seed=17, scale=width**-0.5)
    extra = random(rows, hidden, dtype=dtype, device=device, seed=18) if shared else None
    weights = torch.rand(rows, top_k, generator=torch.Generator().manual_seed(19)).to(device)
    ids = random_ids(rows, experts, top_k, device, crowded, dead)
    interleaved = interleave_gate_up(gate_up)
    out = fused_moe.fused_moe(x, ids, weights, interleaved, down, extra, activation)
    reference = moe_reference(
        x.double(), ids, weights.double(), gate_up.double(), down.double(), None if extra is None else extra.double(),
        activation,
    )  # fmt: skip
    assert_near(out, reference, dtype)
    if activation == "silu":
        residual = random(rows, hidden, dtype=dtype, device=device, seed=42)
        norm = 1 + random(hidden, dtype=dtype, device=device, seed=43, scale=0.2)
        for weight in (norm, None):
            normed, total = fused_moe_add_norm(x, ids, weights, interleaved, down, extra, residual, weight, 1e-6)
            assert_near(total, reference + residual.double(), dtype)
            wide = None if weight is None else weight.double()
            assert_near(normed, rms_norm_reference(total.double(), wide, 1e-6), dtype)
    if device != "cpu":
        assert torch.equal(out, fused_moe.fused_moe(x, ids, weights, interleaved, down, extra, activation)), (
            "two runs return different bits"
        )


def check_moe_with_a_rest(monkeypatch, rows: int, experts: int, dtype: torch.dtype, device: str) -> None:
    """Checks experts with a few more pairs than full tiles, with the weights as the first operand for any number."""
    sides = 40, 24
    gemms = GemmConfig(64, 64, (4, 3, 3), 4), GemmConfig(128, 64, (5, 4, 3), 4)
    how = FusedMoEConfig(128, clamp_to_shape(gemms[0], sides[1], sides[0]), clamp_to_shape(gemms[1], *sides))
    monkeypatch.setattr(tile_config, "get_config", lambda *args: how)
    check_moe(rows, *sides, experts, 1, False, False, dtype, device, dead=0.05)


def check_argmax(
    rows: int, inputs: int, vocab: int, mask_id: int | None, max_token_id: int, allowed_ids: tuple[int, ...],
    dtype: torch.dtype, device: str, dead: int | None = None,
) -> None:  # fmt: skip
    """Compares `lm_head_argmax` with its float64 reference.

    Args:
        dead: Number of padding rows that follow; the kernel gets `num_valid`. None: no padding and no `num_valid`.
    """
    hidden = random(rows, inputs, dtype=dtype, device=device, seed=30)
    weight = random(vocab, inputs, dtype=dtype, device=device, seed=31, scale=3 * inputs**-0.5)
    signs = random(inputs, dtype=dtype, device=device, seed=32).sign() * 3  # sums are exact in any order
    weight[vocab // 2] = weight[vocab // 3] = signs  # ties: the lowest id wins
    weight[vocab - 1] = weight[1] * 2
    for token in (mask_id, vocab - 1):
        if token is not None:
            hidden[token % rows] = weight[token]  # a forbidden token would be the argmax
    hidden[0] = signs
    own = {"mask_id": mask_id, "max_token_id": max_token_id, "allowed_ids": allowed_ids}
    if dead is None:
        token, conf, logit = lm_head_argmax(hidden, weight, **own)
    else:
        live = torch.tensor([rows], dtype=torch.int32, device=device)
        found = lm_head_argmax(torch.cat([hidden, hidden.new_zeros(dead, inputs)]), weight, **own, num_valid=live)
        assert not found.token[rows:].any()
        assert (found.conf[rows:] == 1).all()
        token, conf, logit = (each[:rows] for each in found)
    expected, sure, peak = lm_head_argmax_reference(hidden.double(), weight.double(), **own)
    assert (token.dtype, conf.dtype) == (torch.int64, torch.float32)
    logits = hidden.double() @ weight.double().T
    chosen, best = (logits.gather(1, each[:, None])[:, 0] for each in (token, expected))
    torch.testing.assert_close(chosen, best, rtol=1e-6, atol=2e-5)  # either token of a near tie is accepted
    assert token[0] == expected[0]
    twin = (token == vocab // 2) & (expected == vocab // 3)  # a tie whose sums may be rounded in different orders
    same = (token == expected) | twin
    assert int((~same).sum()) <= rows // 100
    torch.testing.assert_close(conf[same].double(), sure[same], rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(logit.double(), peak, rtol=1e-5, atol=2e-5)


def layer_of(
    layout: str, pages: int, page_size: int, kv_heads: int, dim: int, value: float, dtype: torch.dtype, device: str
) -> LayerKV:
    """Returns a layer's KV pages, filled with `value`."""
    shape = KVShape(kv_heads, dim, dim)
    pool = LAYOUTS[layout]([shape], num_pages=pages, page_size=page_size, dtype=dtype, device=device)
    for tensor in pool.tensors:
        tensor.fill_(value)
    return pool.layer(0)


def attention_case(
    runs: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, block_size: int, page_size: int,
    dtype: torch.dtype, device: str, seed: int = 20, layout: str = "unified",
):  # fmt: skip
    """Returns queries, K and V pages, and the batch.

    Args:
        runs: (cached rows, new rows) of each sequence. K/V slots outside these sequences hold NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    tables, pages = page_tables([c + n for c, n in runs], page_size, generator)
    batch = make_batch(
        [([0] * (c + n), c, c + n) for c, n in runs], tables.to(device), block_size=block_size, page_size=page_size
    )
    kv = layer_of(layout, pages, page_size, kv_heads, dim, float("nan"), dtype, device)
    for table, (cached, new) in zip(tables, runs, strict=True):
        at = torch.arange(cached + new)
        slots = (table[at // page_size].long() * page_size + at % page_size).to(device)
        new_k, new_v = (torch.randn(len(at), kv_heads, dim, generator=generator).to(dtype) for _ in range(2))
        write_kv_reference(new_k.to(device), new_v.to(device), slots, *kv)
    q = (torch.randn(len(batch.tokens), heads, dim, generator=generator) * 1.5).to(dtype).to(device)
    return q, *kv, batch


def with_any_sight(batch: ForwardBatch, ends: list[int], seed: int = 21) -> ForwardBatch:
    """Returns the batch with random visible ends and window positions. `ends` bounds the visible ends of each request.

    Padding follows: two rows and an empty query tile.
    """
    generator = torch.Generator().manual_seed(seed)
    device, rows = batch.tokens.device, len(batch.tokens)
    request = torch.repeat_interleave(batch.query_tiles[:, 0].long(), batch.query_tiles[:, 2].long()).cpu()
    fraction = torch.rand(2, rows, generator=generator)
    positions = batch.positions.cpu()
    visible_end = positions + 1 + ((torch.tensor(ends)[request] - positions) * fraction[0]).long()
    origin = ((positions + 1) * fraction[1]).long()

    def longer(values: torch.Tensor, dead: int) -> torch.Tensor:
        return torch.cat([values.to(device), torch.full((2,), dead, dtype=values.dtype, device=device)])

    return replace(
        batch, tokens=longer(batch.tokens, 0), positions=longer(batch.positions, 0), slots=longer(batch.slots, -1),
        visible_end=longer(visible_end.clamp(max=torch.tensor(ends)[request]).int(), 0), window_pos=longer(origin, 0),
        is_editable=longer(batch.is_editable, 0),
        query_tiles=torch.cat([batch.query_tiles, torch.zeros(1, 3, dtype=torch.int32, device=device)]),
    )  # fmt: skip


def check_sight(
    runs: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, page_size: int, window: int | None,
    dtype: torch.dtype, device: str, layout: str = "unified",
) -> None:  # fmt: skip
    """Checks attention with arbitrary visible ends and window positions (causal, canvas, windowed), and padding."""
    q, k, v, batch = attention_case(runs, heads, kv_heads, dim, 1, page_size, dtype, device, layout=layout)
    rows = len(q)
    batch = with_any_sight(batch, [cached + new for cached, new in runs])
    q = torch.cat([q, torch.full_like(q[:2], float("nan"))])
    expected = paged_attention_reference(q.double(), k.double(), v.double(), batch, scale=dim**-0.5, window=window)
    for grouped, splits in ((False, 1), (True, 1), (True, None), (False, 3)):
        out = paged_attention(q, k, v, batch, scale=dim**-0.5, window=window, grouped=grouped, splits=splits)
        assert_near(out[:rows], expected[:rows], dtype)


def check_attention(
    runs: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, block_size: int, page_size: int,
    window: int | None, dtype: torch.dtype, device: str, layout: str = "unified",
) -> None:  # fmt: skip
    q, k, v, batch = attention_case(runs, heads, kv_heads, dim, block_size, page_size, dtype, device, layout=layout)
    expected = paged_attention_reference(q.double(), k.double(), v.double(), batch, scale=dim**-0.5, window=window)
    for grouped, splits in ((False, 1), (True, 1), (True, None), (False, 3)):
        out = paged_attention(q, k, v, batch, scale=dim**-0.5, window=window, grouped=grouped, splits=splits)
        assert_near(out, expected, dtype)


def check_bitmask_argmax(rows: int, vocab: int, device: str) -> None:
    """Compares `bitmask_argmax` with its reference: ties, few and no allowed tokens, and forbidden ids."""
    generator = torch.Generator().manual_seed(rows + vocab)
    logits = random(rows, vocab, dtype=torch.float32, device=device, seed=vocab, scale=6.0)
    logits[:, vocab // 2 :: 3] = logits[:, vocab // 3, None]  # ties: the lowest id wins
    logits[:, -1] = float("-inf")
    shares = torch.tensor([1.0, 0.5, 2 / vocab, 0.0])
    allowed = torch.rand(4 * rows, vocab, generator=generator) < shares.repeat(rows)[:, None]
    bits = torch.nn.functional.pad(allowed, (0, -vocab % 32)).unflatten(1, (-1, 32)).long() << torch.arange(32)
    words = bits.sum(2).to(torch.int32).to(device)
    index = torch.randint(0, rows, (4 * rows,), generator=generator).to(device)
    got, expected = bitmask_argmax(logits, index, words), bitmask_argmax_reference(logits.double(), index, words)
    assert torch.equal(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1], rtol=1e-5, atol=0, equal_nan=True)
    assert bool(got[1].isnan().any())


def check_fill(blocks: int, size: int, columns: int, mask_id: int | None, device: str) -> None:
    """Compares `threshold_unmask` with its reference, for blocks of several sizes."""
    generator = torch.Generator().manual_seed(blocks * 100 + size)

    def drawn(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    sizes, stride = drawn(1, size + 1, blocks), size + 3
    sizes[0], sizes[-1] = size, 0  # the last block is padding
    first = 1 + torch.randperm(blocks, generator=generator) * stride
    tokens, states = drawn(0, 50, 1 + blocks * stride).int(), drawn(0, 3, 1 + blocks * stride)
    tokens[0] = states[0] = 0
    states[1:] += 4 * drawn(0, 2, blocks * stride)  # a bit that the kernel does not change
    states = states.to(torch.int8)
    inside = torch.arange(size) < sizes[:, None]
    entry = torch.where(inside, first[:, None] + torch.arange(size), 0)
    block, at = (inside & (states[entry] & 3 == 1)).nonzero(as_tuple=True)
    dead = torch.zeros(5, dtype=torch.int64)
    block, at = torch.cat([block, dead + blocks - 1]), torch.cat([at, dead])
    params = torch.rand(blocks, columns, generator=generator, dtype=torch.float64)
    params[:, 2] = drawn(1, 4, blocks)
    numbers = torch.stack([drawn(0, 3, blocks), drawn(0, 3, blocks) % 2, drawn(0, 3, blocks)], 1)
    firsts, lengths, numbers, rows = (each.to(device) for each in (first, sizes, numbers, params))
    conf = (drawn(0, 12, len(block)) / 12).float()
    sampled = SampledRows(drawn(0, 50, len(block)).to(device), conf.to(device), block.to(device), at.to(device))
    eos = torch.tensor([3, 7], device=device)
    found = []
    for fill in (threshold_unmask, threshold_unmask_reference):
        tables = tokens.to(device, copy=True), states.to(device, copy=True)
        before = BlockInputs(*tables, firsts, lengths, size, numbers, 1, 2, rows, 1, 2)
        found.append((*fill(before, sampled, mask_id, eos), *tables))
    for own, right in zip(*found, strict=True):
        assert own.dtype == right.dtype
        assert torch.equal(own, right)


def some_segments(counts: list[int], rows: int, tile_rows: int) -> tuple[torch.Tensor, RowTables, int]:
    """Returns random segments of `counts` rows, padded to `rows` if those are more, their tables, and the tiles."""
    generator = torch.Generator().manual_seed(sum(counts) + rows)

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    made = [
        Segment(n, drawn(0, 60), count, drawn(0, 60), drawn(1, 40), drawn(0, 90), drawn(60, 400), drawn(0, 90),
                drawn(0, 90), drawn(-1, 3), first_token=drawn(1, 90) if n % 2 else -1, conditioned=60 * drawn(0, 2))
        for n, count in enumerate(counts)
    ]  # fmt: skip
    padding = rows - sum(counts)
    tiles = sum(-(-count // tile_rows) for count in (*counts, padding)) + 3 * bool(padding)
    if padding:  # segments behind it are left from other steps
        made += [
            Segment(0, PADDING, REMAINDER, 0, 0, 0),
            Segment(1, 3, 40, 0, 8, 0),
            Segment(1, PADDING, REMAINDER, 0, 0, 0),
        ]
    segments = np.array(made, dtype=np.int32)
    tokens = torch.randint(0, 500, (90 + 200 * len(counts) + max(counts),), generator=generator, dtype=torch.int32)
    pages = torch.randint(0, 50, (len(counts), 60), generator=generator, dtype=torch.int32)
    return torch.from_numpy(segments), RowTables(tokens, 200, pages[:, :57], 16), tiles


def check_segments(counts: list[int], rows: int, tile_rows: int, device: str) -> None:
    """Compares `expand_segments` with its reference."""
    segments, tables, tiles = some_segments(counts, rows, tile_rows)
    there = tables._replace(tokens=tables.tokens.to(device), pages=tables.pages.to(device))
    found = expand_segments(segments.to(device), there, rows, tiles, tile_rows)
    expected = expand_segments_reference(segments, tables, rows, tiles, tile_rows)
    for name, own, right in zip(found._fields, found, expected, strict=True):
        assert own.dtype == right.dtype, name
        assert torch.equal(own.cpu(), right), name


def check_uniform_numbers(rows: int, stream: int, device: str) -> None:
    """Asserts that all bits of `uniform_numbers` equal those of its reference."""
    random = np.random.default_rng(rows)
    draws = torch.from_numpy(random.integers(-(2**63), 2**63, (5, 3)))
    block, at = (torch.from_numpy(random.integers(0, high, rows)) for high in (5, 4096))
    found = uniform_numbers(*(each.to(device) for each in (draws, block, at)), stream)
    assert torch.equal(found.cpu(), uniform_numbers_reference(draws, block, at, stream))


def check_next_segments(ends: Sequence[str], device: str) -> None:
    """Compares `choose_segments` with its reference, for requests whose blocks end like this."""
    n = len(ends)
    outcomes, counters, _ = some_outcomes(ends)
    for some, max_rows, may_leave in ((n, 64 * n, 0), (n, 64 * n, 1), (n, 3, 0), (n - 1, 64 * n, 1), (0, 64 * n, 0)):
        made = []
        for choose, place in ((choose_segments_reference, "cpu"), (choose_segments, device)):
            segments = torch.full((n + 2, FIELDS), 7, dtype=torch.int32, device=place)
            choice = torch.full((HEADER + n + 1,), 7, dtype=torch.int32, device=place)
            offer = torch.tensor(Offer(some, max_rows, may_leave), dtype=torch.int32, device=place)
            choose(BlockCounters(*counters.to(place)), outcomes.to(place), offer, segments, choice)
            valid = (
                1 if choice[CHOSEN_ROWS] == UNKNOWN else len(choice)
            )  # of an unknown forward, the rest has no meaning
            made.append((segments.cpu(), choice[:valid].cpu()))
        assert torch.equal(made[0][0], made[1][0])
        assert torch.equal(made[0][1], made[1][1])


# masks, first mask, first EOS, finished; at_eos, without_masks, offset of the end, is_revised; the choice. None: the
# next forward is not known. LEFT: it is known if requests may leave.
BLOCK_ENDS: dict[str, tuple[int | None, ...]] = {
    "continues": (3, 5, 32, 0, 1, 1, 40, 0, CONTINUES),
    "filled": (0, 32, 32, 0, 1, 1, 40, 0, FINAL),
    "edited later": (0, 32, 32, 0, 1, 0, 40, 1, CONTINUES),
    "finished with masks": (2, 9, 32, 1, 1, 0, 40, 1, FINAL),
    "eos behind a mask": (2, 9, 20, 0, 1, 1, 40, 0, CONTINUES),
    "eos": (2, 9, 4, 0, 1, 1, 40, 0, LEFT),
    "eos that may be edited": (2, 9, 4, 0, 1, 0, 40, 1, CONTINUES),
    "eos in a finished block": (0, 32, 4, 1, 1, 0, 40, 1, LEFT),
    "ignored eos": (2, 9, 4, 0, 0, 1, 40, 0, CONTINUES),
    "end of the output": (1, 20, 32, 0, 1, 1, 20, 0, LEFT),
    "end that may be edited": (0, 32, 32, 0, 1, 0, 20, 1, CONTINUES),
    "filled to the end": (0, 32, 32, 1, 1, 1, 32, 0, LEFT),
    "unknown": (0, 32, 32, 1, 1, 1, 40, 0, None),
    "nothing opens": (3, 5, 32, 0, 1, 1, 40, 0, CONTINUES),
    "another opens": (3, 5, 32, 0, 1, 1, 40, 0, None),
    "no block": (0, 0, 0, 1, 1, 1, 0, 0, CONTINUES),
}


def some_outcomes(ends: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, list[int | None]]:
    """Returns outcomes [n, OUTCOMES] and counters [4, blocks] of blocks that end in these ways, and their choices."""
    random = np.random.default_rng(len(ends))
    rows, counters, choices = [], [[9] * 4], []  # the first block is of no request
    for slot, end in enumerate(ends):
        *counted, at_eos, without_masks, output_end, is_revised, choice = BLOCK_ENDS[end]
        pair = random.integers(1, 90, (2, FIELDS))
        pair[:, SLOT], pair[:, COUNT] = slot, (32, UNKNOWN if end == "unknown" else random.integers(33, 300))
        block = NO_BLOCK if end == "no block" else len(counters)
        more = {"nothing opens": 8, "another opens": 9}.get(end)  # masks at which another block opens
        several = {} if more is None else {"newest": 1, "opens_at": more}
        rows.append([*BlockEnd(block, 32, without_masks, at_eos, output_end, is_revised, **several), *pair.ravel()])
        counters += [counted, [9] * 4]  # of a block and of the one behind it
        choices.append(choice)
    return torch.tensor(np.array(rows), dtype=torch.int32), torch.tensor(counters).T.contiguous(), choices


def check_sandwich(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    x, mixed, dense, chosen = (random(rows, size, dtype=dtype, device=device, seed=s) for s in range(70, 74))
    weights = [1 + random(size, dtype=dtype, device=device, seed=s, scale=0.2) for s in range(74, 81)]
    scale = random(rows, 1, dtype=dtype, device=device, seed=82)
    wide = [w.double() for w in weights]
    made = pre_mlp_norms(mixed, x, *weights[:3], 1e-6)
    own = pre_mlp_norms_reference(mixed.double(), x.double(), *wide[:3], 1e-6)
    for name in ("total", "dense", "experts"):
        assert_near(getattr(made, name), getattr(own, name), dtype)
    assert_near(made.factor, pre_mlp_norms_reference(mixed * 0, made.total, *weights[:3], 1e-6).factor, torch.float32)
    normed, total = post_mlp_norms(dense, chosen, x, scale, tuple(weights[3:]), 1e-6)
    expected, expected_total = post_mlp_norms_reference(
        dense.double(), chosen.double(), x.double(), scale.double(), tuple(wide[3:]), 1e-6
    )
    assert_near(total, expected_total, dtype)
    assert_near(normed, expected, dtype)


def check_sandwich_of_choices(rows: int, size: int, top_k: int, dtype: torch.dtype, device: str) -> None:
    """Checks that `post_mlp_norms` sums experts to the same bits as `moe_sum`."""
    x, dense = (random(rows, size, dtype=dtype, device=device, seed=s) for s in (83, 84))
    weights = tuple(1 + random(size, dtype=dtype, device=device, seed=s, scale=0.2) for s in range(85, 89))
    scale = random(rows, 1, dtype=dtype, device=device, seed=89)
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(-2, 11, (rows, top_k), generator=generator).int()
    ids[0, 0], ids[1:2] = 4, -1  # a row with padding only
    pairs = random(rows * top_k, size, dtype=dtype, device=device, seed=90)
    pairs[(ids.flatten() < 0).to(device)] = float("nan")
    routing_weights = torch.rand(rows, top_k, generator=generator).to(device)
    chosen = TopKOutputs(
        pairs, ids.to(device), routing_weights, random(11, dtype=torch.float32, device=device, seed=91)
    )
    made = post_mlp_norms(dense, chosen, x, scale, weights, 1e-6)
    summed = moe_sum(pairs, chosen.ids, routing_weights * chosen.scale[chosen.ids.clamp(min=0)], None)
    for got, before_it in zip(made, post_mlp_norms(dense, summed, x, scale, weights, 1e-6), strict=True):
        assert torch.equal(got, before_it)
    own = TopKOutputs(pairs.double(), chosen.ids, routing_weights.double(), chosen.scale.double())
    assert_near(summed, moe_sum_reference(own), dtype)
    wide = tuple(weight.double() for weight in weights)
    expected, expected_total = post_mlp_norms_reference(dense.double(), own, x.double(), scale.double(), wide, 1e-6)
    assert_near(made[1], expected_total, dtype)
    assert_near(made[0], expected, dtype)


def check_lora(
    counts: list[int], slots: list[int], inputs: int, parts: list[int], rank: int, dtype: torch.dtype, device: str
) -> None:
    """Compares `add_lora` with its float64 reference. Two empty query tiles follow the others.

    `counts` and `slots` are the rows and the LoRA slot of each request, `parts` the outputs of each fused module.
    """
    rows, outputs, num_slots = sum(counts), sum(parts), max(slots) + 1
    cut = torch.from_numpy(make_query_tiles(np.array(counts, dtype=np.int64)))
    tiles = torch.cat([cut, torch.zeros(2, 3, dtype=torch.int32)]).to(device)
    lora_slots = torch.repeat_interleave(torch.tensor(slots, dtype=torch.int32), torch.tensor(counts)).to(device)
    batch = LoRABatch(lora_slots, tiles, max(int(cut[:, 2].max()), 16))
    x = random(rows, inputs, dtype=dtype, device=device, seed=1)
    lora_a = random(num_slots, len(parts) * rank, inputs, dtype=dtype, device=device, seed=2, scale=inputs**-0.5)
    lora_b = random(num_slots, outputs, rank, dtype=dtype, device=device, seed=3, scale=rank**-0.5)
    out = random(rows, outputs, dtype=dtype, device=device, seed=4)
    cuts = [0, *np.cumsum(parts).tolist()]
    expected = out.double()
    add_lora_reference(expected, x.double(), lora_a.double(), lora_b.double(), cuts, batch)
    before = out.clone()
    add_lora(out, x, lora_a, lora_b, cuts, batch)
    assert_near(out, expected, dtype)
    assert torch.equal(out[lora_slots < 0], before[lora_slots < 0])
    alone = before.clone()  # a row's result is the same without the others
    first = LoRABatch(lora_slots[: counts[0]], cut[cut[:, 0] == 0].to(device), batch.tile_rows)
    add_lora(alone[: counts[0]], x[: counts[0]], lora_a, lora_b, cuts, first)
    assert torch.equal(alone[: counts[0]], out[: counts[0]])
