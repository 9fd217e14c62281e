"""`noise`: denoises a canvas of random tokens by entropy (docs/research/decoding-rules.md#algorithm-noise)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from runtime.algorithms import base
from runtime.request.field_spec import Field, Value

STEPS = Field(
    name="max_denoising_steps", kind="integer", default=48, low=1, high=4096, flag="diffusion_gemma_max_steps",
    help="maximum steps per canvas",
)  # fmt: skip
BOUND = Field(
    name="entropy_bound", default=0.1, above_low=True, flag="diffusion_gemma_entropy_bound",
    help="nats: positions are accepted in order of rising entropy while the sum of those before is within this bound",
)  # fmt: skip
T_MIN = Field(
    name="t_min", default=0.4, above_low=True, flag="diffusion_gemma_t_min",
    help="lower bound of the temperature of a canvas, which decreases linearly",
)  # fmt: skip
T_MAX = Field(
    name="t_max", default=0.8, above_low=True, flag="diffusion_gemma_t_max",
    help="temperature of the first step of a canvas",
)  # fmt: skip
STABLE = Field(
    name="stability_threshold", kind="integer", default=1, high=64, flag="diffusion_gemma_stability_threshold",
    help="steps without a change of the most probable tokens before a canvas can finish",
)  # fmt: skip
ENTROPY = Field(
    name="confidence_threshold", default=0.005, flag="diffusion_gemma_confidence_threshold",
    help="nats: mean entropy per position below which a stable canvas finishes",
)  # fmt: skip


@base.register_algorithm
class Noise(base.UnmaskingAlgorithm):
    key = "noise"
    strategies = ("diffusion_gemma",)
    uniform_noise = True
    fields = (STEPS, BOUND, T_MIN, T_MAX, STABLE, ENTROPY)
    speed_accuracy_knob = base.SpeedAccuracyKnob(STEPS, (48, 32, 24, 16, 8, 4))
    history_fields = ("argmax", "steps")  # the argmax of a position, and the number of steps since it last changed
    static_history = True

    def algorithm_stats(self, values: Mapping[str, Value]) -> base.LogitStat:
        stat = base.LogitStat
        return stat.PROCESS_LOGITS | stat.ENTROPY | stat.ARGMAX | stat.SELF_CONDITIONING

    def may_revise(self, values: Mapping[str, Value]) -> bool:
        return True

    def process_logits(self, logits: torch.Tensor, rows: base.SampledRows) -> None:
        logits /= self.temperature(rows)[:, None].to(logits.dtype)

    def temperature(self, rows: base.SampledRows) -> torch.Tensor:
        """Returns the temperature of the step, multiplied by that of the request if it is not 0."""
        steps, low, high = (rows.value(field.name) for field in (STEPS, T_MIN, T_MAX))
        temperature = low + (high - low) * ((steps - rows.num_steps) / steps)
        own = rows.params[:, base.TEMPERATURE]
        return torch.where(own > 0, temperature * own, temperature)

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        """Returns the update. A finished canvas contains the argmax of each position, not the sampled token."""
        assert blocks.entropy is not None
        assert blocks.argmax is not None
        assert blocks.noise_tokens is not None
        finished = (_is_stable(blocks, blocks.argmax) | (blocks.num_steps + 1 >= blocks.value(STEPS.name)))[:, None]
        ascending, order = blocks.entropy.sort(dim=1, stable=True)
        within_bound = ascending.cumsum(dim=1) - ascending <= blocks.param(BOUND.name)
        taken = blocks.masked & torch.zeros_like(blocks.masked).scatter_(1, order, within_bound)
        tokens = torch.where(taken, blocks.candidates, torch.where(blocks.masked, blocks.noise_tokens, blocks.tokens))
        none = torch.zeros_like(taken)
        return base.BlockUpdate(
            tokens=torch.where(finished, blocks.argmax, tokens),
            masked=blocks.masked & ~taken & ~finished,
            forced=none.any(1),
            edited=none,
            remasked=none,
            finished=finished[:, 0],
        )


def _is_stable(blocks: base.BlockBatch, argmax: torch.Tensor) -> torch.Tensor:
    """Returns a bool [n]: the argmax of all positions is unchanged for long enough, and the entropy is low enough."""
    assert blocks.entropy is not None
    assert blocks.history is not None
    token, steps = blocks.history[:, :, 0].unbind(2)  # views; a new record has 0 steps
    steps = torch.where((token == argmax) & (steps > 0), steps + 1, 1).masked_fill(~blocks.masked, 0)
    blocks.history[:, :, 0] = torch.stack([argmax.double(), steps], 2)
    longest = steps.masked_fill(~blocks.masked, float("inf")).amin(1)
    entropy = blocks.entropy.masked_fill(~blocks.masked, 0).sum(1) / blocks.masked.sum(1)
    return (longest > blocks.value(STABLE.name)) & (entropy < blocks.value(ENTROPY.name))
