"""Random tiny checkpoints with the tensor names of Llama and Qwen, and transformers as their oracle: the same tensors
in its own Llama, Qwen3 or Qwen3-MoE, under a block-causal mask that is handed to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.oracle.model import block_causal

# family -> what its config.json says, and the transformers model that computes it
SIGNS: dict[str, dict[str, Any]] = {
    "sdar": {"model_type": "sdar", "architectures": ["SDARForCausalLM"]},
    "sdar_moe": {"model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"]},
    "dream_reasoner": {"model_type": "Dream", "architectures": ["DreamForCausalLM"]},
    "stable_diffcoder": {"model_type": "llama", "architectures": ["StableDiffcoderForCausalLM"]},
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "sdar": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "sdar_moe": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]},
    "dream_reasoner": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "stable_diffcoder": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
}


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    """A config.json of a tiny model of the family; the mask id is the largest of the vocabulary."""
    config: dict[str, Any] = SIGNS[family] | {
        "torch_dtype": "float32",
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "attention_bias": False,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "block_size": 4,
        "mask_token_id": 39,
        "eos_token_id": 3,
    }
    if family == "sdar_moe":
        config |= {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
            "decoder_sparse_step": 1,
        }
    return config | changes


def tensors_of(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """float32 tensors that the config implies."""
    random = torch.Generator().manual_seed(seed)

    def matrix(out: int, inp: int) -> Tensor:
        return torch.randn(out, inp, generator=random) * 1.5 * inp**-0.5

    def vector(size: int, around: float) -> Tensor:
        return around + 0.2 * torch.randn(size, generator=random)

    c, hidden = config, config["hidden_size"]
    dim = c.get("head_dim") or hidden // c["num_attention_heads"]
    tensors = {"model.embed_tokens.weight": torch.randn(c["vocab_size"], hidden, generator=random)}
    tensors["model.norm.weight"] = vector(hidden, 1)
    if not c["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(c["vocab_size"], hidden)

    def mlp(name: str, width: int) -> None:
        for part in ("gate_proj", "up_proj"):
            tensors[f"{name}.{part}.weight"] = matrix(width, hidden)
        tensors[f"{name}.down_proj.weight"] = matrix(hidden, width)

    for n in range(c["num_hidden_layers"]):
        name = f"model.layers.{n}"
        heads = {"q": c["num_attention_heads"], "k": c["num_key_value_heads"], "v": c["num_key_value_heads"]}
        for part, count in heads.items():
            tensors[f"{name}.self_attn.{part}_proj.weight"] = matrix(count * dim, hidden)
            if c["attention_bias"]:
                tensors[f"{name}.self_attn.{part}_proj.bias"] = vector(count * dim, 0)
        tensors[f"{name}.self_attn.o_proj.weight"] = matrix(hidden, heads["q"] * dim)
        if c["attention_bias"]:
            tensors[f"{name}.self_attn.o_proj.bias"] = vector(hidden, 0)
        if c["model_type"] != "llama":
            for part in ("q_norm", "k_norm"):
                tensors[f"{name}.self_attn.{part}.weight"] = vector(dim, 1.5)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{part}.weight"] = vector(hidden, 1)
        sparse = "num_experts" in c and (n + 1) % c["decoder_sparse_step"] == 0 and n not in c["mlp_only_layers"]
        if not sparse:
            mlp(f"{name}.mlp", c["intermediate_size"])
            continue
        tensors[f"{name}.mlp.gate.weight"] = matrix(c["num_experts"], hidden)
        for expert in range(c["num_experts"]):
            mlp(f"{name}.mlp.experts.{expert}", c["moe_intermediate_size"])
    return tensors


def write(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


class TransformersOracle:
    """float32 logits of transformers' implementation; `directory` is a scratch place for its own checkpoint."""

    def __init__(self, directory: Path, family: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        from transformers import AutoModelForCausalLM

        write(directory, config | TRANSFORMERS[family], tensors)
        self.model, told = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not told["missing_keys"], told
        assert not told["unexpected_keys"], told

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], block: int) -> Tensor:
        """[len(ids), vocab]; a query sees the keys up to the end of its own block."""
        hidden = ~block_causal(len(ids), block)
        mask = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))
        return self.model(torch.tensor([list(ids)]), attention_mask=mask[None, None], use_cache=False).logits[0]
