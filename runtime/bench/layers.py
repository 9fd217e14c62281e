"""Compares each layer of a step with the kernels' references.

Both compute every layer from the same input, so that rounding differences of one layer do not add to those of the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from runtime.kernels.activation import Activation, deinterleave
from runtime.kernels.common import wide
from runtime.kernels.layernorm import SandwichNormOps, gemm_add_norm_reference, post_mlp_norms_reference
from runtime.kernels.ops import TORCH, KernelSet
from runtime.layers.attention import TorchAttention, TritonAttention
from runtime.parameters.weight import named_weights
from runtime.quantization.base import QuantizedWeight
from runtime.quantization.fp8 import Fp8Weight
from runtime.scheduling.step_plan import StepPlan
from runtime.worker.model_runner import ModelRunner

ALLOWED = {torch.bfloat16: 2e-2, torch.float16: 5e-3, torch.float32: 1e-4, torch.float64: 1e-9}
ALLOWED_FP8 = 0.1  # the references do not quantize activations to FP8


@torch.inference_mode()
def layer_error(runner: ModelRunner, plan: StepPlan) -> float:
    """Returns the largest relative error of a layer's outputs over all layers of a step.

    If the model runs the attention and the MLP of its last layer separately, they are compared separately.

    Raises:
        RuntimeError: the error is larger than rounding explains.
    """
    model = cast(Any, runner.model)
    layers = list(model.layers)
    inputs: list[tuple[Any, ...]] = []
    outputs: list[list[torch.Tensor]] = []
    errors: list[float] = []

    def record_layer(layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        inputs.append(tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args))
        outputs.append([part.clone() for part in _tensors(out)])

    def replay_inputs(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        recorded = inputs[len(errors)]
        return tuple(old if isinstance(old, torch.Tensor) else arg for old, arg in zip(recorded, args, strict=True))

    def compare_outputs(layer: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
        recorded = outputs[len(errors)]
        errors.append(max(_relative_error(*pair) for pair in zip(recorded, _tensors(out), strict=True)))
        # so that later code has the same inputs
        return recorded[0] if isinstance(out, torch.Tensor) else tuple(recorded)

    with _hooked(layers, None, record_layer):
        left = _forward(runner, plan)
    finished = model.final_hidden_states(left)
    with _references(model, runner.pool.dtype), _hooked(layers, replay_inputs, compare_outputs):
        errors.append(_relative_error(left, _forward(runner, plan)))
        errors.append(_relative_error(finished, model.final_hidden_states(left)))
    worst = max(range(len(errors)), key=errors.__getitem__)
    is_fp8 = any(isinstance(weight.active, Fp8Weight) for weight in named_weights(model).values())
    allowed = ALLOWED_FP8 if is_fp8 else ALLOWED[runner.pool.dtype]
    if not errors[worst] <= allowed:
        raise RuntimeError(
            f"layer {worst} has a relative error of {errors[worst]:.2g}, above the limit of {allowed:g}; the times are "
            "not valid"
        )
    return errors[worst]


def _forward(runner: ModelRunner, plan: StepPlan) -> torch.Tensor:
    batch = runner.batch(plan)
    return runner.model.forward(runner.model.embed(batch.tokens), batch, runner.pool)


def _relative_error(made: torch.Tensor, reference: torch.Tensor) -> float:
    return float((made.double() - reference.double()).norm() / reference.double().norm())


def _tensors(out: Any) -> list[torch.Tensor]:
    return [out] if isinstance(out, torch.Tensor) else list(out)


@contextmanager
def _hooked(layers: list[nn.Module], before: Any, after: Any) -> Iterator[None]:
    hooks = [layer.register_forward_hook(after) for layer in layers]
    if before is not None:
        hooks += [layer.register_forward_pre_hook(before) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _references(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Makes every module of `model` compute with the references inside the context."""
    before: list[tuple[object, str, Any]] = []

    def put(owner: object, name: str, value: Any) -> None:
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for part in model.modules():
        for name, held in list(vars(part).items()):
            if isinstance(held, KernelSet):
                put(part, name, _reference_kernels(held))
            elif isinstance(held, TritonAttention):
                put(part, name, TorchAttention(held.shape, dtype))
            elif isinstance(held, list) and all(isinstance(each, TritonAttention) for each in held):
                put(part, name, [TorchAttention(each.shape, dtype) for each in held])
    for weight in named_weights(model).values():
        if isinstance(weight, QuantizedWeight):
            put(weight, "linear", _dequantized_linear)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def _reference_kernels(kernels: KernelSet) -> KernelSet:
    """Returns the references with the arguments of `kernels`. Quantized weights are dequantized."""

    def experts(
        x: Any, ids: Any, weights: Any, gate_up: Any, down: Any, shared: Any, activation: Any = "silu", out: Any = None
    ) -> torch.Tensor:
        gate_up, down = _dequantized(gate_up, x.dtype), _dequantized(down, x.dtype)
        gate_up = deinterleave(gate_up) if kernels.interleaved_gate_up else gate_up
        return TORCH.moe(x, ids, weights, gate_up, down, shared, activation, out)

    def scores(x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
        return TORCH.router_logits(x, weight.float().sum(0) if weight.dim() == 3 else weight, factor)

    def pairs(x: torch.Tensor, ids: torch.Tensor, gate_up: Any, down: Any, activation: Activation) -> torch.Tensor:
        alone = x.repeat_interleave(ids.shape[1], 0)
        ones = torch.ones(len(alone), 1, dtype=wide(x.dtype), device=x.device)
        return experts(alone, ids.reshape(-1, 1), ones, gate_up, down, None, activation)

    # pre_mlp_norms stays, so that the router sees identical rows: experts with nearly equal scores could change places
    sandwich_norms = (
        None
        if kernels.sandwich_norms is None
        else SandwichNormOps(kernels.sandwich_norms.pre_mlp_norms, post_mlp_norms_reference, pairs)
    )
    added = None if kernels.gemm_add_norm is None else gemm_add_norm_reference  # rounds as often as the kernel
    return replace(TORCH, moe=experts, router_logits=scores, sandwich_norms=sandwich_norms, gemm_add_norm=added)


def _dequantized(kernel_arg: Any, dtype: torch.dtype) -> torch.Tensor:
    made: torch.Tensor = kernel_arg if isinstance(kernel_arg, torch.Tensor) else kernel_arg.dequantize(dtype)
    return made


def _dequantized_linear(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    return F.linear(x, weight.dequantize(x.dtype), bias)
