"""Compares kernels of quantized weights with their references.

Fp8 kernels are compared with references that round in the same way. All are compared with the float64 GEMM of the
dequantized values, within the rounding error of eight bits.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from runtime.errors import ConfigError
from runtime.kernels import linear
from runtime.kernels.activation import Activation, act_and_mul_reference, interleave_gate_up
from runtime.kernels.fp8_argmax import fp8_lm_head_argmax
from runtime.kernels.fused_argmax import ArgmaxOutput, lm_head_argmax, lm_head_argmax_reference
from runtime.kernels.fused_moe import fused_moe
from runtime.kernels.fused_moe.fused_moe import moe_reference
from runtime.kernels.linear import dequantize
from runtime.kernels.nvfp4 import Nvfp4, dequantize_nvfp4, quantize_nvfp4
from runtime.kernels.nvfp4_gemm import nvfp4_linear
from runtime.kernels.ops import BATCH_INVARIANT_TRITON, TORCH, TRITON
from runtime.kernels.quantized_tensor import (
    GroupQuantized,
    empty_fp8,
    quantize_blocks,
    quantize_fp8,
    quantize_fp8_reference,
    quantize_fp8_weight,
    quantize_groups,
    quantize_nf4,
    quantize_rows,
    quantized_of,
)
from runtime.quantization.fp8 import Fp8Weight
from tests.kernels.cases import TOLERANCE, assert_near, random, random_ids

MANY = 1000  # numbers that suffice for a representative mean error
LINEAR, MOE = 0.045, 0.065  # ||out - ref|| / ||ref|| of a GEMM with e4m3 operands, each with a scale per row
# The matrix unit keeps 14 bits of sums, and numbers about halfway between two fp8 values may round either way.
ALIKE = 5e-3


def distance(out: torch.Tensor, expected: torch.Tensor) -> float:
    assert out.shape == expected.shape
    assert torch.isfinite(out).all()
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def check_quantize_fp8(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    x = random(rows, size, dtype=dtype, device=device, seed=30) * torch.logspace(-3, 3, rows)[:, None].to(device, dtype)
    x[rows // 2] = 0
    got, expected = quantize_fp8(x), quantize_fp8_reference(x)
    torch.testing.assert_close(got.scales, expected.scales)
    values, expected_values = got.values.float(), expected.values.float()
    assert float((values != expected_values).float().mean()) < 1e-3
    # Numbers about halfway between two fp8 values may round either way.
    torch.testing.assert_close(values, expected_values, rtol=0.13, atol=0.002)
    assert not values[rows // 2].any()


def check_fp8_argmax(
    rows: int, inputs: int, vocab: int, allowed_ids: tuple[int, ...], dead: int | None, dtype: torch.dtype, device: str
) -> None:
    """Compares `fp8_lm_head_argmax` with the float64 reference: the token, except in near ties, and its probability.

    Args:
        dead: number of padding rows that follow; the kernel gets `num_valid`. None: no padding and no `num_valid`.
    """
    hidden = random(rows, inputs, dtype=dtype, device=device, seed=30)
    hidden *= torch.linspace(0.5, 3, rows, device=device)[:, None]  # flat and steep rows
    weight = random(vocab, inputs, dtype=dtype, device=device, seed=31, scale=inputs**-0.5)
    weight[vocab // 2] = weight[vocab // 3]  # ties: the lowest id wins
    weight[vocab - 1] = weight[1] * 2
    for row, token in enumerate((vocab // 2, 7, vocab - 1, vocab // 2 + 1)):
        hidden[row % rows] = weight[token] * inputs**0.5  # mask id 7 and the last ids are forbidden
    own = {"mask_id": 7, "max_token_id": vocab - 4, "allowed_ids": allowed_ids}
    codes = quantize_fp8_reference(weight)
    if dead is None:
        found = fp8_lm_head_argmax(hidden, weight, codes, **own)
    else:
        live = torch.tensor([rows], dtype=torch.int32, device=device)
        padded = torch.cat([hidden, hidden.new_zeros(dead, inputs)])
        found = fp8_lm_head_argmax(padded, weight, codes, **own, num_valid=live)
        assert not found.token[rows:].any()
        assert (found.conf[rows:] == 1).all()
        found = ArgmaxOutput(*(each[:rows] for each in found))
    expected = lm_head_argmax_reference(hidden.double(), weight.double(), **own)
    logits = hidden.double() @ weight.double().T
    chosen = logits.gather(1, found.token[:, None])[:, 0]
    torch.testing.assert_close(chosen, expected.logit, rtol=1e-6, atol=2e-5)  # either token of a near tie is accepted
    torch.testing.assert_close(found.logit.double(), expected.logit, rtol=1e-5, atol=2e-5)
    if rows > 3:
        assert found.token[0] in (vocab // 3, expected.token[0])
    same = found.token == expected.token
    assert int((~same).sum()) <= 1 + rows // 100
    error = (found.conf.double() - expected.conf)[same].abs()
    assert bool((error <= torch.where(expected.conf[same] >= 0.9, 1e-3, 5e-3)).all()), float(error.max())


def check_fp8_argmax_of_many_rows(rows: int, inputs: int, vocab: int, device: str) -> None:
    """Compares the argmax of random rows with that of the 16-bit kernel. Only near ties may differ.

    Probabilities differ most where few tokens have most of the rest: by up to 0.010, and 0.0012 from 0.9 on.
    """
    weight = random(vocab, inputs, dtype=torch.bfloat16, device=device, seed=31, scale=inputs**-0.5)
    codes, own = quantize_fp8(weight), {"mask_id": 7, "max_token_id": vocab - 4}
    generator = torch.Generator(device).manual_seed(32)
    for first in range(0, rows, 4096):
        count = min(4096, rows - first)
        scale = torch.rand(count, 1, generator=generator, device=device) * 3
        hidden = (torch.randn(count, inputs, generator=generator, device=device) * scale).bfloat16()
        got, expected = fp8_lm_head_argmax(hidden, weight, codes, **own), lm_head_argmax(hidden, weight, **own)
        differ = got.token != expected.token
        torch.testing.assert_close(got.logit[differ], expected.logit[differ], rtol=1e-5, atol=1e-5)
        error = (got.conf - expected.conf)[~differ].abs()
        assert bool((error <= torch.where(expected.conf[~differ] >= 0.9, 2e-3, 15e-3)).all()), float(error.max())


def extreme_rows(rows: int, size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Returns [rows, size] numbers of all magnitudes of the dtype, with a row of zeros and one of subnormals."""
    limits = torch.finfo(dtype)
    exponents = torch.linspace(math.log10(limits.tiny), math.log10(limits.max) - 1, rows, dtype=torch.float64)
    x = random(rows, size, dtype=torch.float32, device=device, seed=rows + size).double()
    x = (x.clamp(-9, 9) * 10.0 ** exponents[:, None].to(device)).to(dtype)
    x[rows // 2] = 0
    x[rows // 3] = limits.tiny / 2
    return x


def check_fp8_weight(rows: int, size: int, dtype: torch.dtype, device: str, interleaved: bool) -> None:
    """Checks that the kernel quantizes weights to the bits of the reference, in any slice of a stack."""
    shape, values = (3, 2 * rows, size), extreme_rows(6 * rows, size, dtype, device).view(3, 2 * rows, size)
    kernel, reference = (
        Fp8Weight(shape, torch.float32, torch.device(device), kernels, interleaved=interleaved)
        for kernels in (TRITON, TORCH)
    )
    columns = torch.empty(rows, 2 * size, dtype=dtype, device=device)[:, ::2]  # not contiguous
    for weight in (kernel, reference):
        for index in ((0,), (1, slice(0, rows)), (1, slice(rows, 2 * rows)), (2, slice(rows, 2 * rows))):
            assert weight.load(index, values[index]) == values[index].numel()
        assert weight.load((2, slice(0, rows)), columns.copy_(values[2, :rows])) == rows * size
    assert torch.equal(kernel.kernel_arg.values.view(torch.uint8), reference.kernel_arg.values.view(torch.uint8))
    assert torch.equal(kernel.kernel_arg.scales, reference.kernel_arg.scales)


def check_fp8_weight_that_is_not_finite(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    for bad in (math.nan, -math.nan, math.inf, -math.inf):
        for position in (0, rows * size // 2, rows * size - 1):
            x = random(rows, size, dtype=dtype, device=device, seed=7)
            x.view(-1)[position] = bad
            stored, overflow = empty_fp8(x), torch.zeros((), device=device)
            quantize_fp8_weight(x, stored, 0, range(rows), 0, torch.float32, overflow)
            expected = quantize_fp8_reference(x)
            assert overflow.isnan()
            torch.testing.assert_close(stored.scales, expected.scales, rtol=0, atol=0, equal_nan=True)
            mine, other = stored.values.float(), expected.values.float()
            torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)
            with pytest.raises(ConfigError, match=r"^holds NaN or infinite values$"):
                Fp8Weight((rows, size), dtype, torch.device(device), TRITON).load((), x)


def check_fp8_weight_overflow(dtype: torch.dtype, device: str) -> None:
    """Checks that loading fails if the largest dequantized value of a row overflows the dtype."""
    limit = torch.finfo(dtype).max
    fitting = [[1.0, limit * (1 - 2.0**-12)], [0.0, -1.0]]
    weights = [Fp8Weight((2, 2), dtype, torch.device(device), kernels) for kernels in (TRITON, TORCH)]
    for weight in weights:
        assert weight.load((), torch.tensor(fitting, dtype=torch.float64, device=device)) == 4
    too_large = {torch.float16: (65536.0, 1e6), torch.bfloat16: (3.4e38,), torch.float32: ()}
    for large in too_large[dtype]:
        for weight in weights:
            with pytest.raises(ConfigError, match=f"^holds values too large for {dtype}; choose another --dtype$"):
                weight.load((), torch.tensor([[1.0, 0.0], [2.0, -large]], device=device))


def check_attached_fp8(rows: int, size: int, activation: Activation, dtype: torch.dtype, device: str) -> None:
    """Checks that the quantizing norms and activations equal the ordinary ones, with `quantize_fp8` attached."""
    x, residual = (random(rows, size, dtype=dtype, device=device, seed=s) for s in (40, 41))
    weight = 1 + random(size, dtype=dtype, device=device, seed=42, scale=0.2)
    gates = random(rows, 2 * size, dtype=dtype, device=device, seed=43, scale=3.0)
    base, own = TRITON, TRITON.for_quantization("fp8")
    for out, expected in (
        (own.rms_norm(x, weight, 1e-6), base.rms_norm(x, weight, 1e-6)),
        (own.rms_norm(x, None, 1e-6), base.rms_norm(x, None, 1e-6)),
        (own.add_rms_norm(x, residual, weight, 1e-6)[0], base.add_rms_norm(x, residual, weight, 1e-6)[0]),
        (own.act_and_mul(gates, activation), base.act_and_mul(gates, activation)),
    ):
        assert_near(out, expected, dtype)
        attached, again = quantized_of(out), quantize_fp8(out)
        torch.testing.assert_close(attached.scales, again.scales)
        assert float((attached.values.float() != again.values.float()).float().mean()) < 1e-3
        assert quantized_of(out) is attached
        assert quantized_of(out.clone()) is not attached
    totals = (kernel(x, residual, weight, 1e-6)[1] for kernel in (own.add_rms_norm, base.add_rms_norm))
    assert torch.equal(*totals)


def check_fp8_linear(rows: int, inputs: int, outputs: int, biased: bool, dtype: torch.dtype, device: str) -> None:
    x = random(rows, inputs, dtype=dtype, device=device, seed=31)
    weight = random(outputs, inputs, dtype=dtype, device=device, seed=32, scale=inputs**-0.5)
    bias = random(outputs, dtype=dtype, device=device, seed=33) if biased else None
    quantized_weight = quantize_fp8_reference(weight)
    out = linear.fp8_linear(x, quantized_weight, bias)
    added = 0 if bias is None else bias.double()
    assert out.dtype == dtype
    same = quantize_fp8_reference(x).dequantize(torch.float64) @ quantized_weight.dequantize(torch.float64).T + added
    assert distance(out, same) < TOLERANCE[dtype] + ALIKE
    if out.numel() >= MANY:
        assert distance(out, x.double() @ weight.double().T + added) < LINEAR
    assert torch.equal(out, linear.fp8_linear(x, quantized_weight, bias)), "two runs return different bits"


def check_fp8_moe(
    rows: int, hidden: int, width: int, experts: int, top_k: int, shared: bool, crowded: bool,
    dtype: torch.dtype, device: str, activation: Activation = "silu", dead: float = 0.0,
) -> None:  # fmt: skip
    x = random(rows, hidden, dtype=dtype, device=device, seed=34)
    gate_up = random(experts, 2 * width, hidden, dtype=dtype, device=device, seed=35, scale=hidden**-0.5)
    down = random(experts, hidden, width, dtype=dtype, device=device, seed=36, scale=width**-0.5)
    extra = random(rows, hidden, dtype=dtype, device=device, seed=37) if shared else None
    weights = torch.rand(rows, top_k, generator=torch.Generator().manual_seed(38)).to(device)
    ids = random_ids(rows, experts, top_k, device, crowded, dead)
    quantized_gate_up, quantized_down = (
        quantize_fp8_reference(interleave_gate_up(gate_up)),
        quantize_fp8_reference(down),
    )
    out = fused_moe.fused_moe(x, ids, weights, quantized_gate_up, quantized_down, extra, activation)
    assert out.dtype == dtype
    again = fused_moe.fused_moe(x, ids, weights, quantized_gate_up, quantized_down, extra, activation)
    assert torch.equal(out, again), "two runs return different bits"
    if activation == "silu":
        residual = random(rows, hidden, dtype=dtype, device=device, seed=39)
        scale = 1 + random(hidden, dtype=dtype, device=device, seed=44, scale=0.2)
        normed, total = fused_moe.fused_moe_add_norm(
            x, ids, weights, quantized_gate_up, quantized_down, extra, residual, scale, 1e-6
        )
        expected = TRITON.add_rms_norm(out, residual, scale, 1e-6)
        assert_near(total, expected[1], dtype)
        assert_near(normed, expected[0], dtype, slack=2)
        assert distance(quantized_of(normed).dequantize(torch.float32), normed) < LINEAR
        assert quantized_of(normed) is quantized_of(normed)
    added = torch.zeros_like(x) if extra is None else extra
    grouped = fused_moe.select_grouped_config(x, ids.numel(), quantized_gate_up, quantized_down)
    group = width if grouped is None else grouped.down.depth
    same = fp8_moe_expected(x, ids, weights, gate_up, down, activation, group) + added.double()
    assert distance(out, same) < TOLERANCE[dtype] + 2 * ALIKE
    if out.numel() >= MANY:
        unquantized = moe_reference(
            x.double(), ids, weights.double(), gate_up.double(), down.double(), None, activation
        )
        assert distance(out - added, unquantized) < MOE + TOLERANCE[dtype]


def fp8_moe_expected(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
    activation: Activation, group: int,
) -> torch.Tensor:  # fmt: skip
    """Returns the float64 result with weights and inner rows rounded to fp8, those with a scale per `group` columns."""
    quantized_of = quantize_fp8_reference(x).dequantize(torch.float64)
    total = torch.zeros_like(quantized_of)
    for expert in range(len(gate_up)):
        row, choice = (ids == expert).nonzero(as_tuple=True)
        if len(row):
            gate_up_out = quantized_of[row] @ quantize_fp8_reference(gate_up[expert]).dequantize(torch.float64).T
            hidden = act_and_mul_reference(gate_up_out, activation).to(x.dtype).unflatten(1, (-1, group))
            hidden = quantize_fp8_reference(hidden).dequantize(torch.float64).flatten(1)
            out = hidden @ quantize_fp8_reference(down[expert]).dequantize(torch.float64).T
            total.index_add_(0, row, weights[row, choice, None].double() * out)
    return total


Some = torch.Tensor | slice  # which rows
Kernel = Callable[[Some], tuple[torch.Tensor, ...]]
KINDS = ("int8", "int4", "int4_32", "blocks", "nvfp4", "int4_32 asymmetric", "int8_64 asymmetric", "nf4")


def quantized(x: torch.Tensor, kind: str) -> GroupQuantized | Nvfp4:
    """Returns `x` quantized to a format. "blocks": e4m3 with a scale per 128 inputs."""
    if kind == "nvfp4":
        return quantize_nvfp4(x)
    if kind.endswith(" asymmetric"):
        return any_zeros(quantized(x, kind.removesuffix(" asymmetric")))
    if kind == "nf4":
        return quantize_nf4(x, 64)
    format, _, group = kind.partition("_")
    if format == "int8":
        return quantize_blocks(x, int(group), torch.int8) if group else quantize_rows(x)
    return quantize_blocks(x, 128) if format == "blocks" else quantize_groups(x, int(group or 128))


def any_zeros(x: GroupQuantized) -> GroupQuantized:
    """Returns the codes and scales of `x` with zero points of all values; those of a row depend on its scales only."""
    bits = x.scales.view(torch.int32)
    zeros = (bits & 15).to(torch.uint8) if x.is_int4 else bits.to(torch.int8)
    return replace(x, zeros=zeros, scales=x.scales / (1 if x.is_int4 else 4))


def check_group_quantized_linear(
    rows: int, inputs: int, outputs: int, biased: bool, kind: str, dtype: torch.dtype, device: str
) -> None:
    x = random(rows, inputs, dtype=dtype, device=device, seed=50)
    weight = quantized(random(outputs, inputs, dtype=dtype, device=device, seed=51, scale=inputs**-0.5), kind)
    bias = random(outputs, dtype=dtype, device=device, seed=52) if biased else None
    kernel = nvfp4_linear if kind == "nvfp4" else linear.group_quantized_linear
    out = kernel(x, weight, bias)
    added = 0 if bias is None else bias.double()
    assert_near(out, x.double() @ weight.dequantize(torch.float64).T + added, dtype)
    assert torch.equal(out, kernel(x, weight, bias)), "two runs return different bits"


def check_every_nvfp4_product(dtype: torch.dtype, device: str) -> None:
    """Each code times each finite e4m3 scale is exact in every dtype: a row of the identity selects one input."""
    numbers = [byte for byte in range(256) if byte & 0x7F != 0x7F]
    scales = torch.tensor(numbers, dtype=torch.uint8, device=device)[:, None]
    codes = torch.arange(16, dtype=torch.uint8, device=device).expand(len(numbers), 16)
    weight = Nvfp4.of(codes, scales, torch.ones((), device=device))
    out = nvfp4_linear(torch.eye(16, dtype=dtype, device=device), weight, None)
    assert torch.equal(out.double(), weight.dequantize(torch.float64).T)


def check_column_order(rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: str) -> None:
    """Checks a weight whose columns are stored in another order."""
    x = random(rows, inputs, dtype=dtype, device=device, seed=61)
    stored = quantized(random(outputs, inputs, dtype=dtype, device=device, seed=62, scale=inputs**-0.5), "int4_32")
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(63)).to(device)
    weight, expected = replace(stored, order=order), x.new_zeros(outputs, inputs, dtype=torch.float64)
    expected[:, order] = stored.dequantize(torch.float64)
    assert torch.equal(weight.dequantize(torch.float64), expected)
    assert_near(linear.group_quantized_linear(x, weight, None), x.double() @ expected.T, dtype)


def check_dequantize(rows: int, size: int, kind: str, dtype: torch.dtype, device: str) -> None:
    weight = quantized(random(rows, size, dtype=dtype, device=device, seed=60), kind)
    made = (dequantize_nvfp4 if kind == "nvfp4" else dequantize)(weight, dtype)
    torch.testing.assert_close(made, weight.dequantize(dtype), rtol=1e-6, atol=0)


def check_group_quantized_moe(
    rows: int, hidden: int, width: int, experts: int, top_k: int, shared: bool, crowded: bool, kind: str,
    dtype: torch.dtype, device: str, activation: Activation = "silu", dead: float = 0.0,
) -> None:  # fmt: skip
    x = random(rows, hidden, dtype=dtype, device=device, seed=53)
    gate_up = random(experts, 2 * width, hidden, dtype=dtype, device=device, seed=54, scale=hidden**-0.5)
    down = random(experts, hidden, width, dtype=dtype, device=device, seed=55, scale=width**-0.5)
    extra = random(rows, hidden, dtype=dtype, device=device, seed=56) if shared else None
    weights = torch.rand(rows, top_k, generator=torch.Generator().manual_seed(57)).to(device)
    ids = random_ids(rows, experts, top_k, device, crowded, dead)
    swap_ab, quantized_down = quantized(interleave_gate_up(gate_up), kind), quantized(down, kind)
    out = fused_moe.fused_moe(x, ids, weights, swap_ab, quantized_down, extra, activation)
    expected = moe_reference(
        x.double(), ids, weights.double(), quantized(gate_up, kind).dequantize(torch.float64),
        quantized_down.dequantize(torch.float64), None if extra is None else extra.double(), activation,
    )  # fmt: skip
    assert_near(out, expected, dtype)
    assert torch.equal(out, fused_moe.fused_moe(x, ids, weights, swap_ab, quantized_down, extra, activation)), (
        "two runs return different bits"
    )
    if activation == "silu":
        residual = random(rows, hidden, dtype=dtype, device=device, seed=58)
        scale = 1 + random(hidden, dtype=dtype, device=device, seed=59, scale=0.2)
        normed, total = fused_moe.fused_moe_add_norm(
            x, ids, weights, swap_ab, quantized_down, extra, residual, scale, 1e-6
        )
        normal, sums = TRITON.add_rms_norm(out, residual, scale, 1e-6)
        assert_near(total, sums, dtype)
        assert_near(normed, normal, dtype, slack=2)


def batch_invariant_linear(rows: int, inputs: int, outputs: int, kind: str, dtype: torch.dtype, device: str) -> Kernel:
    """Returns the batch-invariant linear layer as a function of the rows to compute."""
    x = random(rows, inputs, dtype=dtype, device=device, seed=70)
    weight = quantized(random(outputs, inputs, dtype=dtype, device=device, seed=71, scale=inputs**-0.5), kind)
    bias = random(outputs, dtype=dtype, device=device, seed=72)
    kernels = BATCH_INVARIANT_TRITON
    kernel = kernels.nvfp4_linear if kind == "nvfp4" else kernels.group_quantized_linear
    return lambda some: (kernel(x[some], weight, bias),)


def batch_invariant_moe(
    rows: int, hidden: int, width: int, experts: int, top_k: int, kind: str, dtype: torch.dtype, device: str, *,
    crowded: bool = False,
) -> Kernel:  # fmt: skip
    """Returns the batch-invariant experts, alone and fused with add and norm, as a function of the rows to compute."""
    x = random(rows, hidden, dtype=dtype, device=device, seed=73)
    gate_up = random(experts, 2 * width, hidden, dtype=dtype, device=device, seed=74, scale=hidden**-0.5)
    down = quantized(random(experts, hidden, width, dtype=dtype, device=device, seed=75, scale=width**-0.5), kind)
    residual = random(rows, hidden, dtype=dtype, device=device, seed=76)
    norm = 1 + random(hidden, dtype=dtype, device=device, seed=77, scale=0.2)
    weights = torch.rand(rows, top_k, generator=torch.Generator().manual_seed(78)).to(device)
    ids, swap_ab = (
        random_ids(rows, experts, top_k, device, crowded, dead=0.1),
        quantized(interleave_gate_up(gate_up), kind),
    )
    kernels = BATCH_INVARIANT_TRITON.for_quantization("int4")  # the same kernels for all kinds

    def computed(some: Some) -> tuple[torch.Tensor, ...]:
        arguments = x[some], ids[some], weights[some], swap_ab, down
        return (
            kernels.moe(*arguments, residual[some], "gelu_tanh"),
            *kernels.moe_add_norm(*arguments, None, residual[some], norm, 1e-6),
        )

    return computed
