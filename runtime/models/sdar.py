"""The family SDAR: Qwen3, trained further for block diffusion (docs/models/recipes.md)."""

from __future__ import annotations

from functools import partial

from runtime.models.base import register_family
from runtime.models.decoder import DecoderFamily
from runtime.models.decoder_config import llama_like

# Published fields about training, parallelism and the choice of a kernel.
KNOWN = frozenset({"attn_implementation", "debug", "ep_size", "micro_forward", "skip_checkpoint", "use_deepep"})

SDAR = register_family(
    DecoderFamily(
        key="sdar",
        detect=lambda config: config.get("model_type") == "sdar",
        architectures=("SDARForCausalLM",),
        parse=partial(llama_like, family="sdar", qk_norm=True, block_size=4, max_positions=32768, known=KNOWN),
        strategies=("multi_bd",),
        turn_end_tokens=("<|im_end|>", "<|endoftext|>"),
        mask_tokens=("<|MASK|>", "<|mask|>"),
        mask_id=151669,
        eos_ids=(151643, 151645),
        block_size_in_name=True,
        reasoning="think",
    )
)
