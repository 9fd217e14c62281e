"""Random tiny checkpoints of the families with the layers of Llama or Qwen, and their oracle, which is transformers.

The checkpoints have the family's own format (tests/oracle/spelling.py). transformers loads the same tensors into its
Llama, Qwen2, Qwen3, Qwen3-MoE or Ministral 3, and applies an explicit attention mask.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.oracle.model import block_causal
from tests.oracle.spelling import KINDS, for_transformers


def tensors_of(family: str, config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """Returns random float32 tensors for a config of the family, with Llama's names.

    `spelling.spelt` changes them to the family's names.
    """
    random = torch.Generator().manual_seed(seed)

    def matrix(out: int, inp: int) -> Tensor:
        return torch.randn(out, inp, generator=random) * 1.5 * inp**-0.5

    def vector(size: int, around: float) -> Tensor:
        return around + 0.2 * torch.randn(size, generator=random)

    kind, c = KINDS[family], for_transformers(family, config)
    hidden = c["hidden_size"]
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
            if c.get("attention_bias") or c["model_type"] == "qwen2":
                tensors[f"{name}.self_attn.{part}_proj.bias"] = vector(count * dim, 0)
        tensors[f"{name}.self_attn.o_proj.weight"] = matrix(hidden, heads["q"] * dim)
        if c.get("attention_bias"):
            tensors[f"{name}.self_attn.o_proj.bias"] = vector(hidden, 0)
        if kind.qk_norm and config.get("qk_layernorm", True):
            for part in ("q_norm", "k_norm"):
                tensors[f"{name}.self_attn.{part}.weight"] = vector(dim, 1.5)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{part}.weight"] = vector(hidden, 1)
        sparse = "num_experts" in c and (n + 1) % c["decoder_sparse_step"] == 0 and n not in c["mlp_only_layers"]
        if not sparse:
            mlp(f"{name}.mlp", c["intermediate_size"])
            continue
        tensors[f"{name}.mlp.gate.weight"] = matrix(c["num_experts"], hidden)
        if config.get("moe_router_enable_expert_bias"):
            tensors[f"{name}.mlp.expert_bias"] = vector(c["num_experts"], 0)
        for expert in range(c["num_experts"]):
            mlp(f"{name}.mlp.experts.{expert}", c["moe_intermediate_size"])
        if config.get("shared_expert_intermediate_size"):
            mlp(f"{name}.shared_expert", config["shared_expert_intermediate_size"])
    return tensors


def write(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


class TransformersOracle:
    """Computes float32 logits with the model of transformers. Forward hooks add what Qwen3-MoE lacks for LLaDA-MoE.

    `config` has the family's own format, `tensors` have Llama's names. transformers loads both from `directory`.
    """

    def __init__(self, directory: Path, family: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        from transformers import AutoModelForCausalLM

        theirs = for_transformers(family, config)
        extra = {n: t for n, t in tensors.items() if "shared_expert" in n or n.endswith("mlp.expert_bias")}
        loaded = {n: t for n, t in tensors.items() if n not in extra}
        unnormed = KINDS[family].qk_norm and not config.get("qk_layernorm", True)
        if unnormed:
            parts = [f"model.layers.{n}.self_attn.{p}" for n in range(theirs["num_hidden_layers"]) for p in "qk"]
            loaded |= {f"{part}_norm.weight": torch.ones(theirs["head_dim"]) for part in parts}
        write(directory, theirs, loaded)
        self.model, report = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not report["missing_keys"], report
        assert not report["unexpected_keys"], report
        for n, layer in enumerate(self.model.model.layers):
            attention = layer.self_attn
            if unnormed:
                attention.q_norm, attention.k_norm = nn.Identity(), nn.Identity()
            if clip := config.get("clip_qkv"):
                for part in (attention.q_norm, attention.k_norm, attention.v_proj):
                    part.register_forward_hook(lambda module, args, out, clip=clip: out.clamp(-clip, clip))
            if (bias := extra.get(f"model.layers.{n}.mlp.expert_bias")) is not None:
                layer.mlp.gate.register_forward_hook(lambda gate, args, out, b=bias: biased(out[0], b, gate.top_k))
            if any(name.startswith(f"model.layers.{n}.shared_expert") for name in extra):
                shared = [
                    extra[f"model.layers.{n}.shared_expert.{p}_proj.weight"] for p in ("gate", "up", "down")
                ]  # fmt: skip
                layer.mlp.register_forward_hook(lambda module, args, out, w=shared: out + gated(args[0], *w))

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], block: int) -> Tensor:
        """Returns logits [len(ids), vocab]. A query attends to the keys up to the end of its block."""
        return self.masked_logits(ids, block_causal(len(ids), block))

    @torch.inference_mode()
    def masked_logits(self, ids: Sequence[int], visible: Tensor) -> Tensor:
        """Returns logits [len(ids), vocab]. Query a attends to key k where `visible[a, k]`."""
        mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
        return self.model(torch.tensor([list(ids)]), attention_mask=mask[None, None], use_cache=False).logits[0]


def biased(logits: Tensor, bias: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output of a router whose bias changes both the selection of experts and their weights."""
    chosen = (logits.softmax(-1) + bias).sort(-1, descending=True)
    return logits, chosen.values[:, :top_k], chosen.indices[:, :top_k]


def gated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
