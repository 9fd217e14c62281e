"""The family Dream, with Dream-Coder: Qwen2 with full attention and shifted logits.

docs/models/recipes.md describes it. Apple's DiffuCoder has the same config.json and is
detected as this family; `diffucoder` selects it by name.
"""

from __future__ import annotations

from functools import partial

from runtime.models.base import detects, register_family
from runtime.models.decoder import DecoderFamily
from runtime.models.decoder_config import llama_like

DREAM = register_family(
    DecoderFamily(
        key="dream",
        detect=detects("Dream", "DreamModel"),
        architectures=("DreamModel",),
        parse=partial(
            llama_like,
            family="dream",
            qkv_bias=True,
            shift=True,
            block_size=32,
            max_positions=131072,
            supported={"use_mrope": (False, None)},  # rotary positions of images
            max_model_len=2048,  # config.json allows 131072 positions, but the authors trained the model on 2048
        ),
        strategies=("full", "d2f"),
        turn_end_tokens=("<|im_end|>", "<|endoftext|>", "<|dlm_pad|>"),  # the last: DiffuCoder
        mask_tokens=("<|mask|>",),
        tokenizer_bos=True,
        mask_id=151666,
        eos_ids=(151643, 151645),
    )
)
