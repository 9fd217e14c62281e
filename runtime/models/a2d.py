"""The families of Tiny-A2D: Qwen3 and Qwen2.5, trained further for diffusion with dllm (docs/models/recipes.md).

A checkpoint is of one of two kinds, which only the name of its repository tells: bd3lm attends to blocks of 32, mdlm to
the complete canvas. Logits are not shifted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from runtime.models.base import register_family
from runtime.models.decoder import DecoderFamily
from runtime.models.decoder_config import llama_like

A2D_QWEN3 = register_family(
    DecoderFamily(
        key="a2d_qwen3",
        detect=lambda config: config.get("model_type") == "a2d-qwen3",
        architectures=("A2DQwen3LMHeadModel",),
        parse=partial(llama_like, family="a2d_qwen3", qk_norm=True, block_size=32, max_positions=32768),
        strategies=("multi_bd", "full"),
        strategy_in_name={"bd3lm": "multi_bd", "mdlm": "full"},
        turn_end_tokens=("<|im_end|>", "<|endoftext|>"),
        mask_tokens=("<|mask|>",),
        template_variables={"enable_thinking": False},  # as in training
        reasoning="think",
    )
)

A2D_QWEN2 = register_family(
    replace(
        A2D_QWEN3,
        key="a2d_qwen2",
        detect=lambda config: config.get("model_type") == "a2d-qwen2",
        architectures=("A2DQwen2LMHeadModel",),
        parse=partial(llama_like, family="a2d_qwen2", qkv_bias=True, block_size=32, max_positions=32768),
        template_variables={},
        reasoning="",
    )
)
