"""`noise`: denoises a canvas of random tokens by entropy (docs/decoding-rules.md#algorithm-noise)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runtime.algorithms.base import TEMPERATURE, BlockBatch, Decision, Rows, Rule, Stat, Tradeoff, register_rule
from runtime.request.field_spec import Field, Value

STEPS = Field(
    name="max_denoising_steps", kind="integer", default=48, low=1, high=4096, flag="diffusion_gemma_max_steps",
    help="most steps of a canvas",
)  # fmt: skip
BOUND = Field(
    name="entropy_bound", default=0.1, above_low=True, flag="diffusion_gemma_entropy_bound",
    help="nats: positions are taken from the lowest entropy up while the sum, the last one's apart, stays within it",
)  # fmt: skip
T_MIN = Field(
    name="t_min", default=0.4, above_low=True, flag="diffusion_gemma_t_min",
    help="what the temperature of a canvas falls towards",
)  # fmt: skip
T_MAX = Field(
    name="t_max", default=0.8, above_low=True, flag="diffusion_gemma_t_max",
    help="the temperature of a canvas's first step",
)  # fmt: skip
STABLE = Field(
    name="stability_threshold", kind="integer", default=1, high=64, flag="diffusion_gemma_stability_threshold",
    help="steps for which the likeliest tokens must stay the same before a canvas ends",
)  # fmt: skip
SURE = Field(
    name="confidence_threshold", default=0.005, flag="diffusion_gemma_confidence_threshold",
    help="nats, of a position on average, below which a canvas ends that is stable",
)  # fmt: skip


@register_rule
class Noise(Rule):
    key = "noise"
    strategies = ("diffusion_gemma",)
    noisy = True
    fields = (STEPS, BOUND, T_MIN, T_MAX, STABLE, SURE)
    tradeoff = Tradeoff(STEPS, (48, 32, 24, 16, 8, 4))
    keeps = ("likeliest", "steps")  # a position's likeliest token, and in how many steps without a break
    once = True

    def wants(self, values: Mapping[str, Value]) -> Stat:
        return Stat.ADJUST | Stat.ENTROPY | Stat.BEST | Stat.SIGNAL

    def unstable(self, values: Mapping[str, Value]) -> bool:
        return True

    def adjust(self, logits: torch.Tensor, rows: Rows) -> None:
        logits /= self.heat(rows)[:, None].to(logits.dtype)

    def heat(self, rows: Rows) -> torch.Tensor:
        """The step's temperature, and the request's as well where that is not 0."""
        steps, low, high = (rows.value(field.name) for field in (STEPS, T_MIN, T_MAX))
        temperature = low + (high - low) * ((steps - rows.advanced) / steps)
        own = rows.params[:, TEMPERATURE]
        return torch.where(own > 0, temperature * own, temperature)

    def decide(self, blocks: BlockBatch) -> Decision:
        """A canvas that ends holds its likeliest tokens, whatever was drawn."""
        assert blocks.entropy is not None
        assert blocks.best is not None
        assert blocks.noise is not None
        ended = (_rests(blocks, blocks.best) | (blocks.advanced + 1 >= blocks.value(STEPS.name)))[:, None]
        ordered, order = blocks.entropy.sort(dim=1, stable=True)
        sure = ordered.cumsum(dim=1) - ordered <= blocks.param(BOUND.name)
        taken = blocks.masked & torch.zeros_like(blocks.masked).scatter_(1, order, sure)
        drawn = torch.where(taken, blocks.choice, torch.where(blocks.masked, blocks.noise, blocks.tokens))
        none = torch.zeros_like(taken)
        return Decision(
            tokens=torch.where(ended, blocks.best, drawn),
            masked=blocks.masked & ~taken & ~ended,
            forced=none.any(1),
            edited=none,
            remasked=none,
            ended=ended[:, 0],
        )


def _rests(blocks: BlockBatch, best: torch.Tensor) -> torch.Tensor:
    """bool [n]: whether a canvas's likeliest tokens have stayed the same for long enough, and are sure enough."""
    assert blocks.entropy is not None
    assert blocks.kept is not None
    token, steps = blocks.kept[:, :, 0].unbind(2)  # views; what is new says 0 steps
    steps = torch.where((token == best) & (steps > 0), steps + 1, 1).masked_fill(~blocks.masked, 0)
    blocks.kept[:, :, 0] = torch.stack([best.double(), steps], 2)
    longest = steps.masked_fill(~blocks.masked, float("inf")).amin(1)
    entropy = blocks.entropy.masked_fill(~blocks.masked, 0).sum(1) / blocks.masked.sum(1)
    return (longest > blocks.value(STABLE.name)) & (entropy < blocks.value(SURE.name))
