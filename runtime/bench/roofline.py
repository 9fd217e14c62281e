"""Lower bounds for the time of a step, from its reads and its arithmetic at the rates of a device.

It is computed twice: as if all reads and all arithmetic overlapped, and as a chain of parts, where the reads of a part
overlap only with its own arithmetic.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import nn

from runtime.bench.device_peaks import measure_rates
from runtime.kernels.quantized_tensor import Fp8
from runtime.kernels.segments import COUNT, Segment, visible_end_of
from runtime.layers.kv_pool import KVPool
from runtime.layers.moe import Router
from runtime.models.base import Model, SelfConditioned
from runtime.models.decoder import Decoder
from runtime.parameters.weight import named_weights
from runtime.scheduling.step_plan import StepPlan

FP8_SPEEDUP = 2.0  # rate of FP8 GEMMs relative to bfloat16

# 10^12 operations and bytes per second, by the name of the device. Those of the H200 were measured: 80 % of NVIDIA's
# number for bfloat16 without sparsity and 88 % of that for memory. The others are these fractions of NVIDIA's numbers.
RATES = {
    "NVIDIA A100-SXM4-80GB": (250.0, 1.79),
    "NVIDIA H100 80GB HBM3": (790.0, 2.94),
    "NVIDIA H200": (790.0, 4.2),
    "NVIDIA B200": (1800.0, 7.0),
}
LAYER = re.compile(r"(layers\.\d+)\.(\w+)\.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rates = (
        "rate for the lower bounds: 10^12 {} per second; default: that of the device, measured if the device is unknown"
    )
    parser.add_argument("--tflops", type=float, help=rates.format("operations"))
    parser.add_argument("--tbs", type=float, help=rates.format("bytes read"))


def set_rates(args: argparse.Namespace, device: torch.device) -> None:
    """Sets the rates that the flags leave out to those of `device`, a GPU."""
    if args.tflops is not None and args.tbs is not None:
        return
    known = RATES.get(torch.cuda.get_device_name(device))
    tflops, tbs = measure_rates(device) if known is None else known
    args.tflops = tflops if args.tflops is None else args.tflops
    args.tbs = tbs if args.tbs is None else args.tbs


@dataclass(frozen=True)
class Part:
    """Reads and arithmetic that may overlap.

    Attributes:
        nbytes: bytes read.
        flops: 16-bit operations that take the same time; FP8 operations count half.
    """

    nbytes: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Part) -> Part:
        return Part(self.nbytes + other.nbytes, self.flops + other.flops)

    def milliseconds(self, args: argparse.Namespace) -> float:
        return float(max(self.nbytes / args.tbs, self.flops / args.tflops)) / 1e9


@dataclass(frozen=True)
class Work:
    """The parts of one step, none of which overlaps with another one."""

    parts: dict[str, Part]

    @property
    def total(self) -> Part:
        return sum(self.parts.values(), Part())

    def milliseconds(self, args: argparse.Namespace) -> float:
        """Returns the time if all parts overlap."""
        return self.total.milliseconds(args)

    def chained(self, args: argparse.Namespace) -> float:
        """Returns milliseconds of the parts, one after the other."""
        return sum(part.milliseconds(args) for part in self.parts.values())

    def columns(self, wall: float, args: argparse.Namespace) -> dict[str, float]:
        """Returns the columns of a step that took `wall` milliseconds."""
        floor, chained = self.milliseconds(args), self.chained(args)
        return {
            "floor_ms": round(floor, 3), "of_floor": round(wall / floor, 2),
            "chain_floor_ms": round(chained, 3), "of_chain_floor": round(wall / chained, 2),
        }  # fmt: skip


def work_of(model: nn.Module, pool: KVPool, plan: StepPlan, experts: Sequence[int]) -> Work:
    """Returns the reads and the arithmetic of a step.

    The work of the last layer after its attention counts only for rows that it runs on (``Model.final_hidden_states``).

    Args:
        model: The model.
        pool: its KV pool.
        plan: of the step.
        experts: number of selected experts per MoE layer, in the layers' order.
    """
    rows = plan.num_rows
    sampled = 0 if plan.blocks is None else int(plan.blocks.sampled.sum())
    routers = {path: part for path, part in model.named_modules() if isinstance(part, Router)}
    chosen = {path.rpartition(".")[0]: (part, n) for (path, part), n in zip(routers.items(), experts, strict=True)}
    weights = named_weights(model)
    table = weights["embed_tokens.weight"]
    head = "lm_head_weight" if "lm_head_weight" in weights else "embed_tokens.weight"
    sampled_only: tuple[str, ...] = (head,)
    if isinstance(model, Decoder) and model.split_last_layer:
        sampled_only = (head, f"layers.{len(model.kv_shapes) - 1}.mlp.")
    parts: defaultdict[str, Part] = defaultdict(Part)
    parts["embedding"] = Part(min(1.0, rows / table.shape[0]) * table.nbytes)
    for path, weight in weights.items():
        here = sampled if path.startswith(sampled_only) else rows
        if weight is table and path != head:
            continue  # a lookup without a GEMM
        if len(weight.shape) == 3:
            router, count = chosen[path.rpartition(".")[0]]
            touched, uses = count / weight.shape[0], here * router.routing.top_k / weight.shape[0]
        else:
            touched, uses = float(here > 0), float(here) if len(weight.shape) == 2 else 0.0
        rate = FP8_SPEEDUP if isinstance(weight.kernel_arg, Fp8) else 1.0
        part = Part(touched * weight.nbytes, 2.0 * uses * weight.size / rate)
        parts["head" if path == head else _name(path, weights)] += part
        if path == head and isinstance(model, SelfConditioned):
            parts["mean"] = part  # the weighted mean of all embeddings, for the self-conditioning of the next step
    shapes = cast(Model, model).kv_shapes
    read = {window: _read(plan, window) for window in {shape.window for shape in shapes}}
    for index, shape in enumerate(shapes):
        kv, (keys, pairs) = pool.layer(index), read[shape.window]
        token = (kv.k.nbytes + kv.v.nbytes) / (pool.num_pages * pool.page_size)
        width = weights[f"layers.{index}.self_attn.o_proj.weight"].shape[-1]
        # two GEMMs: scores, and the weighted sum of values
        parts[f"layers.{index}.attention"] = Part(keys * token, 4.0 * width * pairs)
    return Work(dict(parts))


def _name(path: str, weights: Container[str]) -> str:
    """Returns the name of the part that a weight belongs to.

    Each GEMM is a part, except for GEMMs that do not depend on each other. Experts and the dense layer of
    DiffusionGemma, or experts and a shared expert of other models, are one part with all of their GEMMs. The dependency
    of down on gate_up does not change the bound there: on both sides, down has half the bytes and half the arithmetic
    of gate_up.
    """
    if found := LAYER.match(path):
        layer, half = found.groups()
        if half in ("mlp", "experts") and f"{layer}.experts.gate_up_proj" in weights:
            return f"{layer}.dense+experts"
        if f"{layer}.{half}.shared_experts.down_proj.weight" in weights:
            return f"{layer}.{half}"
    return path.removesuffix(".weight").removesuffix(".bias")


def _read(plan: StepPlan, window: int | None) -> tuple[int, int]:
    """Returns counts for a layer with this window: keys that the requests see, and pairs of a row and a visible key."""
    keys = pairs = 0
    for row in plan.segments[plan.segments[:, COUNT] > 0]:
        segment = Segment(*row.tolist())
        positions = np.arange(segment.start, segment.start + segment.count)
        end = visible_end_of(row[None], positions)
        back = 0 if window is None else np.minimum(positions, segment.window_end) - window + 1
        first = np.maximum(back, np.zeros_like(positions))
        keys += int(end.max() - first.min())
        pairs += int((end - first).sum())
    return keys, pairs
