"""Which tensor of a checkpoint fills which parameter of a decoder: Llama's and Qwen's names, and what others share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from runtime.kernels.precision import wide
from runtime.layers.sharding import Index
from runtime.models.decoder import DecoderArch, Mixture
from runtime.models.weight_map import Fused, Slot, WeightMap


@dataclass(frozen=True)
class Names:
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


LLAMA = Names()


def llama_weights(arch: DecoderArch, names: Names = LLAMA) -> WeightMap:
    """For checkpoints in the manner of Llama and Qwen, with one tensor each for queries, keys and values."""
    return decoder_weights(arch, names, partial(_attention, arch, names))


def decoder_weights(
    arch: DecoderArch,
    names: Names,
    attention: Callable[[str, str], dict[str, Slot]],
    rename: Callable[[str], str] = lambda name: name,
) -> WeightMap:
    """`attention(theirs, ours)` are the tensors of one layer's attention, by the beginnings of their names in a file
    and of the parameters'. A table made from the config may stand in a file, and a head that is the embedding too."""
    slots = {f"{names.embedding}.weight": Slot("embedding.weight"), f"{names.norm}.weight": Slot("norm.weight")}
    head = f"{names.head}.weight"
    if not arch.tied:
        slots[head] = Slot("lm_head", through=_unit_columns if arch.norm_head else None)
    fused: dict[str, Fused] = {}
    for index in range(arch.layers):
        theirs, ours = names.layer.format(index), f"layers.{index}."
        slots[f"{theirs}{names.input_norm}.weight"] = Slot(f"{ours}input_norm.weight")
        slots[f"{theirs}{names.post_norm}.weight"] = Slot(f"{ours}post_norm.weight")
        slots |= attention(theirs, f"{ours}attention.")
        if arch.mixture is None or index not in arch.mixture.layers:
            dense = [f"{theirs}{name}" for name in (names.gate, names.up, names.down)]
            slots |= _swiglu(dense, f"{ours}mlp.", arch.width)
            continue
        slots |= _mixture(arch.mixture, names, theirs, f"{ours}mlp.")
        fused |= _fused(arch.mixture, f"{theirs}{names.experts}.", f"{ours}mlp.")
    return WeightMap(
        slots, rename, lambda name: name.endswith("rotary_emb.inv_freq") or (arch.tied and name == head), fused
    )


def _attention(arch: DecoderArch, names: Names, theirs: str, ours: str) -> dict[str, Slot]:
    queries, keys = arch.heads * arch.head_dim, (arch.heads + arch.kv_heads) * arch.head_dim
    values = keys + arch.kv_heads * arch.head_dim
    slots = {f"{theirs}{names.out}.weight": Slot(f"{ours}out.weight")}
    for name, rows in ((names.q, slice(0, queries)), (names.k, slice(queries, keys)), (names.v, slice(keys, values))):
        slots[f"{theirs}{name}.weight"] = Slot(f"{ours}qkv.weight", (rows,))
        if arch.qkv_bias:
            slots[f"{theirs}{name}.bias"] = Slot(f"{ours}qkv.bias", (rows,))
    if arch.out_bias:
        slots[f"{theirs}{names.out}.bias"] = Slot(f"{ours}out.bias")
    if arch.qk_norm:
        slots[f"{theirs}{names.q_norm}.weight"] = Slot(f"{ours}q_norm.weight")
        slots[f"{theirs}{names.k_norm}.weight"] = Slot(f"{ours}k_norm.weight")
    return slots


def _mixture(mixture: Mixture, names: Names, theirs: str, ours: str) -> dict[str, Slot]:
    """Router, experts one by one, shared experts."""
    slots = {f"{theirs}{names.router}.weight": Slot(f"{ours}router.weight")}
    if mixture.router_bias:
        slots[f"{theirs}{names.router_bias}"] = Slot(f"{ours}router.bias")
    width = mixture.width
    for expert in range(mixture.experts):
        each = f"{theirs}{names.experts}.{expert}."
        slots[f"{each}gate_proj.weight"] = Slot(f"{ours}gate_up", (expert, slice(0, width)))
        slots[f"{each}up_proj.weight"] = Slot(f"{ours}gate_up", (expert, slice(width, 2 * width)))
        slots[f"{each}down_proj.weight"] = Slot(f"{ours}down", (expert,))
    if mixture.shared_width:
        shared = [f"{theirs}{names.shared}.{part}" for part in ("gate_proj", "up_proj", "down_proj")]
        slots |= _swiglu(shared, f"{ours}shared.", mixture.shared_width)
    return slots


def _fused(mixture: Mixture, theirs: str, ours: str) -> dict[str, Fused]:
    """The same experts as three tensors [experts, out, in] without `.weight`, or as two, in which the rows of all gates
    come before those of `up` as in memory of transformers 5."""
    width, every = mixture.width, slice(None)
    slots = {
        "gate_up_proj": Slot(f"{ours}gate_up"),
        "gate_proj": Slot(f"{ours}gate_up", (every, slice(0, width))),
        "up_proj": Slot(f"{ours}gate_up", (every, slice(width, 2 * width))),
        "down_proj": Slot(f"{ours}down"),
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


def _swiglu(theirs: list[str], ours: str, width: int) -> dict[str, Slot]:
    """`theirs`: gate, up and down. The first two are the halves of our one product; none of them has a bias."""
    gate, up, down = theirs
    return {
        f"{gate}.weight": Slot(f"{ours}gate_up.weight", (slice(0, width),)),
        f"{up}.weight": Slot(f"{ours}gate_up.weight", (slice(width, 2 * width),)),
        f"{down}.weight": Slot(f"{ours}down.weight"),
    }


def _unit_columns(head: torch.Tensor) -> torch.Tensor:
    """[vocab, hidden], every column brought to length 1."""
    return F.normalize(head.to(wide(head.dtype)), dim=0, eps=1e-7)
