"""Which tensor of a checkpoint fills which parameter of a decoder: Llama's and Qwen's names, and what others share."""

from __future__ import annotations

from runtime.models.decoder import DecoderArch
from runtime.weights.loader import Slot, WeightMap


def llama_weights(arch: DecoderArch) -> WeightMap:
    """`model.embed_tokens`, `model.layers.N.self_attn.{q,k,v,o}_proj` and so on, with `q_norm` and `k_norm`, biases and
    experts where the architecture has them."""
    slots = {"model.embed_tokens.weight": Slot("embedding.weight"), "model.norm.weight": Slot("norm.weight")}
    if not arch.tied:
        slots["lm_head.weight"] = Slot("lm_head")
    for index in range(arch.layers):
        slots |= _llama_layer(arch, index)
    return WeightMap(slots, skip=lambda name: is_derived(arch, name))


def is_derived(arch: DecoderArch, name: str) -> bool:
    """Tensors that hold nothing of their own: tables made from the config, and a head that is the embedding."""
    return name.endswith("rotary_emb.inv_freq") or (arch.tied and name == "lm_head.weight")


def feed_forward(arch: DecoderArch, index: int, theirs: str, ours: str) -> dict[str, Slot]:
    """A layer's `mlp`: one SwiGLU, or `gate`, `experts.N` and `shared_experts`."""
    mixture = arch.mixture
    if mixture is None or index not in mixture.layers:
        return _swiglu(theirs, ours, arch.width)
    slots = {f"{theirs}gate.weight": Slot(f"{ours}router.weight")}
    if mixture.router_bias:
        slots[f"{theirs}gate.expert_bias"] = Slot(f"{ours}router.bias")
    width = mixture.width
    for expert in range(mixture.experts):
        each = f"{theirs}experts.{expert}."
        slots[f"{each}gate_proj.weight"] = Slot(f"{ours}gate_up", (expert, slice(0, width)))
        slots[f"{each}up_proj.weight"] = Slot(f"{ours}gate_up", (expert, slice(width, 2 * width)))
        slots[f"{each}down_proj.weight"] = Slot(f"{ours}down", (expert,))
    if mixture.shared_width:
        slots |= _swiglu(f"{theirs}shared_experts.", f"{ours}shared.", mixture.shared_width)
    return slots


def _llama_layer(arch: DecoderArch, index: int) -> dict[str, Slot]:
    theirs, ours = f"model.layers.{index}.", f"layers.{index}."
    slots = {
        f"{theirs}input_layernorm.weight": Slot(f"{ours}input_norm.weight"),
        f"{theirs}post_attention_layernorm.weight": Slot(f"{ours}post_norm.weight"),
        f"{theirs}self_attn.o_proj.weight": Slot(f"{ours}attention.out.weight"),
    }
    queries, keys = arch.heads * arch.head_dim, (arch.heads + arch.kv_heads) * arch.head_dim
    parts = {"q": slice(0, queries), "k": slice(queries, keys), "v": slice(keys, keys + arch.kv_heads * arch.head_dim)}
    for name, rows in parts.items():
        slots[f"{theirs}self_attn.{name}_proj.weight"] = Slot(f"{ours}attention.qkv.weight", (rows,))
        if arch.qkv_bias:
            slots[f"{theirs}self_attn.{name}_proj.bias"] = Slot(f"{ours}attention.qkv.bias", (rows,))
    if arch.out_bias:
        slots[f"{theirs}self_attn.o_proj.bias"] = Slot(f"{ours}attention.out.bias")
    if arch.qk_norm:
        slots[f"{theirs}self_attn.q_norm.weight"] = Slot(f"{ours}attention.q_norm.weight")
        slots[f"{theirs}self_attn.k_norm.weight"] = Slot(f"{ours}attention.k_norm.weight")
    return slots | feed_forward(arch, index, f"{theirs}mlp.", f"{ours}mlp.")


def _swiglu(theirs: str, ours: str, width: int) -> dict[str, Slot]:
    """gate_proj and up_proj are the halves of our one product; none of them has a bias."""
    return {
        f"{theirs}gate_proj.weight": Slot(f"{ours}gate_up.weight", (slice(0, width),)),
        f"{theirs}up_proj.weight": Slot(f"{ours}gate_up.weight", (slice(width, 2 * width),)),
        f"{theirs}down_proj.weight": Slot(f"{ours}down.weight"),
    }
