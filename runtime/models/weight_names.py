"""Which tensor of a checkpoint fills which parameter of a decoder: Llama's and Qwen's names, and what others share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from runtime.kernels.precision import wide
from runtime.layers.sharding import Index
from runtime.models.decoder import DecoderConfig, MoEConfig
from runtime.models.weight_map import Fused, WeightMap, WeightTarget


@dataclass(frozen=True)
class TensorNames:
    """What checkpoints call a decoder's tensors, without the ending `.weight` or `.bias`; the defaults are Llama's.
    `layer` holds {} for a layer's number, and what follows belongs to a layer."""

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


def llama_weights(arch: DecoderConfig, names: TensorNames = LLAMA) -> WeightMap:
    """For checkpoints in the manner of Llama and Qwen, with one tensor each for queries, keys and values."""
    return decoder_weights(arch, names, partial(_attention, arch, names))


def decoder_weights(
    arch: DecoderConfig,
    names: TensorNames,
    attention: Callable[[str, str], dict[str, WeightTarget]],
    rename: Callable[[str], str] = lambda name: name,
) -> WeightMap:
    """`attention(theirs, ours)` are the tensors of one layer's attention, by the beginnings of their names in a file
    and of the parameters'. A table made from the config may stand in a file, and a head that is the embedding too."""
    slots = {
        f"{names.embedding}.weight": WeightTarget("embed_tokens.weight"),
        f"{names.norm}.weight": WeightTarget("norm.weight"),
    }
    head = f"{names.head}.weight"
    if not arch.tied:
        slots[head] = WeightTarget("lm_head_weight", through=_unit_columns if arch.norm_head else None)
    fused: dict[str, Fused] = {}
    for index in range(arch.layers):
        theirs, ours = names.layer.format(index), f"layers.{index}."
        slots[f"{theirs}{names.input_norm}.weight"] = WeightTarget(f"{ours}input_layernorm.weight")
        slots[f"{theirs}{names.post_norm}.weight"] = WeightTarget(f"{ours}post_attention_layernorm.weight")
        slots |= attention(theirs, f"{ours}self_attn.")
        if arch.mixture is None or index not in arch.mixture.layers:
            dense = [f"{theirs}{name}" for name in (names.gate, names.up, names.down)]
            slots |= _swiglu(dense, f"{ours}mlp.", arch.width)
            continue
        slots |= _mixture(arch.mixture, names, theirs, f"{ours}mlp.")
        fused |= _fused(arch.mixture, f"{theirs}{names.experts}.", f"{ours}mlp.")
    return WeightMap(
        slots, rename, lambda name: name.endswith("rotary_emb.inv_freq") or (arch.tied and name == head), fused
    )


def _attention(arch: DecoderConfig, names: TensorNames, theirs: str, ours: str) -> dict[str, WeightTarget]:
    queries, keys = arch.heads * arch.head_dim, (arch.heads + arch.kv_heads) * arch.head_dim
    values = keys + arch.kv_heads * arch.head_dim
    slots = {f"{theirs}{names.out}.weight": WeightTarget(f"{ours}o_proj.weight")}
    for name, rows in ((names.q, slice(0, queries)), (names.k, slice(queries, keys)), (names.v, slice(keys, values))):
        slots[f"{theirs}{name}.weight"] = WeightTarget(f"{ours}qkv_proj.weight", (rows,))
        if arch.qkv_bias:
            slots[f"{theirs}{name}.bias"] = WeightTarget(f"{ours}qkv_proj.bias", (rows,))
    if arch.out_bias:
        slots[f"{theirs}{names.out}.bias"] = WeightTarget(f"{ours}o_proj.bias")
    if arch.qk_norm:
        slots[f"{theirs}{names.q_norm}.weight"] = WeightTarget(f"{ours}q_norm.weight")
        slots[f"{theirs}{names.k_norm}.weight"] = WeightTarget(f"{ours}k_norm.weight")
    return slots


def _mixture(mixture: MoEConfig, names: TensorNames, theirs: str, ours: str) -> dict[str, WeightTarget]:
    """Router, experts one by one, shared experts."""
    slots = {f"{theirs}{names.router}.weight": WeightTarget(f"{ours}gate.weight")}
    if mixture.router_bias:
        slots[f"{theirs}{names.router_bias}"] = WeightTarget(f"{ours}gate.bias")
    width = mixture.width
    for expert in range(mixture.experts):
        each = f"{theirs}{names.experts}.{expert}."
        slots[f"{each}gate_proj.weight"] = WeightTarget(f"{ours}gate_up_proj", (expert, slice(0, width)))
        slots[f"{each}up_proj.weight"] = WeightTarget(f"{ours}gate_up_proj", (expert, slice(width, 2 * width)))
        slots[f"{each}down_proj.weight"] = WeightTarget(f"{ours}down_proj", (expert,))
    if mixture.shared_width:
        shared = [f"{theirs}{names.shared}.{part}" for part in ("gate_proj", "up_proj", "down_proj")]
        slots |= _swiglu(shared, f"{ours}shared_experts.", mixture.shared_width)
    return slots


def _fused(mixture: MoEConfig, theirs: str, ours: str) -> dict[str, Fused]:
    """The same experts as three tensors [experts, out, in] without `.weight`, or as two, in which the rows of all gates
    come before those of `up` as in memory of transformers 5."""
    width, every = mixture.width, slice(None)
    slots = {
        "gate_up_proj": WeightTarget(f"{ours}gate_up_proj"),
        "gate_proj": WeightTarget(f"{ours}gate_up_proj", (every, slice(0, width))),
        "up_proj": WeightTarget(f"{ours}gate_up_proj", (every, slice(width, 2 * width))),
        "down_proj": WeightTarget(f"{ours}down_proj"),
    }
    halves: dict[str, dict[str, Index]] = {
        "gate_up_proj": {"gate_proj": (slice(0, width),), "up_proj": (slice(width, 2 * width),)}
    }
    return {
        f"{theirs}{name}": Fused(
            slot,
            {
                f"{theirs}{expert}.{part}.weight": (expert, *rows)
                for part, rows in halves.get(name, {name: ()}).items()
                for expert in range(mixture.experts)
            },
        )
        for name, slot in slots.items()
    }


def _swiglu(theirs: list[str], ours: str, width: int) -> dict[str, WeightTarget]:
    """`theirs`: gate, up and down. The first two are the halves of our one product; none of them has a bias."""
    gate, up, down = theirs
    return {
        f"{gate}.weight": WeightTarget(f"{ours}gate_up_proj.weight", (slice(0, width),)),
        f"{up}.weight": WeightTarget(f"{ours}gate_up_proj.weight", (slice(width, 2 * width),)),
        f"{down}.weight": WeightTarget(f"{ours}down_proj.weight"),
    }


def _unit_columns(head: torch.Tensor) -> torch.Tensor:
    """[vocab, hidden], every column brought to length 1."""
    return F.normalize(head.to(wide(head.dtype)), dim=0, eps=1e-7)
