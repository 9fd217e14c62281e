"""`dmax`: unmasks a confident prefix and revises tokens.

See docs/research/decoding-rules.md#algorithm-dmax; arXiv 2604.08302.

Input embeddings of unmasked positions are soft embeddings (docs/research/decoding-rules.md#soft-embeddings).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from runtime.algorithms import base
from runtime.request.field_spec import Field, Value, fraction_field

STABLE_PROB = 0.9  # a block is finished if all positions have an argmax with at least this probability

ACCEPT = fraction_field(
    "accept_threshold", 0.5, "confidence from which masked positions are unmasked, up to the first below it"
)
MODE = Field(
    name="token_merge_mode", kind="choice", choices=("dmax_topk", "iter_smooth_topk"), default="dmax_topk",
    help="embedding of an unmasked position: its most probable tokens, and the mask with the remaining probability; or "
    "the embedding of its token, to which they are added",
)  # fmt: skip
RENORMALIZE = Field(
    name="token_merge_renormalize", kind="flag", default=True, only=(MODE.name, "dmax_topk"),
    help="scale the mixture to the mean norm of the mixed embeddings",
)  # fmt: skip
WEIGHT = Field(
    name="token_merge_weight", default=1.0, high=100, only=(MODE.name, "iter_smooth_topk"),
    help="factor of the mixture that is added to the embedding of the token",
)  # fmt: skip
MAX_STEPS = replace(
    base.MAX_STEPS, default=1, help="steps after which all positions of a block are unmasked; default one per position"
)


@base.register_algorithm
class DMax(base.UnmaskingAlgorithm):
    key = "dmax"
    strategies = ("dmax",)
    fields = (ACCEPT, MODE, base.TOKEN_MERGE_TOP_K, RENORMALIZE, WEIGHT, MAX_STEPS, base.SUPPRESS_EOS)
    speed_accuracy_knob = base.SpeedAccuracyKnob(ACCEPT, (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3))
    edits = True

    def algorithm_stats(self, values: Mapping[str, Value]) -> base.LogitStat:
        return base.LogitStat.TOP_K

    def soft_embedding_params(self, values: Mapping[str, Value]) -> base.SoftEmbeddingParams:
        return base.SoftEmbeddingParams(
            smooth=values[MODE.name] == "iter_smooth_topk",
            weight=float(values[WEIGHT.name]),
            renormalize=bool(values[RENORMALIZE.name]),
        )

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        assert blocks.top_k is not None
        masked, suppressed, at_step_limit = blocks.masked, base.is_suppressed(blocks), blocks.at_step_limit()
        unsure = masked & (blocks.confidence < blocks.param(ACCEPT.name))
        passed = masked & (unsure.cumsum(1) == 0)
        forced = blocks.must_advance & masked.any(1) & ~passed.any(1)
        first = masked & (masked.cumsum(1) == 1)
        accepted = passed | (first & forced[:, None]) | (masked & at_step_limit)
        edited = blocks.unmasked & (blocks.candidates != blocks.tokens) & ~suppressed
        changed = (accepted | edited).any(1)
        not_editable = ~(masked | blocks.unmasked)
        stable = (((blocks.top_k.probs[:, :, 0] >= STABLE_PROB) & ~suppressed) | not_editable).all(1)
        left = masked & ~accepted
        return base.BlockUpdate(
            tokens=torch.where(accepted | edited, blocks.candidates, blocks.tokens),
            masked=left,
            forced=forced,
            edited=edited,
            remasked=torch.zeros_like(edited),
            finished=~left.any(1) & (~changed | stable | at_step_limit[:, 0]),
            soft_tokens=blocks.top_k,
        )
