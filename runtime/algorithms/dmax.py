"""`dmax`: fills a confident prefix and revises filled tokens (docs/decoding-rules.md#algorithm-dmax; arXiv 2604.08302).

Input embeddings of filled positions are mixtures (docs/decoding-rules.md#soft-embeddings).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from runtime.algorithms.base import (
    MERGED,
    SUPPRESS_EOS,
    BlockBatch,
    Decision,
    Merge,
    Rule,
    Stat,
    Tradeoff,
    register_rule,
)
from runtime.algorithms.common import MAX_STEPS, late
from runtime.request.field_spec import Field, Value, share

SURE = 0.9  # probability of every position's likeliest token at which a block has come to rest

ACCEPT = share("accept_threshold", 0.5, "confidence from which masked positions are taken, up to the first below it")
MODE = Field(
    name="token_merge_mode", kind="choice", choices=("dmax_topk", "iter_smooth_topk"), default="dmax_topk",
    help="the embedding of a filled position: of its likeliest tokens and, for the rest of 1, the mask; or its token's "
    "own, to which they are added",
)  # fmt: skip
RENORMALIZE = Field(
    name="token_merge_renormalize", kind="flag", default=True, only=(MODE.name, "dmax_topk"),
    help="bring the mixture to the length that the mixed embeddings have on average",
)  # fmt: skip
WEIGHT = Field(
    name="token_merge_weight", default=1.0, high=100, only=(MODE.name, "iter_smooth_topk"),
    help="what is added to the token's embedding is multiplied by this",
)  # fmt: skip


@register_rule
class DMax(Rule):
    key = "dmax"
    strategies = ("dmax",)
    fields = (
        ACCEPT,
        MODE,
        MERGED,
        RENORMALIZE,
        WEIGHT,
        replace(MAX_STEPS, default=1, help="steps after which a block takes whatever it holds; default one a position"),
        SUPPRESS_EOS,
    )
    tradeoff = Tradeoff(ACCEPT, (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3))
    edits = True

    def wants(self, values: Mapping[str, Value]) -> Stat:
        return Stat.TOP

    def merge(self, values: Mapping[str, Value]) -> Merge:
        return Merge(
            smooth=values[MODE.name] == "iter_smooth_topk",
            weight=float(values[WEIGHT.name]),
            renormalize=bool(values[RENORMALIZE.name]),
        )

    def decide(self, blocks: BlockBatch) -> Decision:
        assert blocks.top is not None
        masked, held_back, capped = blocks.masked, late(blocks), blocks.capped()
        unsure = masked & (blocks.conf < blocks.param(ACCEPT.name))
        passed = masked & (unsure.cumsum(1) == 0)
        forced = blocks.may_force & masked.any(1) & ~passed.any(1)
        first = masked & (masked.cumsum(1) == 1)
        accepted = passed | (first & forced[:, None]) | (masked & capped)
        edited = blocks.filled & (blocks.choice != blocks.tokens) & ~held_back
        changed = (accepted | edited).any(1)
        fixed = ~(masked | blocks.filled)
        at_rest = (((blocks.top.probs[:, :, 0] >= SURE) & ~held_back) | fixed).all(1)
        left = masked & ~accepted
        return Decision(
            tokens=torch.where(accepted | edited, blocks.choice, blocks.tokens),
            masked=left,
            forced=forced,
            edited=edited,
            remasked=torch.zeros_like(edited),
            ended=~left.any(1) & (~changed | at_rest | capped[:, 0]),
            mixture=blocks.top,
        )
