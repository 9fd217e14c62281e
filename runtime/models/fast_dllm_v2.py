"""The family Fast-dLLM v2: Qwen2.5 with blocks of 32 and shifted logits (docs/models/recipes.md)."""

from __future__ import annotations

from functools import partial

from runtime.models.base import register_family
from runtime.models.decoder import DecoderFamily
from runtime.models.decoder_config import llama_like

KNOWN = frozenset({"conplemenrary_mask"})  # a training field, misspelled by its authors

FAST_DLLM_V2 = register_family(
    DecoderFamily(
        key="fast_dllm_v2",
        detect=lambda config: config.get("model_type") == "Fast_dLLM_Qwen",
        architectures=("Fast_dLLM_QwenForCausalLM",),
        parse=partial(
            llama_like,
            family="fast_dllm_v2",
            qkv_bias=True,
            shift=True,
            block_size=32,
            block_field="bd_size",
            max_positions=32768,
            known=KNOWN,
        ),
        strategies=("fast_dllm_v2",),
        turn_end_tokens=("<|im_end|>",),
        mask_tokens=("|<MASK>|",),
        mask_id=151665,
        eos_ids=(151645,),
    )
)
