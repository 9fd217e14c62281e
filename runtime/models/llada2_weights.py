"""LLaDA2's tensor names (models.md 1) and the parameters they fill."""

from __future__ import annotations

from runtime.models.llada2_config import LLaDA2Arch
from runtime.weights.loader import Slot, WeightMap


def weights(arch: LLaDA2Arch) -> WeightMap:
    slots = {"model.word_embeddings.weight": Slot("embedding.weight"), "model.norm.weight": Slot("norm.weight")}
    if not arch.tied:
        slots["lm_head.weight"] = Slot("head")
    for index in range(arch.layers):
        slots |= _layer(arch, index)

    def skip(name: str) -> bool:
        # tables made from the config, and a head that the config says is the embedding
        return name.endswith("rotary_emb.inv_freq") or (arch.tied and name == "lm_head.weight")

    return WeightMap(slots, rename=_canonical, skip=skip)


def _canonical(name: str) -> str:
    return name.replace(".gate.e_score_correction_bias", ".gate.expert_bias")


def _layer(arch: LLaDA2Arch, index: int) -> dict[str, Slot]:
    theirs, ours = f"model.layers.{index}.", f"layers.{index}."
    slots = {
        theirs + "input_layernorm.weight": Slot(ours + "input_norm.weight"),
        theirs + "post_attention_layernorm.weight": Slot(ours + "post_norm.weight"),
        theirs + "attention.query_key_value.weight": Slot(ours + "attention.qkv.weight"),
        theirs + "attention.query_layernorm.weight": Slot(ours + "attention.q_norm.weight"),
        theirs + "attention.key_layernorm.weight": Slot(ours + "attention.k_norm.weight"),
        theirs + "attention.dense.weight": Slot(ours + "attention.out.weight"),
    }
    if arch.qkv_bias:
        slots[theirs + "attention.query_key_value.bias"] = Slot(ours + "attention.qkv.bias")
    if arch.out_bias:
        slots[theirs + "attention.dense.bias"] = Slot(ours + "attention.out.bias")
    if index < arch.dense_layers:
        return slots | _swiglu(theirs + "mlp.", ours + "mlp.", arch.dense_width)
    slots[theirs + "mlp.gate.weight"] = Slot(ours + "mlp.router.weight")
    if arch.router_bias:
        slots[theirs + "mlp.gate.expert_bias"] = Slot(ours + "mlp.router.bias")
    width = arch.expert_width
    for expert in range(arch.experts):
        each = f"{theirs}mlp.experts.{expert}."
        slots[each + "gate_proj.weight"] = Slot(ours + "mlp.gate_up", (expert, slice(0, width)))
        slots[each + "up_proj.weight"] = Slot(ours + "mlp.gate_up", (expert, slice(width, 2 * width)))
        slots[each + "down_proj.weight"] = Slot(ours + "mlp.down", (expert,))
    if arch.shared_experts:
        slots |= _swiglu(theirs + "mlp.shared_experts.", ours + "mlp.shared.", arch.shared_experts * width)
    return slots


def _swiglu(theirs: str, ours: str, width: int) -> dict[str, Slot]:
    """gate_proj and up_proj are the halves of our one product; none of them has a bias."""
    return {
        f"{theirs}gate_proj.weight": Slot(f"{ours}gate_up.weight", (slice(0, width),)),
        f"{theirs}up_proj.weight": Slot(f"{ours}gate_up.weight", (slice(width, 2 * width),)),
        f"{theirs}down_proj.weight": Slot(f"{ours}down.weight"),
    }
