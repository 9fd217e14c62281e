"""The family iLLaDA: Llama with a tied head and full attention (docs/models/recipes.md).

The mask is id 5, which no file of a checkpoint names.
"""

from __future__ import annotations

from functools import partial

from runtime.models.base import detects, register_family
from runtime.models.decoder import DecoderFamily
from runtime.models.decoder_config import llama_like

SUPPORTED = {"layer_norm_eps": (None,)}  # a number selects LayerNorm instead of RMSNorm
KNOWN = frozenset({"resid_pdrop", "embd_pdrop"})


ILLADA = register_family(
    DecoderFamily(
        key="illada",
        detect=detects(None, "ILLaDAForCausalLM"),
        architectures=("ILLaDAForCausalLM",),
        parse=partial(
            llama_like, family="illada", tied=True, block_size=32, max_positions=8192, supported=SUPPORTED, known=KNOWN
        ),
        strategies=("full",),
        mask_tokens=("<[MASK]>",),
        mask_id=5,
        eos_ids=(2,),
    )
)
