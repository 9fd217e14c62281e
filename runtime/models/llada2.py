"""LLaDA2: a block-diffusion mixture of experts (models.md 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from runtime.kernels.batch import ForwardBatch
from runtime.layers.attention import AttentionShape, make_attention
from runtime.layers.build import Build
from runtime.layers.embedding import Embedding
from runtime.layers.kv_pool import KVPool, KVShape
from runtime.layers.linear import Linear, head_logits
from runtime.layers.mlp import SwiGLU
from runtime.layers.moe import MoE
from runtime.layers.norm import RMSNorm
from runtime.layers.rotary import RotaryTable
from runtime.models.base import Facts, Family, register_family
from runtime.models.llada2_config import LLaDA2Arch, parse
from runtime.models.llada2_weights import weights


class Step:
    """What one forward hands to every layer."""

    def __init__(self, batch: ForwardBatch, pool: KVPool, table: torch.Tensor, attention: Any) -> None:
        self.batch = batch
        self.pool = pool
        self.table = table
        self.attention = attention
        self.plan = attention.plan(batch)


class SelfAttention(nn.Module):
    """Fused QKV, per-head q/k norm, partial rotary, paged attention, output projection."""

    def __init__(self, build: Build, arch: LLaDA2Arch) -> None:
        super().__init__()
        self.arch = arch
        self.kernels = build.kernels
        width = (arch.heads + 2 * arch.kv_heads) * arch.head_dim
        self.qkv = Linear(build, arch.hidden, width, bias=arch.qkv_bias)
        self.q_norm = RMSNorm(build, arch.head_dim, arch.eps)
        self.k_norm = RMSNorm(build, arch.head_dim, arch.eps)
        self.out = Linear(build, arch.heads * arch.head_dim, arch.hidden, bias=arch.out_bias)

    def forward(self, x: torch.Tensor, step: Step, layer: int) -> torch.Tensor:
        q, k, v = self.kernels.qk_norm_rotary(
            self.qkv(x), step.batch.positions, step.table, self.q_norm.weight, self.k_norm.weight,
            self.arch.heads, self.arch.kv_heads, self.arch.eps,
        )  # fmt: skip
        kv = step.pool.layer(layer)
        self.kernels.write_kv(k, v, step.batch.slots, kv.k, kv.v)
        return self.out(step.attention.attend(q, kv, step.plan).flatten(1))


class Layer(nn.Module):
    """Pre-norm attention and feed-forward; the residual stream is carried beside the branch's output."""

    def __init__(self, build: Build, arch: LLaDA2Arch, index: int) -> None:
        super().__init__()
        self.index = index
        self.input_norm = RMSNorm(build, arch.hidden, arch.eps)
        self.attention = SelfAttention(build, arch)
        self.post_norm = RMSNorm(build, arch.hidden, arch.eps)
        if index < arch.dense_layers:
            self.mlp = SwiGLU(build, arch.hidden, arch.dense_width)
        else:
            self.mlp = MoE(
                build, arch.hidden, arch.expert_width, arch.experts, arch.shared_experts * arch.expert_width,
                arch.routing, router_bias=arch.router_bias,
            )  # fmt: skip

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            normed, residual = self.input_norm(x), x
        else:
            normed, residual = self.input_norm.add(x, residual)
        normed, residual = self.post_norm.add(self.attention(normed, step, self.index), residual)
        return self.mlp(normed), residual


class LLaDA2(nn.Module):
    """See ``runtime.models.base.Model``. Built unfilled."""

    def __init__(self, arch: LLaDA2Arch, build: Build) -> None:
        super().__init__()
        shape = AttentionShape(arch.heads, arch.kv_heads, arch.head_dim, arch.head_dim**-0.5)
        self.arch = arch
        self.kv_shapes = (KVShape(arch.kv_heads, arch.head_dim, arch.head_dim),) * arch.layers
        self.vocab_size = arch.vocab_size
        self.attention = make_attention(shape, build)
        self.rotary = RotaryTable(build, arch.rotary_dim, arch.rope_theta, arch.max_positions)
        self.embedding = Embedding(build, arch.vocab_size, arch.hidden)
        self.layers = nn.ModuleList(Layer(build, arch, index) for index in range(arch.layers))
        self.norm = RMSNorm(build, arch.hidden, arch.eps)
        self.head = None if arch.tied else build.parameter(arch.vocab_size, arch.hidden)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, pool: KVPool) -> torch.Tensor:
        step = Step(batch, pool, self.rotary.cover(batch.reach), self.attention)
        x, residual = self.embedding(batch.tokens), None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm.add(x, residual)[0]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return head_logits(hidden, self.embedding.weight if self.head is None else self.head)


def detect(config: Mapping[str, Any]) -> bool:
    """LLaDA2.0 and 2.1. LLaDA2.2 shares the model_type and is told by its expert pool, which is another family."""
    return config.get("model_type") == "llada2_moe" and "expert_capacity" not in config


def facts(arch: LLaDA2Arch) -> Facts:
    return Facts(
        vocab_size=arch.vocab_size,
        max_positions=arch.max_positions,
        block_size=arch.block_size,
        mask_id=arch.mask_id,
        eos_ids=arch.eos_ids,
    )


LLADA2 = register_family(
    Family(
        key="llada2",
        aliases=("llada2_mini", "llada2_moe", "llada2_flash", "llada2dot1_mini"),
        detect=detect,
        parse=parse,
        facts=facts,
        make=LLaDA2,
        weights=weights,
        strategies=("multi_bd", "dmax"),
        sampling_modes=("naive", "edit"),
        accept_threshold=0.95,
        turn_end_tokens=("<|role_end|>",),
        mask_tokens=("<|mask|>",),
        mask_id=156895,
        eos_ids=(156892,),
        needs_edit=frozenset({"llada2dot1_mini"}),
    )
)
