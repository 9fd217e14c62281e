"""The family RND1: Qwen3-MoE with full attention and shifted logits (docs/models/recipes.md).

Radical Numerics made it from Qwen3-30B-A3B. The logits of a row belong to the next position, as in Dream.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from runtime.models.base import register_family
from runtime.models.decoder import DecoderFamily
from runtime.models.decoder_config import llama_like, qwen_experts

# A causal copy would be the autoregressive model.
SUPPORTED: dict[str, tuple[Any, ...]] = {"is_causal": (False, None)}
KNOWN = frozenset({"num_diffusion_steps", "moe_backend", "attn_implementation"})

RND1 = register_family(
    DecoderFamily(
        key="rnd1",
        detect=lambda config: config.get("model_type") == "rnd1",
        architectures=("RND1LM",),
        parse=partial(
            llama_like,
            family="rnd1",
            qk_norm=True,
            shift=True,
            block_size=32,
            max_positions=40960,
            mixture=qwen_experts,
            supported=SUPPORTED,
            known=KNOWN,
        ),
        strategies=("full",),
        turn_end_tokens=("<|im_end|>", "<|endoftext|>"),
        mask_tokens=("<|mask|>", "<|MASK|>"),
        mask_id=151669,
        eos_ids=(151645,),
    )
)
