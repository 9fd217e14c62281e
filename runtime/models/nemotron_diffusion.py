"""The family Nemotron-Labs-Diffusion: Ministral with other tensor names (docs/models/recipes.md).

It has YaRN and query length scaling. Attention is causal except in the open block of 32.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from runtime.models.base import register_family
from runtime.models.decoder import DecoderConfig, DecoderFamily, TensorNames, llama_weights
from runtime.models.decoder_config import llama_like

log = logging.getLogger(__name__)

# Values of dlm_paradigm that only select the attention mask of training. Its default, "bidirectional", is that of
# inference; "autoregressive" is another model.
TRAINING_PARADIGMS = ("block_diff", "sbd_block_diff")
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "sliding_window": (None,),  # in this family no other field enables it
    "dlm_paradigm": ("bidirectional", None, *TRAINING_PARADIGMS),
}
KNOWN = frozenset({"attn_implementation", "ar_loss_weight", "dlm_loss_weight", "dp_varying_mask_ratio"})
NAMES = TensorNames(
    embedding="encoder.embed_tokens", norm="encoder.norm", head="diffusion_head", layer="encoder.layers.{}."
)  # fmt: skip


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises ConfigError that names the field."""
    parsed = llama_like(
        config,
        family="nemotron_diffusion",
        yarn=True,
        begins_with_bos=True,
        block_size=32,
        max_positions=262144,
        supported=SUPPORTED,
        known=KNOWN,
    )
    if (paradigm := config.get("dlm_paradigm")) in TRAINING_PARADIGMS:
        log.warning("config.json: dlm_paradigm %r is a mask of training; served as 'bidirectional'", paradigm)
    return parsed


NEMOTRON_DIFFUSION = register_family(
    DecoderFamily(
        key="nemotron_diffusion",
        detect=lambda config: config.get("model_type") == "nemotron_labs_diffusion",
        architectures=("NemotronLabsDiffusionModel",),
        parse=parse,
        weights=partial(llama_weights, names=NAMES),
        strategies=("nemotron_diffusion",),
        mask_id=100,
        eos_ids=(11,),
        tool_calls="qwen3_coder",
        reasoning="think",
    )
)
