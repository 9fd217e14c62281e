"""Maps checkpoint tensors of Llama-like decoders to parameters: names of Llama and Qwen, and what other families
share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from runtime.kernels.common import wide
from runtime.layers.sharding import Index
from runtime.models.decoder import DecoderConfig, MoEConfig
from runtime.models.weight_map import Fused, WeightMap, WeightTarget


@dataclass(frozen=True)
class TensorNames:
    """Checkpoint names of a decoder's tensors, without `.weight` or `.bias`; the defaults are those of Llama.

    `layer` has {} for the layer number and is the prefix of the names that follow.
    """

    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{}."
    input_norm: str = "input_layernorm"
    post_norm: str = "post_attention_layernorm"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    router_bias: str = "mlp.gate.expert_bias"
    experts: str = "mlp.experts"
    shared: str = "mlp.shared_experts"


LLAMA = TensorNames()


def llama_weights(config: DecoderConfig, names: TensorNames = LLAMA) -> WeightMap:
    """Weight map of Llama-like checkpoints, with separate tensors for queries, keys and values."""
    return decoder_weights(config, names, partial(_attention, config, names))


def decoder_weights(
    config: DecoderConfig,
    names: TensorNames,
    attention: Callable[[str, str], dict[str, WeightTarget]],
    rename: Callable[[str], str] = lambda name: name,
) -> WeightMap:
    """Weight map of a decoder.

    `attention` maps (checkpoint prefix, parameter prefix) to the targets of a layer's attention. A checkpoint may also
    hold rotary tables, and an lm_head although it is tied; both are skipped.
    """
    slots = {
        f"{names.embedding}.weight": WeightTarget("embed_tokens.weight"),
        f"{names.norm}.weight": WeightTarget("norm.weight"),
    }
    head = f"{names.head}.weight"
    if not config.tied:
        slots[head] = WeightTarget("lm_head_weight", transform=_unit_columns if config.norm_head else None)
    fused: dict[str, Fused] = {}
    for index in range(config.layers):
        checkpoint_prefix, prefix = names.layer.format(index), f"layers.{index}."
        slots[f"{checkpoint_prefix}{names.input_norm}.weight"] = WeightTarget(f"{prefix}input_layernorm.weight")
        slots[f"{checkpoint_prefix}{names.post_norm}.weight"] = WeightTarget(f"{prefix}post_attention_layernorm.weight")
        slots |= attention(checkpoint_prefix, f"{prefix}self_attn.")
        if config.mixture is None or index not in config.mixture.layers:
            dense = [f"{checkpoint_prefix}{name}" for name in (names.gate, names.up, names.down)]
            slots |= _swiglu(dense, f"{prefix}mlp.", config.width)
            continue
        slots |= _mixture(config.mixture, names, checkpoint_prefix, f"{prefix}mlp.")
        fused |= _fused(config.mixture, f"{checkpoint_prefix}{names.experts}.", f"{prefix}mlp.")
    return WeightMap(
        slots, rename, lambda name: name.endswith("rotary_emb.inv_freq") or (config.tied and name == head), fused
    )


def _attention(
    config: DecoderConfig, names: TensorNames, checkpoint_prefix: str, prefix: str
) -> dict[str, WeightTarget]:
    queries, keys = config.heads * config.head_dim, (config.heads + config.kv_heads) * config.head_dim
    values = keys + config.kv_heads * config.head_dim
    slots = {f"{checkpoint_prefix}{names.out}.weight": WeightTarget(f"{prefix}o_proj.weight")}
    for name, rows in ((names.q, slice(0, queries)), (names.k, slice(queries, keys)), (names.v, slice(keys, values))):
        slots[f"{checkpoint_prefix}{name}.weight"] = WeightTarget(f"{prefix}qkv_proj.weight", (rows,))
        if config.qkv_bias:
            slots[f"{checkpoint_prefix}{name}.bias"] = WeightTarget(f"{prefix}qkv_proj.bias", (rows,))
    if config.out_bias:
        slots[f"{checkpoint_prefix}{names.out}.bias"] = WeightTarget(f"{prefix}o_proj.bias")
    if config.qk_norm:
        slots[f"{checkpoint_prefix}{names.q_norm}.weight"] = WeightTarget(f"{prefix}q_norm.weight")
        slots[f"{checkpoint_prefix}{names.k_norm}.weight"] = WeightTarget(f"{prefix}k_norm.weight")
    return slots


def _mixture(mixture: MoEConfig, names: TensorNames, checkpoint_prefix: str, prefix: str) -> dict[str, WeightTarget]:
    """Router, experts one by one, shared experts."""
    slots = {f"{checkpoint_prefix}{names.router}.weight": WeightTarget(f"{prefix}gate.weight")}
    if mixture.router_bias:
        slots[f"{checkpoint_prefix}{names.router_bias}"] = WeightTarget(f"{prefix}gate.bias")
    width = mixture.width
    for expert in range(mixture.experts):
        expert_prefix = f"{checkpoint_prefix}{names.experts}.{expert}."
        slots[f"{expert_prefix}gate_proj.weight"] = WeightTarget(f"{prefix}gate_up_proj", (expert, slice(0, width)))
        slots[f"{expert_prefix}up_proj.weight"] = WeightTarget(
            f"{prefix}gate_up_proj", (expert, slice(width, 2 * width))
        )
        slots[f"{expert_prefix}down_proj.weight"] = WeightTarget(f"{prefix}down_proj", (expert,))
    if mixture.shared_width:
        shared = [f"{checkpoint_prefix}{names.shared}.{part}" for part in ("gate_proj", "up_proj", "down_proj")]
        slots |= _swiglu(shared, f"{prefix}shared_experts.", mixture.shared_width)
    return slots


def _fused(mixture: MoEConfig, checkpoint_prefix: str, prefix: str) -> dict[str, Fused]:
    """The same experts as stacked tensors [experts, out, in], without `.weight`: three, or two with gate rows before
    up rows.
    """
    width, every = mixture.width, slice(None)
    slots = {
        "gate_up_proj": WeightTarget(f"{prefix}gate_up_proj"),
        "gate_proj": WeightTarget(f"{prefix}gate_up_proj", (every, slice(0, width))),
        "up_proj": WeightTarget(f"{prefix}gate_up_proj", (every, slice(width, 2 * width))),
        "down_proj": WeightTarget(f"{prefix}down_proj"),
    }
    halves: dict[str, dict[str, Index]] = {
        "gate_up_proj": {"gate_proj": (slice(0, width),), "up_proj": (slice(width, 2 * width),)}
    }
    return {
        f"{checkpoint_prefix}{name}": Fused(
            slot,
            {
                f"{checkpoint_prefix}{expert}.{part}.weight": (expert, *rows)
                for part, rows in halves.get(name, {name: ()}).items()
                for expert in range(mixture.experts)
            },
        )
        for name, slot in slots.items()
    }


def _swiglu(checkpoint_prefix: list[str], prefix: str, width: int) -> dict[str, WeightTarget]:
    """Targets of gate, up and down of an MLP without biases; gate and up are one parameter."""
    gate, up, down = checkpoint_prefix
    return {
        f"{gate}.weight": WeightTarget(f"{prefix}gate_up_proj.weight", (slice(0, width),)),
        f"{up}.weight": WeightTarget(f"{prefix}gate_up_proj.weight", (slice(width, 2 * width),)),
        f"{down}.weight": WeightTarget(f"{prefix}down_proj.weight"),
    }


def _unit_columns(head: torch.Tensor) -> torch.Tensor:
    """[vocab, hidden], every column normalized to length 1."""
    return F.normalize(head.to(wide(head.dtype)), dim=0, eps=1e-7)
