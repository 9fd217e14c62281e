"""The family iLLaDA: Llama with a tied head and full attention (docs/models/recipes.md).

The mask is id 5, which no file of a checkpoint names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.models.base import ModelFamily, architectures, register_family
from runtime.models.decoder import Decoder, DecoderConfig, decoder_info, llama_weights
from runtime.models.decoder_config import llama_like

SUPPORTED = {"layer_norm_eps": (None,)}  # a number selects LayerNorm instead of RMSNorm
KNOWN = frozenset({"resid_pdrop", "embd_pdrop"})


def detect(config: Mapping[str, Any]) -> bool:
    return "ILLaDAForCausalLM" in architectures(config)


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    return llama_like(config, "illada", tied=True, block_size=32, max_positions=8192, supported=SUPPORTED, known=KNOWN)


ILLADA = register_family(
    ModelFamily(
        key="illada",
        aliases=(),
        detect=detect,
        architectures=("ILLaDAForCausalLM",),
        parse=parse,
        facts=decoder_info,
        make=Decoder,
        weights=llama_weights,
        strategies=("full",),
        mask_tokens=("<[MASK]>",),
        mask_id=5,
        eos_ids=(2,),
    )
)
