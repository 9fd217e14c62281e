"""The family LLaDA: Llama with other tensor names and full attention.

See docs/models/architecture-notes.md#llada-tensor-names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from runtime.errors import ConfigError
from runtime.models.base import ModelInfo, architectures, register_family
from runtime.models.config_reader import ConfigReader
from runtime.models.decoder import DecoderConfig, DecoderFamily, TensorNames, llama_weights
from runtime.models.decoder_config import require_full_attention, rotary

# Fields that change the computation, with the supported values.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "block_type": ("llama",),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "bias_for_layer_norm": (False, None),
    "attention_layer_norm": (False,),
    "include_bias": (False,),
    "rope": (True,),
    "rope_full_precision": (True,),
    "alibi": (False,),
    "block_group_size": (1,),
    "input_emb_norm": (False,),
    "scale_logits": (False,),
    "clip_qkv": (None,),
}


TRAINING = frozenset(
    """
    alibi_bias_max attention_layer_norm_with_affine residual_dropout flash_attention init_device init_fn init_std
    init_cutoff_factor precision
    """.split()  # noqa: SIM905
)
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


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """Reads config.json. Raises ConfigError that names the field if one is missing, wrong, inconsistent or not
    supported.
    """
    fields = ConfigReader(config)
    fields.reject_unsupported(SUPPORTED)
    hidden, heads = fields.integer("d_model"), fields.integer("n_heads")
    if hidden % (2 * heads):
        raise ConfigError(f"config.json: d_model {hidden} is no even multiple of n_heads {heads}")
    vocab = fields.integer("vocab_size", low=2)
    rows = fields.integer("embedding_size", vocab)
    if rows < vocab:
        raise ConfigError(f"config.json: embedding_size {rows} is less than vocab_size {vocab}")
    bias = fields.flag("include_qkv_bias", False)
    require_full_attention(fields)
    parsed = DecoderConfig(
        vocab_size=vocab,
        hidden=hidden,
        layers=fields.layers("n_layers"),
        heads=heads,
        kv_heads=_kv_heads(fields, heads),
        head_dim=hidden // heads,
        rope=rotary(config, hidden // heads),
        max_positions=fields.positions("max_sequence_length", 4096),
        eps=fields.number("rms_norm_eps"),
        qk_norm=False,
        qkv_bias=bias,
        out_bias=False,
        width=_width(fields, hidden),
        mixture=None,
        tied=fields.flag("weight_tying", False),
        block_size=fields.integer("block_size", 32),
        mask_id=fields.id("mask_token_id"),
        eos_ids=fields.ids("eos_token_id"),
        bos_id=fields.id("bos_token_id"),
        padding=rows - vocab,
    )
    fields.warn_unread("llada", TRAINING)
    return parsed


def _kv_heads(fields: ConfigReader, heads: int) -> int:
    """Reads `n_kv_heads`, or the older `multi_query_attention`: one KV head, or one per query head."""
    if not fields.has("multi_query_attention"):
        kv_heads = fields.integer("n_kv_heads", heads)
        if heads % kv_heads:
            raise ConfigError(f"config.json: n_heads {heads} is no multiple of n_kv_heads {kv_heads}")
        return kv_heads
    single = fields.flag("multi_query_attention", False)
    kv_heads = 1 if single else heads
    if (kv_heads_field := fields.integer("n_kv_heads", kv_heads)) != kv_heads:
        says = "true" if single else "false"
        raise ConfigError(f"config.json: n_kv_heads {kv_heads_field} contradicts multi_query_attention {says}")
    return kv_heads


def _width(fields: ConfigReader, hidden: int) -> int:
    if fields.has("mlp_hidden_size"):
        return fields.integer("mlp_hidden_size")
    if not fields.has("mlp_ratio"):
        raise ConfigError("config.json lacks mlp_hidden_size, or mlp_ratio in its place, which this model family needs")
    return int(fields.number("mlp_ratio") * hidden)


def detect(config: Mapping[str, Any]) -> bool:
    """Detects LLaDA by its architecture; LLaDA-MoE has the same model type."""
    return config.get("model_type") == "llada" and "LLaDAMoEModelLM" not in architectures(config)


def model_info(config: DecoderConfig) -> ModelInfo:
    """Returns the model info. All training texts begin with the BOS token, which the published config does not name."""
    known = BOS if config.vocab_size > BOS else None
    return replace(config, bos_id=known if config.bos_id is None else config.bos_id)


LLADA = register_family(
    DecoderFamily(
        key="llada",
        detect=detect,
        architectures=("LLaDAModelLM",),
        parse=parse,
        facts=model_info,
        weights=partial(llama_weights, names=NAMES),
        strategies=("full", "d2f"),
        turn_end_tokens=("<|eot_id|>", "<|endoftext|>"),
        mask_tokens=("<|mdm_mask|>",),
        mask_id=126336,
        eos_ids=(126081, 126348),
    )
)
