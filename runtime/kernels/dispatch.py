"""Which implementation of each kernel a model uses: chosen once, when it is built."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial

import torch
import torch.nn.functional as F

from runtime.kernels import (
    by_row,
    fp8_experts,
    fp8_fused,
    fp8_linear,
    grouped_experts,
    grouped_linear,
    packed_torch,
    sandwich,
)
from runtime.kernels.distribution import describe
from runtime.kernels.draw import draw
from runtime.kernels.expert_products import moe, moe_add_norm, products
from runtime.kernels.filling import fill
from runtime.kernels.gate import gate_mul, gate_mul_reference
from runtime.kernels.gated_product import gated_product
from runtime.kernels.greedy_head import likeliest, likeliest_reference
from runtime.kernels.lora import LoraKernel, add_lora, add_lora_reference
from runtime.kernels.mean import mean, mean_reference
from runtime.kernels.moe import moe_torch
from runtime.kernels.product import product
from runtime.kernels.product_norm import product_add_norm
from runtime.kernels.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from runtime.kernels.rotary import qkv_to_pages, qkv_to_pages_reference
from runtime.kernels.router import router_logits, router_logits_reference
from runtime.kernels.routing import route, route_reference
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
    """What computes with rows as they are and weights of few bits (``grouped.py``)."""

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
        packed_torch.linear_torch,
        packed_torch.moe_torch,
        None,
        rms_norm_reference,
        add_rms_norm_reference,
        gate_mul_reference,
    ),
    grouped=GroupedKernels(packed_torch.linear_torch, packed_torch.moe_torch, None),
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
    sandwich=Sandwich(sandwich.before, sandwich.after, products),
    add_lora=add_lora,
    fp8=Fp8Kernels(
        fp8_linear.linear,
        fp8_experts.moe,
        fp8_experts.moe_add_norm,
        fp8_fused.rms_norm,
        fp8_fused.add_rms_norm,
        fp8_fused.gate_mul,
    ),
    grouped=GroupedKernels(
        grouped_linear.linear,
        grouped_experts.moe,
        grouped_experts.moe_add_norm,
        Sandwich(sandwich.before, sandwich.after, grouped_experts.products),
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
    sandwich=Sandwich(sandwich.before, sandwich.after, partial(products, fixed=True)),
    fp8=replace(
        TRITON.fp8,
        linear=partial(fp8_linear.linear, fixed=True),
        moe=partial(fp8_experts.moe, fixed=True),
        moe_add_norm=partial(fp8_experts.moe_add_norm, fixed=True),
    ),
    grouped=replace(TRITON.grouped, linear=partial(grouped_linear.linear, fixed=True)),  # experts' cuts all sum alike
    linear=product,
    mean=mean,
    logits=partial(product, dtype=torch.float32),
    fixed=True,
)


FIXED_TORCH = replace(
    TORCH,
    name="torch, by row",
    rms_norm=by_row.rms_norm,
    add_rms_norm=by_row.add_rms_norm,
    qkv_to_pages=by_row.qkv_to_pages,
    gate_mul=by_row.gate_mul,
    router_logits=by_row.router_logits,
    route=by_row.route,
    moe=by_row.moe,
    fp8=Fp8Kernels(
        by_row.packed_linear, by_row.packed_moe, None, by_row.rms_norm, by_row.add_rms_norm, by_row.gate_mul
    ),
    grouped=GroupedKernels(by_row.packed_linear, by_row.packed_moe, None),
    add_lora=by_row.add_lora,
    linear=by_row.linear,
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
