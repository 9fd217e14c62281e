"""The least time that a step can take: what it has to read, and what it has to multiply, at rates that a device has
been seen to reach (those of an H200 unless others are given)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from torch import nn

from runtime.layers.kv_pool import KVPool
from runtime.layers.moe import Router
from runtime.layers.weight import weights_of
from runtime.models.base import Model, SelfConditioned
from runtime.models.decoder import Decoder
from runtime.state.plan import StepPlan

EIGHT_BITS = 2.0  # times as many products a second


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tflops", type=float, default=790.0, help="of the floor: 10^12 sums and products a second")
    parser.add_argument("--tbs", type=float, default=4.2, help="of the floor: 10^12 bytes read a second")


@dataclass(frozen=True)
class Work:
    """Of one step. `flops`: of products with weights. `attended`: of attention, always of sixteen bits."""

    nbytes: float
    flops: float
    attended: float
    eight_bits: bool  # both sides of the products with weights

    def milliseconds(self, args: argparse.Namespace) -> float:
        rate = args.tflops * (EIGHT_BITS if self.eight_bits else 1.0)
        return max(self.nbytes / args.tbs, self.flops / rate + self.attended / args.tflops) / 1e9


def work_of(model: nn.Module, pool: KVPool, plan: StepPlan, experts: Sequence[int], quantization: str | None) -> Work:
    """Args:
    plan: of the step. experts: chosen in each layer that has some, in the layers' order.

    What the last layer does after its attention is counted for those rows that it is done for (``Model.finish``).
    """
    rows = len(plan.tokens)
    sampled = 0 if plan.blocks is None else int(plan.blocks.sampled.sum())
    routers = {path: part for path, part in model.named_modules() if isinstance(part, Router)}
    chosen = {path.rpartition(".")[0]: (part, n) for (path, part), n in zip(routers.items(), experts, strict=True)}
    weights = weights_of(model)
    head = "lm_head" if "lm_head" in weights else "embedding.weight"
    late = f"layers.{len(model.kv_shapes) - 1}.mlp." if isinstance(model, Decoder) and model.cut else head
    nbytes = flops = 0.0
    for path, weight in weights.items():
        here = sampled if path.startswith(late) else rows
        if path == head:  # and what a step is told of the last one is made of all embeddings
            times = 2 if isinstance(model, SelfConditioned) else 1
            touched, uses = times * float(sampled > 0), times * float(sampled)
        elif path == "embedding.weight":
            touched, uses = min(1.0, rows / weight.shape[0]), 0.0
        elif len(weight.shape) == 3:
            router, count = chosen[path.rpartition(".")[0]]
            touched, uses = count / weight.shape[0], here * router.rule.top_k / weight.shape[0]
        else:
            touched, uses = float(here > 0), float(here) if len(weight.shape) == 2 else 0.0
        nbytes += touched * weight.nbytes
        flops += 2.0 * uses * weight.size
    bytes_of_token = pool.nbytes / (pool.num_pages * pool.page_size)
    ends = {int(row): 0 for row in range(plan.page_table.shape[0])}
    for request, first, count in plan.tiles.tolist():
        if count:
            ends[request] = max(ends[request], int(plan.visible_end[first : first + count].max()))
    nbytes += bytes_of_token * sum(ends.values())
    return Work(nbytes, flops, _attended(model, plan), quantization == "fp8")


def _attended(model: nn.Module, plan: StepPlan) -> float:
    """Flops of scores and of what they weigh."""
    shapes = cast(Model, model).kv_shapes
    widths = [weight.shape[-1] for path, weight in weights_of(model).items() if path.endswith("attention.out.weight")]
    found = 0.0
    for shape, width in zip(shapes, widths, strict=True):
        first = 0 if shape.window is None else np.maximum(plan.window_origin - shape.window + 1, 0)
        found += 4.0 * width * float((plan.visible_end - first).sum())
    return found
