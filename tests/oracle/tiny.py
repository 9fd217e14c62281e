"""Random LLaDA2 checkpoints small enough for property tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

# Each covers code paths of the family: grouped routing, all dense with one KV head and a tied head, all MoE.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "grouped_moe": {},
    "dense_tied": {"num_key_value_heads": 1, "first_k_dense_replace": 2, "tie_word_embeddings": True,
                   "partial_rotary_factor": 0.25},
    "all_moe": {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 4, "first_k_dense_replace": 0,
                "num_experts": 6, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 3, "num_shared_experts": 2,
                "moe_shared_expert_intermediate_size": 5, "partial_rotary_factor": 1.0},
}  # fmt: skip


def tiny_config(vocab: int = 32, block: int = 4, eos: Sequence[int] = (3, 11, 19), **changes: Any) -> dict[str, Any]:
    """Returns a config.json of a tiny LLaDA2. The mask id is the largest id of the vocabulary."""
    config: dict[str, Any] = {
        "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "torch_dtype": "float32",
        "block_size": block, "vocab_size": vocab, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "use_bias": False, "use_qkv_bias": False,
        "num_experts": 4, "num_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "moe_intermediate_size": 8, "first_k_dense_replace": 1, "pad_token_id": eos[0], "eos_token_id": list(eos),
        "mask_token_id": vocab - 1, "max_position_embeddings": 512, "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 1.5, "norm_topk_prob": True, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    }  # fmt: skip
    return config | changes


def tiny_tensors(config: dict[str, Any], seed: int, sharpness: float = 1.0) -> dict[str, Tensor]:
    """Returns random float32 tensors with the family's names. `sharpness` scales the logits, and so the confidences."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=random) * scale

    def linear(out: int, inp: int) -> Tensor:
        return normal(out, inp, scale=1.5 * inp**-0.5)

    def norm(size: int) -> Tensor:
        return 1 + normal(size, scale=0.2)

    c, hidden = config, config["hidden_size"]
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    w = {"model.word_embeddings.weight": normal(c["vocab_size"], hidden), "model.norm.weight": norm(hidden)}

    def mlp(name: str, width: int) -> None:
        for part in ("gate_proj", "up_proj"):
            w[f"{name}.{part}.weight"] = linear(width, hidden)
        w[f"{name}.down_proj.weight"] = linear(hidden, width)

    for n in range(c["num_hidden_layers"]):
        name = f"model.layers.{n}"
        w[f"{name}.input_layernorm.weight"] = norm(hidden)
        w[f"{name}.post_attention_layernorm.weight"] = norm(hidden)
        w[f"{name}.attention.query_key_value.weight"] = linear((heads + 2 * kv) * dim, hidden)
        w[f"{name}.attention.query_layernorm.weight"] = norm(dim) * 1.5
        w[f"{name}.attention.key_layernorm.weight"] = norm(dim) * 1.5
        w[f"{name}.attention.dense.weight"] = linear(hidden, heads * dim)
        if c["use_qkv_bias"]:
            w[f"{name}.attention.query_key_value.bias"] = normal((heads + 2 * kv) * dim, scale=0.3)
        if c["use_bias"]:
            w[f"{name}.attention.dense.bias"] = normal(hidden, scale=0.3)
        if n < c["first_k_dense_replace"]:
            mlp(f"{name}.mlp", c["intermediate_size"])
            continue
        w[f"{name}.mlp.gate.weight"] = linear(c["num_experts"], hidden)
        w[f"{name}.mlp.gate.expert_bias"] = normal(c["num_experts"], scale=0.1)
        for e in range(c["num_experts"]):
            mlp(f"{name}.mlp.experts.{e}", c["moe_intermediate_size"])
        shared = c.get("moe_shared_expert_intermediate_size", c["moe_intermediate_size"])
        mlp(f"{name}.mlp.shared_experts", shared * c["num_shared_experts"])
    if c["tie_word_embeddings"]:
        w["model.norm.weight"] *= sharpness
    else:
        w["lm_head.weight"] = normal(c["vocab_size"], hidden, scale=0.75 * sharpness)
    return w


def write_tiny(directory: Path, seed: int, sharpness: float = 1.0, **changes: Any) -> dict[str, Any]:
    """Writes config.json and model.safetensors of a random tiny LLaDA2, and returns the config."""
    config = tiny_config(**changes)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tiny_tensors(config, seed, sharpness), directory / "model.safetensors", metadata={"format": "pt"})
    return config
