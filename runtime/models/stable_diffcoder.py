"""The family Stable-DiffCoder: Llama with blocks of 4 (docs/models/recipes.md).

The mask is id 5, which the files of a checkpoint may omit.
"""

from __future__ import annotations

from functools import partial

from runtime.models.base import detects, register_family
from runtime.models.decoder import DecoderFamily
from runtime.models.decoder_config import llama_like

ARCHITECTURES = ("StableDiffcoderForCausalLM", "SeedDiffcoderForCausalLM")  # the second: before transformers 5

STABLE_DIFFCODER = register_family(
    DecoderFamily(
        key="stable_diffcoder",
        detect=detects("llama", *ARCHITECTURES),
        architectures=ARCHITECTURES,
        parse=partial(llama_like, family="stable_diffcoder", block_size=4, max_positions=8192),
        strategies=("multi_bd",),
        mask_id=5,
    )
)
