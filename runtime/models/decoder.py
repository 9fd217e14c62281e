"""The decoder that most families share: pre-norm layers of attention and a gated feed-forward layer.

A family's own file says how its checkpoints are recognised, what their config.json means (a `DecoderArch`) and which
of its tensors is which of the parameters here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.moe_router import RoutingConfig
from runtime.layers.attention import AttentionShape, BatchAttention
from runtime.layers.attention_dispatch import make_attention
from runtime.layers.embedding import Embedding
from runtime.layers.kv_pool import KVPool, KVShape
from runtime.layers.layer_factory import Build, Calls
from runtime.layers.linear import Linear, attention_shares
from runtime.layers.lm_head import PlainHead
from runtime.layers.mlp import SwiGLU
from runtime.layers.moe import MoE
from runtime.layers.norm import RMSNorm
from runtime.layers.parameter import tensor_of
from runtime.layers.rotary import RotaryTable, Yarn
from runtime.models.base import Facts


@dataclass(frozen=True)
class Mixture:
    """The experts of those layers that have some."""

    layers: frozenset[int]
    experts: int
    width: int  # of one expert
    shared_width: int  # of the shared experts together; 0: none
    rule: RoutingConfig
    router_bias: bool


@dataclass(frozen=True)
class Growth:
    """Queries at position p are multiplied by 1 + beta * ln(1 + p // every): by 1 up to `every`."""

    beta: float
    every: int

    def of(self, positions: torch.Tensor, dtype: torch.dtype, *, alone: bool = False) -> torch.Tensor:
        """int64 [rows] -> [rows, 1, 1] of `dtype`, for queries [rows, heads, head_dim]. `alone`: each for itself, as on
        a CPU the last bit of a logarithm depends on where in a tensor it lies."""
        if alone:
            return torch.cat([self.of(position, dtype) for position in torch.split(positions, 1)])
        return (1 + self.beta * torch.log1p((positions // self.every).double())).to(dtype)[:, None, None]


@dataclass(frozen=True)
class DecoderArch:
    """Everything that a decoder is built from, and what `decoder_facts` and a family's own facts say of it."""

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # of a head's dimensions, the first ones, turn with the position
    rope_theta: float
    max_positions: int
    eps: float
    qk_norm: bool  # RMSNorm of each query and key head before they turn
    qkv_bias: bool
    out_bias: bool
    width: int  # of the feed-forward layers without experts; 0: every layer has experts
    mixture: Mixture | None
    tied: bool  # the embedding is the head too
    block_size: int
    mask_id: int | None
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    delete_id: int | None = None
    split_id: int | None = None
    padding: int = 0  # rows of the embedding and the head after those of the vocabulary
    norm_head: bool = False  # each column of the head is brought to length 1 when it is loaded
    clip: float | None = None  # of queries and keys before they turn, and of values
    yarn: Yarn | None = None
    growth: Growth | None = None


def decoder_facts(arch: DecoderArch) -> Facts:
    return Facts(
        vocab_size=arch.vocab_size,
        max_positions=arch.max_positions,
        block_size=arch.block_size,
        mask_id=arch.mask_id,
        eos_ids=arch.eos_ids,
    )


@dataclass(frozen=True)
class ForwardContext:
    """What every layer of one forward reads."""

    batch: ForwardBatch
    pool: KVPool
    rotary: torch.Tensor  # ``RotaryTable.cover``
    attention: BatchAttention
    growth: torch.Tensor | None  # ``Growth.of``
    first: torch.Tensor | None  # int64 [rows]: the first row of each row's block, where a block shares experts


def first_rows(positions: torch.Tensor, slots: torch.Tensor, block: int) -> torch.Tensor:
    """int64 [rows]: the first row of the block of `block` absolute positions that each row belongs to. A request's
    rows follow each other; a row that is written nowhere (slot -1) belongs to none but its own."""
    follows = (positions[1:] == positions[:-1] + 1) & (positions[1:] % block != 0) & (slots[1:] >= 0)
    rows = torch.arange(len(positions), device=positions.device)
    begins = torch.cat([rows[:1], torch.where(follows, 0, rows[1:])])
    return begins.cummax(0).values


class SelfAttention(nn.Module):
    """One product for queries, keys and values, norm and rotation of the heads, paged attention, output product."""

    __call__: Calls[[torch.Tensor, ForwardContext, int], torch.Tensor]

    def __init__(self, build: Build, arch: DecoderArch) -> None:
        super().__init__()
        self.arch = arch
        self.kernels = build.kernels
        self.heads, self.kv_heads, rows, columns = attention_shares(build, arch.heads, arch.kv_heads, arch.head_dim)
        self.qkv = Linear(
            build, arch.hidden, (arch.heads + 2 * arch.kv_heads) * arch.head_dim, bias=arch.qkv_bias,
            outputs_share=rows,
        )  # fmt: skip
        self.q_norm = RMSNorm(build, arch.head_dim, arch.eps) if arch.qk_norm else None
        self.k_norm = RMSNorm(build, arch.head_dim, arch.eps) if arch.qk_norm else None
        self.out = Linear(build, arch.heads * arch.head_dim, arch.hidden, bias=arch.out_bias, inputs_share=columns)

    def forward(self, x: torch.Tensor, context: ForwardContext, layer: int) -> torch.Tensor:
        return self.out(self._heads(x, context, layer))

    def add_normed(
        self, x: torch.Tensor, context: ForwardContext, layer: int, residual: torch.Tensor, norm: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `norm.add` makes of what this gives, and `residual`."""
        return self.out.add_normed(self._heads(x, context, layer), residual, norm)

    def _heads(self, x: torch.Tensor, context: ForwardContext, layer: int) -> torch.Tensor:
        """[rows, heads * head_dim]: what each head made of the values."""
        kv = context.pool.layer(layer)
        q = self.kernels.qk_norm_rope_and_cache(
            self.qkv(x), context.batch.positions, context.rotary,
            None if self.q_norm is None else tensor_of(self.q_norm.weight),
            None if self.k_norm is None else tensor_of(self.k_norm.weight),
            self.heads, self.kv_heads, self.arch.eps, self.arch.clip,
            slots=context.batch.slots, k_cache=kv.k, v_cache=kv.v,
        )  # fmt: skip
        if context.growth is not None:
            q = q * context.growth
        return context.attention.attend(q, kv).flatten(1)


class Layer(nn.Module):
    """Attention and feed-forward, each normed before; the residual stream is carried beside what is normed, and the
    norm of what follows is this layer's last. `attended` and `fed` are its halves, for the last layer."""

    __call__: Calls[[torch.Tensor, torch.Tensor, ForwardContext, RMSNorm], tuple[torch.Tensor, torch.Tensor]]

    def __init__(self, build: Build, arch: DecoderArch, index: int) -> None:
        super().__init__()
        self.index = index
        self.input_norm = RMSNorm(build, arch.hidden, arch.eps)
        self.attention = SelfAttention(build, arch)
        self.post_norm = RMSNorm(build, arch.hidden, arch.eps)
        mixture = arch.mixture
        if mixture is not None and index in mixture.layers:
            self.mlp: MoE | SwiGLU = MoE(
                build, arch.hidden, mixture.width, mixture.experts, mixture.shared_width, mixture.rule,
                router_bias=mixture.router_bias,
            )  # fmt: skip
        else:
            self.mlp = SwiGLU(build, arch.hidden, arch.width)

    def forward(
        self, normed: torch.Tensor, residual: torch.Tensor, context: ForwardContext, following: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, residual = self.attention.add_normed(normed, context, self.index, residual, self.post_norm)
        return self._feed(normed, residual, context.first, following)

    def attended(self, normed: torch.Tensor, residual: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """The residual stream after attention alone."""
        return residual + self.attention(normed, context, self.index)

    def fed(self, residual: torch.Tensor, following: RMSNorm) -> torch.Tensor:
        """What `following` makes of some rows of what `attended` gave, each by itself."""
        return self._feed(self.post_norm(residual), residual, None, following)[0]

    def _feed(
        self, normed: torch.Tensor, residual: torch.Tensor, first: torch.Tensor | None, following: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(self.mlp, MoE):
            return self.mlp.add_normed(normed, first, residual, following)
        return self.mlp.add_normed(normed, residual, following)


class Decoder(nn.Module):
    """See ``runtime.models.base.Model``. Built unfilled."""

    def __init__(self, arch: DecoderArch, build: Build) -> None:
        super().__init__()
        self.arch = arch
        self.alone = build.kernels.batch_invariant and build.device.type == "cpu"
        self.lora = build.lora
        self.block = 0 if arch.mixture is None else arch.mixture.rule.block  # rows that choose their experts together
        # the last layer's second half is for rows that are sampled; not where others', or adapters, belong to a row
        self.cut = not self.block and self.lora is None
        heads, kv_heads = build.heads(arch.heads, arch.kv_heads, arch.head_dim).counts
        self.kv_shapes = (KVShape(kv_heads, arch.head_dim, arch.head_dim),) * arch.layers
        shape = AttentionShape(heads, kv_heads, arch.head_dim, arch.head_dim**-0.5)
        self.attention = make_attention(shape, build)
        self.rotary = RotaryTable(build, arch.rotary_dim, arch.rope_theta, arch.max_positions, arch.yarn)
        self.embedding = Embedding(build, arch.vocab_size + arch.padding, arch.hidden)
        self.layers = nn.ModuleList(Layer(build, arch, index) for index in range(arch.layers))
        self.norm = RMSNorm(build, arch.hidden, arch.eps)
        self.lm_head = None if arch.tied else build.table(arch.vocab_size + arch.padding, arch.hidden)
        self.ids = self.embedding.ids
        self.head = PlainHead(self.lm_head or self.embedding.weight, build.kernels, self.ids)

    @torch.inference_mode()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens)

    @torch.inference_mode()
    def forward(self, x: torch.Tensor, batch: ForwardBatch, pool: KVPool) -> torch.Tensor:
        if self.lora is not None:
            self.lora.begin(batch)
        table, attention = self.rotary.cover(batch.reach), self.attention.plan(batch)
        growth = self.arch.growth
        grown = None if growth is None else growth.of(batch.positions, x.dtype, alone=self.alone)
        first = first_rows(batch.positions, batch.slots, self.block) if self.block else None
        context = ForwardContext(batch, pool, table, attention, grown, first)
        layers = cast("list[Layer]", list(self.layers))
        following = [*(layer.input_norm for layer in layers[1:]), self.norm]
        normed = layers[0].input_norm(x)
        whole = layers[:-1] if self.cut else layers
        for layer, norm in zip(whole, following, strict=False):
            normed, x = layer(normed, x, context, norm)
        return layers[-1].attended(normed, x, context) if self.cut else normed

    @torch.inference_mode()
    def finish(self, left: torch.Tensor) -> torch.Tensor:
        return cast("Layer", self.layers[-1]).fed(left, self.norm) if self.cut else left
