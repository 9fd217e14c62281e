"""The family LLaDA: Llama with other tensor names and full attention.

See docs/models/architecture-notes.md#llada-tensor-names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from runtime.models.base import ModelFamily, ModelInfo, architectures, register_family
from runtime.models.decoder import Decoder, DecoderConfig, decoder_info
from runtime.models.llada_config import parse
from runtime.models.weight_names import TensorNames, llama_weights

BOS = 126080  # <|startoftext|>
NAMES = TensorNames(
    embedding="model.transformer.wte",
    norm="model.transformer.ln_f",
    head="model.transformer.ff_out",
    layer="model.transformer.blocks.{}.",
    input_norm="attn_norm",
    post_norm="ff_norm",
    q="q_proj",
    k="k_proj",
    v="v_proj",
    out="attn_out",
    gate="ff_proj",
    up="up_proj",
    down="ff_out",
)


def detect(config: Mapping[str, Any]) -> bool:
    """Detects LLaDA by its architecture; LLaDA-MoE has the same model type."""
    return config.get("model_type") == "llada" and "LLaDAMoEModelLM" not in architectures(config)


def model_info(config: DecoderConfig) -> ModelInfo:
    """Every text of the training begins with a token that the published config does not name."""
    known = BOS if config.vocab_size > BOS else None
    return replace(decoder_info(config), bos_id=known if config.bos_id is None else config.bos_id)


LLADA = register_family(
    ModelFamily(
        key="llada",
        aliases=(),
        detect=detect,
        architectures=("LLaDAModelLM",),
        parse=parse,
        facts=model_info,
        make=Decoder,
        weights=partial(llama_weights, names=NAMES),
        strategies=("full", "d2f"),
        turn_end_tokens=("<|eot_id|>", "<|endoftext|>"),
        mask_tokens=("<|mdm_mask|>",),
        mask_id=126336,
        eos_ids=(126081, 126348),
    )
)
