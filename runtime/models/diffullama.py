"""The family DiffuLLaMA: Llama 2, full attention, shifted logits (docs/models/recipes.md)."""

from __future__ import annotations

from functools import partial

from runtime.models.base import register_family
from runtime.models.decoder import DecoderFamily
from runtime.models.decoder_config import llama_like

DIFFULLAMA = register_family(
    DecoderFamily(
        key="diffullama",
        detect=lambda config: False,  # config.json is the same as for any Llama
        parse=partial(
            llama_like, family="diffullama", shift=True, begins_with_bos=True, block_size=32, max_positions=4096
        ),
        strategies=("full",),
        mask_hint="its authors' code uses the tokenizer's mask_token; published files are not known to name one",
    )
)
