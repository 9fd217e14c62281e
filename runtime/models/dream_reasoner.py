"""The family DreamReasoner: Qwen3 with blocks of 32 (docs/models/recipes.md).

It has Dream's model type, but block-causal attention and no shifted logits.
"""

from __future__ import annotations

from functools import partial

from runtime.models.base import detects, register_family
from runtime.models.decoder import DecoderFamily
from runtime.models.decoder_config import llama_like

DREAM_REASONER = register_family(
    DecoderFamily(
        key="dream_reasoner",
        detect=detects("Dream", "DreamForCausalLM"),
        architectures=("DreamForCausalLM",),
        parse=partial(llama_like, family="dream_reasoner", qk_norm=True, block_size=32, max_positions=32768),
        strategies=("multi_bd",),
        turn_end_tokens=("<|im_end|>", "<|endoftext|>"),
        mask_tokens=("<|mask|>", "<|MASK|>"),
        mask_id=151669,
        reasoning="think",
    )
)
