"""Which implementation of each kernel a model uses: chosen once, when it is built."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial

import torch
import torch.nn.functional as F

from runtime.kernels import (
    batch_invariant_torch,
    fp8_fused,
    fp8_linear,
    group_quantized_linear,
    quant_reference,
    sandwich_norm,
)
from runtime.kernels.activation import gate_mul, gate_mul_reference
from runtime.kernels.batch_invariant_gemm import product
from runtime.kernels.fused_argmax import likeliest, likeliest_reference
from runtime.kernels.fused_moe import fp8_moe, group_quantized_moe
from runtime.kernels.fused_moe.fused_moe import moe, moe_add_norm, products
from runtime.kernels.fused_softmax_stats import describe
from runtime.kernels.gate_up_gemm import gated_product
from runtime.kernels.gemm_add_norm import product_add_norm
from runtime.kernels.layernorm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from runtime.kernels.lora import LoraKernel, add_lora, add_lora_reference
from runtime.kernels.moe import moe_torch
from runtime.kernels.moe_router import route, route_reference
from runtime.kernels.moe_router_gemm import router_logits, router_logits_reference
from runtime.kernels.rotary_and_cache import qkv_to_pages, qkv_to_pages_reference
from runtime.kernels.signatures import (
    AddRMSNormKernel,
    DescribeKernel,
    DrawKernel,
    FillKernel,
    Fp8LinearKernel,
    GatedProductKernel,
    GateKernel,
    GroupedLinearKernel,
    LikeliestKernel,
    LinearKernel,
    MeanKernel,
    MoEAddNormKernel,
    MoEKernel,
    ProductAddNormKernel,
    QKVToPagesKernel,
    RMSNormKernel,
    RouteKernel,
    RouterLogitsKernel,
    Sandwich,
    TableKernel,
)
from runtime.kernels.topk_topp_sampling import draw
from runtime.kernels.unmask import fill
from runtime.kernels.weighted_embedding import mean, mean_reference


@dataclass(frozen=True)
class Fp8Kernels:
    """What computes with weights of eight bits, and what makes their rows."""

    linear: Fp8LinearKernel
    moe: MoEKernel
    moe_add_norm: MoEAddNormKernel | None
    rms_norm: RMSNormKernel
    add_rms_norm: AddRMSNormKernel
    gate_mul: GateKernel
    # norms make their rows, each for itself
    product_add_norm: ProductAddNormKernel | None = None
    sandwich: Sandwich | None = None


@dataclass(frozen=True)
class GroupedKernels:
    """What computes with rows as they are and weights of few bits (``group_quantized.py``)."""

    linear: GroupedLinearKernel
    moe: MoEKernel
    moe_add_norm: MoEAddNormKernel | None
    sandwich: Sandwich | None = None


@dataclass(frozen=True)
class Kernels:
    """One set of implementations with equal signatures (each reference's docstring is the contract)."""

    name: str
    turns: bool  # `moe` takes gate and up rows in turns (`turns.in_turns`), not gates first
    parts: bool  # `router_logits` takes, for a bfloat16 model, its weight in parts (`router.split_parts`) too
    rms_norm: RMSNormKernel
    add_rms_norm: AddRMSNormKernel
    product_add_norm: ProductAddNormKernel | None  # `add_rms_norm` of a plain product, in less than the two take
    qkv_to_pages: QKVToPagesKernel
    gate_mul: GateKernel
    gated_product: GatedProductKernel | None  # a dense layer's plain gate and up rows, which it takes in turns
    router_logits: RouterLogitsKernel
    route: RouteKernel
    moe: MoEKernel
    moe_add_norm: MoEAddNormKernel | None  # `moe`, then `add_rms_norm`, in less than the two take
    likeliest: LikeliestKernel
    fill: (
        FillKernel | None
    )  # what `algorithms.common` and `worker.sample.sampler_output` do for the plainest rules, in less launches
    describe: DescribeKernel | None  # what `worker.sample.sampler` does for rules of noise, reading the logits once
    draw: DrawKernel | None  # what `algorithms.sampling` does to draw, without sorting
    sandwich: Sandwich | None  # norms between parts, in less than each for itself takes
    add_lora: LoraKernel
    fp8: Fp8Kernels
    grouped: GroupedKernels
    linear: LinearKernel = F.linear  # of plain weights
    mean: MeanKernel = mean_reference  # of embeddings
    logits: TableKernel | None = None  # of a head that is capped; None: ``layers.lm_head.head_logits``
    fixed: bool = False  # a row's bits depend on what is beside it in no way: `--deterministic`

    def of(self, quantization: str | None) -> Kernels:
        """For models whose experts are kept in this format."""
        if quantization is None:
            return self
        own = self.fp8 if quantization == "fp8" else self.grouped
        return replace(self, **{f.name: getattr(own, f.name) for f in fields(own) if f.name != "linear"})


TORCH = Kernels(
    name="torch",
    turns=False,
    parts=False,
    rms_norm=rms_norm_reference,
    add_rms_norm=add_rms_norm_reference,
    product_add_norm=None,
    qkv_to_pages=qkv_to_pages_reference,
    gate_mul=gate_mul_reference,
    gated_product=None,
    router_logits=router_logits_reference,
    route=route_reference,
    moe=moe_torch,
    moe_add_norm=None,
    likeliest=likeliest_reference,
    fill=None,
    describe=None,
    draw=None,
    sandwich=None,
    add_lora=add_lora_reference,
    fp8=Fp8Kernels(
        quant_reference.linear_torch,
        quant_reference.moe_torch,
        None,
        rms_norm_reference,
        add_rms_norm_reference,
        gate_mul_reference,
    ),
    grouped=GroupedKernels(quant_reference.linear_torch, quant_reference.moe_torch, None),
)


TRITON = Kernels(
    name="triton",
    turns=True,
    parts=True,
    rms_norm=rms_norm,
    add_rms_norm=add_rms_norm,
    product_add_norm=product_add_norm,
    qkv_to_pages=qkv_to_pages,
    gate_mul=gate_mul,
    gated_product=gated_product,
    router_logits=router_logits,
    route=route,
    moe=moe,
    moe_add_norm=moe_add_norm,
    likeliest=likeliest,
    fill=fill,
    describe=describe,
    draw=draw,
    sandwich=Sandwich(sandwich_norm.before, sandwich_norm.after, products),
    add_lora=add_lora,
    fp8=Fp8Kernels(
        fp8_linear.linear,
        fp8_moe.moe,
        fp8_moe.moe_add_norm,
        fp8_fused.rms_norm,
        fp8_fused.add_rms_norm,
        fp8_fused.gate_mul,
    ),
    grouped=GroupedKernels(
        group_quantized_linear.linear,
        group_quantized_moe.moe,
        group_quantized_moe.moe_add_norm,
        Sandwich(sandwich_norm.before, sandwich_norm.after, group_quantized_moe.products),
    ),
)


FIXED_TRITON = replace(
    TRITON,
    name="triton, fixed",
    product_add_norm=None,
    gated_product=None,
    router_logits=partial(router_logits, fixed=True),
    moe=partial(moe, fixed=True),
    moe_add_norm=partial(moe_add_norm, fixed=True),
    likeliest=partial(likeliest, fixed=True),
    sandwich=Sandwich(sandwich_norm.before, sandwich_norm.after, partial(products, fixed=True)),
    fp8=replace(
        TRITON.fp8,
        linear=partial(fp8_linear.linear, fixed=True),
        moe=partial(fp8_moe.moe, fixed=True),
        moe_add_norm=partial(fp8_moe.moe_add_norm, fixed=True),
    ),
    grouped=replace(
        TRITON.grouped, linear=partial(group_quantized_linear.linear, fixed=True)
    ),  # experts' cuts all sum alike
    linear=product,
    mean=mean,
    logits=partial(product, dtype=torch.float32),
    fixed=True,
)


FIXED_TORCH = replace(
    TORCH,
    name="torch, by row",
    rms_norm=batch_invariant_torch.rms_norm,
    add_rms_norm=batch_invariant_torch.add_rms_norm,
    qkv_to_pages=batch_invariant_torch.qkv_to_pages,
    gate_mul=batch_invariant_torch.gate_mul,
    router_logits=batch_invariant_torch.router_logits,
    route=batch_invariant_torch.route,
    moe=batch_invariant_torch.moe,
    fp8=Fp8Kernels(
        batch_invariant_torch.packed_linear,
        batch_invariant_torch.packed_moe,
        None,
        batch_invariant_torch.rms_norm,
        batch_invariant_torch.add_rms_norm,
        batch_invariant_torch.gate_mul,
    ),
    grouped=GroupedKernels(batch_invariant_torch.packed_linear, batch_invariant_torch.packed_moe, None),
    add_lora=batch_invariant_torch.add_lora,
    linear=batch_invariant_torch.linear,
    fixed=True,
)


def select_kernels(
    device: torch.device, dtype: torch.dtype, quantization: str | None = None, *, deterministic: bool = False
) -> Kernels:
    """Triton on CUDA, torch elsewhere. float64, which exists for tests, is torch everywhere."""
    on_gpu = device.type == "cuda" and dtype != torch.float64
    if deterministic:
        return (FIXED_TRITON if on_gpu else FIXED_TORCH).of(quantization)
    return (TRITON if on_gpu else TORCH).of(quantization)
