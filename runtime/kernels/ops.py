"""Selects the implementation of each kernel once, when a model is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.kernels import batch_invariant_torch, layernorm, moe_router, rotary_and_cache
from runtime.kernels.activation import Activation, act_and_mul, act_and_mul_quant, act_and_mul_reference, fused_gate_up
from runtime.kernels.bitmask_argmax import bitmask_argmax, bitmask_argmax_reference
from runtime.kernels.fp8_argmax import fp8_lm_head_argmax
from runtime.kernels.fused_argmax import ArgmaxOutput, lm_head_argmax, lm_head_argmax_reference
from runtime.kernels.fused_moe.fused_moe import fused_experts, fused_moe, fused_moe_add_norm, moe_torch
from runtime.kernels.fused_softmax_stats import SoftmaxStats, StatsRequest, softmax_stats
from runtime.kernels.linear import batch_invariant_gemm, fp8_linear, group_quantized_linear, quantized_linear_torch
from runtime.kernels.lora import LoRAKernel, add_lora, add_lora_reference
from runtime.kernels.next_segments import BlockCounters, choose_segments, choose_segments_reference
from runtime.kernels.nvfp4_gemm import nvfp4_linear
from runtime.kernels.quantized_tensor import Fp8, quantize_fp8_weight
from runtime.kernels.segments import ForwardRows, RowTables, expand_segments, expand_segments_reference
from runtime.kernels.topk_topp_sampling import topk_topp_sample
from runtime.kernels.uniform_numbers import uniform_numbers, uniform_numbers_reference
from runtime.kernels.unmask import BlockInputs, SampledRows, UnmaskOutput, threshold_unmask
from runtime.kernels.weighted_embedding import soft_embedding, soft_embedding_reference

OptTensor = Tensor | None
TensorPair = tuple[Tensor, Tensor]
LinearKernel = Callable[[Tensor, Tensor, OptTensor], Tensor]  # the signature of ``F.linear``
QuantizedLinearKernel = Callable[[Tensor, Any, OptTensor], Tensor]  # with ``Weight.kernel_arg``
TableKernel = Callable[[Tensor, Tensor], Tensor]  # rows [n, size], table [ids, size] -> [n, ids]
QuantizeFp8WeightKernel = Callable[[Tensor, Fp8, int, range, int, torch.dtype, Tensor], None]
SoftEmbeddingKernel = Callable[[Tensor, Tensor, OptTensor], Tensor]
RMSNormKernel = Callable[[Tensor, OptTensor, float], Tensor]
AddRMSNormKernel = Callable[[Tensor, Tensor, OptTensor, float], TensorPair]
ReduceAddNormKernel = Callable[[tuple[Tensor, ...], slice, Tensor, OptTensor, float, Tensor], None]
GemmAddNormKernel = Callable[[Tensor, Tensor, Tensor, OptTensor, float], TensorPair]
QKNormRopeAndCacheKernel = Callable[
    [Tensor, Tensor, Tensor, OptTensor, OptTensor, rotary_and_cache.QKNormRopeConfig, Tensor, Tensor, Tensor], Tensor
]
ActAndMulKernel = Callable[[Tensor, Activation], Tensor]
FusedGateUpKernel = Callable[[Tensor, Tensor, Activation], Tensor]
RouterLogitsKernel = Callable[[Tensor, Tensor, OptTensor], Tensor]
SelectExpertsKernel = Callable[[Tensor, OptTensor, moe_router.RoutingConfig, OptTensor], TensorPair]
# gate_up and down are kernel arguments of the quantization format (``Weight.kernel_arg``)
MoEKernel = Callable[[Tensor, Tensor, Tensor, Any, Any, OptTensor, Activation, OptTensor], Tensor]
MoEAddNormKernel = Callable[[Tensor, Tensor, Tensor, Any, Any, OptTensor, Tensor, OptTensor, float], TensorPair]
UnmaskKernel = Callable[[BlockInputs, SampledRows, int | None, Tensor], UnmaskOutput]
ChooseSegmentsKernel = Callable[[BlockCounters, Tensor, Tensor, Tensor, Tensor], None]
ExpandSegmentsKernel = Callable[[Tensor, RowTables, int, int, int], ForwardRows]
SoftmaxStatsKernel = Callable[[Tensor, StatsRequest], SoftmaxStats]
BitmaskArgmaxKernel = Callable[[Tensor, Tensor, Tensor], Tensor]
UniformNumbersKernel = Callable[[Tensor, Tensor, Tensor, int], Tensor]


class LMHeadArgmaxKernel(Protocol):
    def __call__(
        self, hidden: Tensor, weight: Tensor, *, mask_id: int | None, max_token_id: int,
        allowed_ids: Sequence[int] = (), num_valid: OptTensor = None,
    ) -> ArgmaxOutput: ...  # fmt: skip


class Fp8LMHeadArgmaxKernel(Protocol):
    def __call__(
        self, hidden: Tensor, weight: Tensor, codes: Fp8, *, mask_id: int | None, max_token_id: int,
        allowed_ids: Sequence[int] = (), num_valid: OptTensor = None,
    ) -> ArgmaxOutput: ...  # fmt: skip


class TopKTopPSampleKernel(Protocol):
    def __call__(self, logits: Tensor, params: Tensor, uniform: Tensor, *, num_unfiltered: int = 0) -> TensorPair: ...


@dataclass(frozen=True)
class QuantizingKernels:
    """Kernels of an fp8 model. Those before its GEMMs attach the fp8 form to their output."""

    lm_head_argmax: Fp8LMHeadArgmaxKernel
    rms_norm: RMSNormKernel
    add_rms_norm: AddRMSNormKernel
    act_and_mul: ActAndMulKernel


@dataclass(frozen=True, kw_only=True)
class KernelSet:
    """One set of kernels; the docstring of each reference implementation is the contract."""

    name: str
    expand_segments: ExpandSegmentsKernel = expand_segments_reference
    choose_segments: ChooseSegmentsKernel = choose_segments_reference
    uniform_numbers: UniformNumbersKernel = uniform_numbers_reference
    interleaved_gate_up: bool = False  # `moe` expects interleaved gate and up rows (`interleave_gate_up`)
    split_router_weight: bool = False  # `router_logits` accepts, for bfloat16 models, a weight from `split_bf16x3`
    rms_norm: RMSNormKernel
    add_rms_norm: AddRMSNormKernel
    reduce_add_norm: ReduceAddNormKernel | None = None  # a reduce-scatter, `add_rms_norm` and an all-gather of rows
    gemm_add_norm: GemmAddNormKernel | None = None  # GEMM of an unquantized weight, then `add_rms_norm`
    qk_norm_rope_and_cache: QKNormRopeAndCacheKernel
    act_and_mul: ActAndMulKernel
    fused_gate_up: FusedGateUpKernel | None = None  # for a dense layer's interleaved, unquantized gate and up rows
    router_logits: RouterLogitsKernel
    select_experts: SelectExpertsKernel
    moe: MoEKernel
    moe_add_norm: MoEAddNormKernel | None = None  # `moe`, then `add_rms_norm`
    lm_head_argmax: LMHeadArgmaxKernel
    fp8_lm_head_argmax: Fp8LMHeadArgmaxKernel | None = None  # used instead of `lm_head_argmax`
    bitmask_argmax: BitmaskArgmaxKernel = bitmask_argmax_reference
    # fused `algorithms.base` and `worker.sampler`, for the simplest algorithms
    threshold_unmask: UnmaskKernel | None = None
    softmax_stats: SoftmaxStatsKernel | None = None  # statistics that `worker.sampler` needs for renoising algorithms
    topk_topp_sample: TopKTopPSampleKernel | None = None  # None: `filtered_probs` and `multinomial`
    sandwich_norms: layernorm.SandwichNormOps | None = None  # fused norms between sublayers
    add_lora: LoRAKernel
    linear: LinearKernel = F.linear  # for unquantized weights
    fp8_linear: QuantizedLinearKernel
    group_quantized_linear: QuantizedLinearKernel
    nvfp4_linear: QuantizedLinearKernel
    quantize_fp8_weight: QuantizeFp8WeightKernel | None = None  # None: ``quantized_tensor.quantize_fp8_reference``
    quantizing: QuantizingKernels | None = None  # for fp8 models; None: no kernel attaches the fp8 form
    soft_embedding: SoftEmbeddingKernel = soft_embedding_reference
    head_logits: TableKernel | None = None  # for a soft-capped lm_head; None: ``layers.lm_head.head_logits``
    batch_invariant: bool = False  # the bits of a row do not depend on the other rows: `--deterministic`

    def for_quantization(self, quantization: str | None) -> KernelSet:
        """Returns the kernels for models with weights of this format, or of several, joined with +."""
        if self.quantizing is None or "fp8" not in (quantization or "").split("+"):
            return self
        return replace(
            self,
            rms_norm=self.quantizing.rms_norm,
            add_rms_norm=self.quantizing.add_rms_norm,
            act_and_mul=self.quantizing.act_and_mul,
            reduce_add_norm=None,  # the separate norms quantize their output
            gemm_add_norm=None,
            sandwich_norms=None,
        )


TORCH = KernelSet(
    name="torch",
    rms_norm=layernorm.rms_norm_reference,
    add_rms_norm=layernorm.add_rms_norm_reference,
    reduce_add_norm=layernorm.reduce_add_norm_reference,
    qk_norm_rope_and_cache=rotary_and_cache.qk_norm_rope_and_cache_reference,
    act_and_mul=act_and_mul_reference,
    router_logits=moe_router.router_logits_reference,
    select_experts=moe_router.select_experts_reference,
    moe=moe_torch,
    lm_head_argmax=lm_head_argmax_reference,
    add_lora=add_lora_reference,
    fp8_linear=quantized_linear_torch,
    group_quantized_linear=quantized_linear_torch,
    nvfp4_linear=quantized_linear_torch,
)


SANDWICH_NORMS = layernorm.SandwichNormOps(layernorm.pre_mlp_norms, layernorm.post_mlp_norms, fused_experts)
TRITON = KernelSet(
    name="triton",
    expand_segments=expand_segments,
    choose_segments=choose_segments,
    uniform_numbers=uniform_numbers,
    interleaved_gate_up=True,
    split_router_weight=True,
    rms_norm=layernorm.rms_norm,
    add_rms_norm=layernorm.add_rms_norm,
    reduce_add_norm=layernorm.reduce_add_norm,
    gemm_add_norm=layernorm.gemm_add_norm,
    qk_norm_rope_and_cache=rotary_and_cache.qk_norm_rope_and_cache,
    act_and_mul=act_and_mul,
    fused_gate_up=fused_gate_up,
    router_logits=moe_router.router_logits,
    select_experts=moe_router.select_experts,
    moe=fused_moe,
    moe_add_norm=fused_moe_add_norm,
    lm_head_argmax=lm_head_argmax,
    bitmask_argmax=bitmask_argmax,
    threshold_unmask=threshold_unmask,
    softmax_stats=softmax_stats,
    topk_topp_sample=topk_topp_sample,
    sandwich_norms=SANDWICH_NORMS,
    add_lora=add_lora,
    fp8_linear=fp8_linear,
    group_quantized_linear=group_quantized_linear,
    nvfp4_linear=nvfp4_linear,
    quantize_fp8_weight=quantize_fp8_weight,
    quantizing=QuantizingKernels(
        fp8_lm_head_argmax, layernorm.rms_norm_quant, layernorm.add_rms_norm_quant, act_and_mul_quant
    ),
)


BATCH_INVARIANT_TRITON = replace(
    TRITON,
    name="triton, fixed",
    gemm_add_norm=None,
    fused_gate_up=None,
    router_logits=partial(moe_router.router_logits, batch_invariant=True),
    moe=partial(fused_moe, batch_invariant=True),
    moe_add_norm=partial(fused_moe_add_norm, batch_invariant=True),
    lm_head_argmax=partial(lm_head_argmax, batch_invariant=True),
    sandwich_norms=SANDWICH_NORMS._replace(fused_experts=partial(fused_experts, batch_invariant=True)),
    linear=batch_invariant_gemm,
    fp8_linear=partial(fp8_linear, batch_invariant=True),
    group_quantized_linear=partial(group_quantized_linear, batch_invariant=True),
    nvfp4_linear=partial(nvfp4_linear, batch_invariant=True),
    soft_embedding=soft_embedding,
    head_logits=partial(batch_invariant_gemm, dtype=torch.float32),
    batch_invariant=True,
)


BATCH_INVARIANT_TORCH = replace(
    TORCH,
    name="torch, by row",
    rms_norm=batch_invariant_torch.rms_norm,
    add_rms_norm=batch_invariant_torch.add_rms_norm,
    qk_norm_rope_and_cache=batch_invariant_torch.qk_norm_rope_and_cache,
    act_and_mul=batch_invariant_torch.act_and_mul,
    router_logits=batch_invariant_torch.router_logits,
    select_experts=batch_invariant_torch.select_experts,
    moe=batch_invariant_torch.moe,
    add_lora=batch_invariant_torch.add_lora,
    linear=batch_invariant_torch.linear,
    fp8_linear=batch_invariant_torch.quantized_linear,
    group_quantized_linear=batch_invariant_torch.quantized_linear,
    nvfp4_linear=batch_invariant_torch.quantized_linear,
    batch_invariant=True,
)


def select_kernels(
    device: torch.device, dtype: torch.dtype, quantization: str | None = None, *, deterministic: bool = False
) -> KernelSet:
    """Returns the Triton kernels on CUDA, those of torch elsewhere and for float64 (used by tests only)."""
    on_gpu = device.type == "cuda" and dtype != torch.float64
    if deterministic:
        return (BATCH_INVARIANT_TRITON if on_gpu else BATCH_INVARIANT_TORCH).for_quantization(quantization)
    return (TRITON if on_gpu else TORCH).for_quantization(quantization)
