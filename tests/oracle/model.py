"""The forward pass of LLaDA2 in float64, written from docs/models/architecture-notes.md#llada2-layers.

No cache and no paging: one sequence, an explicit [n, n] mask, every expert computed for every token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

DTYPE = torch.float64


def block_causal(n: int, block: int) -> Tensor:
    """Returns a mask, [n, n] bool: query a attends to key k if k < (a // block + 1) * block."""
    at = torch.arange(n)
    return at[None, :] < (at[:, None] // block + 1) * block


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, positions: Tensor, dims: int, theta: float) -> Tensor:
    """Applies NeoX rotary embeddings to the first `dims` of the last axis; x: [heads, n, head_dim]."""
    half = dims // 2
    freq = theta ** (-torch.arange(half, dtype=DTYPE) * 2 / dims)
    angle = positions[:, None].to(DTYPE) * freq
    cos, sin = angle.cos(), angle.sin()
    a, b, rest = x[..., :half], x[..., half:dims], x[..., dims:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


class OracleModel:
    """A checkpoint directory (config.json and safetensors) as a function from ids to float64 logits."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], block: int | None = None) -> None:
        self.config = dict(config)
        self.w = {name: t.to(DTYPE) for name, t in tensors.items()}
        self.block = block or int(config["block_size"])
        assert config.get("norm_topk_prob", True), "the oracle implements only normalized expert weights"

    @classmethod
    def load(cls, directory: str | Path, block: int | None = None) -> OracleModel:
        directory = Path(directory)
        tensors: dict[str, Tensor] = {}
        for file in sorted(directory.glob("model*.safetensors")):
            with safe_open(file, "pt") as f:
                tensors.update({name: f.get_tensor(name) for name in f.keys()})  # noqa: SIM118
        return cls(json.loads((directory / "config.json").read_text()), tensors, block)

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Returns logits, float64 [len(ids), vocab], block-causal from position 0."""
        return self.forward(self.w["model.word_embeddings.weight"][torch.tensor(list(ids))])

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits of input embeddings [n, hidden]."""
        c, w = self.config, self.w
        for n in range(c["num_hidden_layers"]):
            name = f"model.layers.{n}."
            x = x + self._attention(name, rms_norm(x, w[name + "input_layernorm.weight"], c["rms_norm_eps"]))
            h = rms_norm(x, w[name + "post_attention_layernorm.weight"], c["rms_norm_eps"])
            dense = n < c["first_k_dense_replace"]
            x = x + (self._mlp(name + "mlp.", h) if dense else self._moe(name + "mlp.", h))
        x = rms_norm(x, w["model.norm.weight"], c["rms_norm_eps"])
        head = w["model.word_embeddings.weight" if c.get("tie_word_embeddings") else "lm_head.weight"]
        return x @ head.T

    def __call__(self, ids: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return self.logits(ids).numpy()

    def embed(self, token: int) -> np.ndarray:
        return self.w["model.word_embeddings.weight"][token].numpy()

    def look(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the logits of input embeddings."""
        with torch.no_grad():
            return self.forward(torch.from_numpy(np.stack(rows))).numpy()

    def _attention(self, name: str, x: Tensor) -> Tensor:
        c, w = self.config, self.w
        n, heads, kv_heads = len(x), c["num_attention_heads"], c["num_key_value_heads"]
        dim = c.get("head_dim") or c["hidden_size"] // heads
        qkv = x @ w[name + "attention.query_key_value.weight"].T + w.get(name + "attention.query_key_value.bias", 0.0)
        q, k, v = (
            part.reshape(n, -1, dim).transpose(0, 1)
            for part in qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
        )
        q = rms_norm(q, w[name + "attention.query_layernorm.weight"], c["rms_norm_eps"])
        k = rms_norm(k, w[name + "attention.key_layernorm.weight"], c["rms_norm_eps"])
        at, rot = torch.arange(n), int(dim * c.get("partial_rotary_factor", 1.0))
        q, k = rotate(q, at, rot, c["rope_theta"]), rotate(k, at, rot, c["rope_theta"])
        outs = []
        for h in range(heads):
            kv = h // (heads // kv_heads)
            scores = q[h] @ k[kv].T / math.sqrt(dim)
            scores = scores.masked_fill(~block_causal(n, self.block), -math.inf)
            outs.append(torch.softmax(scores, dim=-1) @ v[kv])
        return torch.cat(outs, dim=-1) @ w[name + "attention.dense.weight"].T + w.get(
            name + "attention.dense.bias", 0.0
        )

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        gate, up = x @ self.w[name + "gate_proj.weight"].T, x @ self.w[name + "up_proj.weight"].T
        return (gate * torch.sigmoid(gate) * up) @ self.w[name + "down_proj.weight"].T

    def _moe(self, name: str, x: Tensor) -> Tensor:
        """Computes every expert for every token. The weight of an expert that is not selected is 0."""
        c = self.config
        weights = self.route(name, x)
        out = torch.zeros_like(x)
        for e in range(c["num_experts"]):
            out = out + weights[:, e : e + 1] * self._mlp(f"{name}experts.{e}.", x)
        if c.get("num_shared_experts"):
            out = out + self._mlp(name + "shared_experts.", x)
        return out

    def route(self, name: str, x: Tensor) -> Tensor:
        """Returns the weight of each expert per token, [n, experts], computed token by token in plain Python."""
        c, w = self.config, self.w
        experts, groups = c["num_experts"], c["n_group"]
        bias = w.get(name + "gate.expert_bias", w.get(name + "gate.e_score_correction_bias"))
        scores = torch.sigmoid(x @ w[name + "gate.weight"].T).tolist()
        bias = bias.tolist()
        size = experts // groups
        members = [list(range(g * size, (g + 1) * size)) for g in range(groups)]
        out = [[0.0] * experts for _ in scores]
        ranks = [[s + b for s, b in zip(score, bias, strict=True)] for score in scores]
        for at, (row, score, rank) in enumerate(zip(out, scores, ranks, strict=True)):
            value = [sum(sorted((rank[e] for e in m), reverse=True)[:2]) for m in members]
            best = sorted(range(groups), key=lambda g: (-value[g], g))[: c["topk_group"]]
            allowed = [e for g in best for e in members[g]]
            if capacity := c.get("expert_capacity"):  # docs/models/architecture-notes.md#llada22-expert-pool
                start = at // c["block_size"] * c["block_size"]
                best_scores = [max(mate[e] for mate in ranks[start : start + c["block_size"]]) for e in range(experts)]
                allowed = sorted(range(experts), key=lambda e: (-best_scores[e], e))[:capacity]
            chosen = sorted(allowed, key=lambda e: (-rank[e], e))[: c["num_experts_per_tok"]]
            total = sum(score[e] for e in chosen) + 1e-20
            for e in chosen:
                row[e] = score[e] / total * c["routed_scaling_factor"]
        return torch.tensor(out, dtype=DTYPE)
