"""Layers of DiffusionGemma (docs/models.md#diffusiongemma-layers).

One stack of layers commits canvases causally and denoises open canvases with self-conditioning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from runtime.kernels.activation import Activation
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.fused_moe.moe_sum import Choices
from runtime.kernels.moe_router import RoutingRule
from runtime.kernels.precision import wide
from runtime.kernels.sandwich_norm import Fillings
from runtime.kernels.signatures import Sandwich
from runtime.layers.attention import AttentionShape, BatchAttention
from runtime.layers.attention_dispatch import make_attention
from runtime.layers.embedding import Embedding
from runtime.layers.kv_pool import KVPool, KVShape
from runtime.layers.layer_factory import Build, Calls
from runtime.layers.linear import Linear, attention_shares
from runtime.layers.lm_head import CappedHead
from runtime.layers.mlp import SwiGLU
from runtime.layers.moe import Router, stack
from runtime.layers.norm import RMSNorm
from runtime.layers.rotary import RotaryTable
from runtime.models.diffusion_gemma_config import GemmaArch, Kind

GELU: Activation = "gelu_tanh"


@dataclass(frozen=True)
class KindContext:
    """What the layers of one kind read of one forward."""

    batch: ForwardBatch
    rotary: torch.Tensor  # ``RotaryTable.cover``
    attention: BatchAttention


class SelfAttention(nn.Module):
    """Heads of queries, keys and values are normed, scores are not scaled; a layer without a window has no values of
    its own."""

    __call__: Calls[[torch.Tensor, KindContext, KVPool, int], torch.Tensor]

    def __init__(self, build: Build, arch: GemmaArch, kind: Kind) -> None:
        super().__init__()
        self.kind, self.eps = kind, arch.eps
        self.kernels = build.kernels
        self.heads, self.kv_heads, rows, columns = attention_shares(
            build, arch.heads, kind.kv_heads, kind.head_dim, values=kind.window is not None
        )
        stored = arch.heads + (1 if kind.window is None else 2) * kind.kv_heads
        self.qkv = Linear(build, arch.hidden, stored * kind.head_dim, bias=False, outputs_share=rows)
        self.q_weight = build.parameter(kind.head_dim)
        self.k_weight = build.parameter(kind.head_dim)
        self.out = Linear(build, arch.heads * kind.head_dim, arch.hidden, bias=False, inputs_share=columns)

    def forward(self, x: torch.Tensor, context: KindContext, pool: KVPool, layer: int) -> torch.Tensor:
        kind, batch = self.kind, context.batch
        kv = pool.layer(layer)
        q = self.kernels.qkv_to_pages(
            self.qkv(x), batch.positions, context.rotary, self.q_weight.tensor, self.k_weight.tensor, self.heads,
            self.kv_heads, self.eps, slots=batch.slots, k_cache=kv.k, v_cache=kv.v, apart=kind.head_dim // 2,
            v_norm=True, v_from_k=kind.window is None,
        )  # fmt: skip
        return self.out(context.attention.attend(q, kv).flatten(1))


class Experts(nn.Module):
    """The router sees the rows under a norm of its own (`seen`), or as they are beside that norm's factors; the norm's
    scale is in the router's weight. The experts see them under another (`norm`)."""

    __call__: Calls[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

    def __init__(self, build: Build, arch: GemmaArch) -> None:
        super().__init__()
        rule = RoutingRule(arch.top_k, 1, 1, True, 1.0, "softmax")
        self.eps = arch.eps
        self.router = Router(build, arch.hidden, arch.experts, rule, bias=False)
        self.expert_scale = build.parameter(arch.experts, dtype=wide(build.dtype))
        self.norm = RMSNorm(build, arch.hidden, arch.eps)
        held, self.here = stack(build, arch.experts, arch.hidden, arch.expert_width)
        self.gate_up, self.down = held
        self.kernels, self.group = build.kernels, build.group

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x.to(wide(x.dtype)), None, self.eps)

    def forward(self, seen: torch.Tensor, normed: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
        ids, weights = self.router(seen, None, factor)
        weights = weights * self.expert_scale.tensor[ids]
        if self.here is not None:
            ids = self.here.at(ids)
        operands, room = (self.gate_up.operand, self.down.operand), self.group.output_buffer(normed.shape, normed.dtype)
        return self.group.all_reduce_out(self.kernels.moe(normed, ids, weights, *operands, None, GELU, out=room))

    def choices(self, made: Fillings, sandwich: Sandwich) -> torch.Tensor | Choices:
        """What `sandwich` sums up itself, or the sum, where ranks share the experts."""
        if not self.group.is_single:
            return self(made.total, made.experts, made.factor)
        ids, weights = self.router(made.total, None, made.factor)
        pairs = sandwich.products(made.experts, ids, self.gate_up.operand, self.down.operand, GELU)
        return Choices(pairs, ids, weights, self.expert_scale.tensor)


class Layer(nn.Module):
    """Attention, then a dense part beside experts; each is normed before and after. The norm before attention is the
    last of what comes before it."""

    __call__: Calls[
        [torch.Tensor, torch.Tensor, list[KindContext], KVPool, torch.Tensor, RMSNorm],
        tuple[torch.Tensor, torch.Tensor],
    ]

    def __init__(self, build: Build, arch: GemmaArch, index: int) -> None:
        super().__init__()
        self.index = index
        self.kind = arch.layers[index]

        def norm() -> RMSNorm:
            return RMSNorm(build, arch.hidden, arch.eps)

        self.input_norm, self.attention_norm = norm(), norm()
        self.attention = SelfAttention(build, arch, arch.kinds[self.kind])
        self.dense_before, self.dense_after = norm(), norm()
        self.dense = SwiGLU(build, arch.hidden, arch.width, GELU)
        self.experts, self.experts_after = Experts(build, arch), norm()
        self.output_norm = norm()
        self.eps = arch.eps
        self.kernels = build.kernels

    def forward(
        self, normed: torch.Tensor, x: torch.Tensor, contexts: list[KindContext], pool: KVPool, scale: torch.Tensor,
        following: RMSNorm,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """(what `following` makes of the second, [rows, hidden]). `scale` [rows, 1]: what each row is multiplied by at
        last."""
        mixed = self.attention(normed, contexts[self.kind], pool, self.index)
        sandwich = self.kernels.sandwich
        if sandwich is None:
            x = x + self.attention_norm(mixed)
            dense = self.dense(self.dense_before(x))
            chosen = self.experts(self.experts.seen(x), self.experts.norm(x), None)
            x = (x + self.output_norm(self.dense_after(dense) + self.experts_after(chosen))) * scale
            return following(x), x
        made = sandwich.before(
            mixed, x, _of(self.attention_norm), _of(self.dense_before), _of(self.experts.norm), self.eps
        )
        after = tuple(_of(norm) for norm in (self.dense_after, self.experts_after, self.output_norm, following))
        dense, choices = self.dense(made.dense), self.experts.choices(made, sandwich)
        return sandwich.after(dense, choices, made.total, scale, after, self.eps)


def _of(norm: RMSNorm) -> torch.Tensor:
    assert norm.weight is not None
    return norm.weight.tensor


class SelfConditioning(nn.Module):
    """Open rows before the first layer: with what the last step made of them, where there was one."""

    __call__: Calls[[torch.Tensor, torch.Tensor | None], torch.Tensor]

    def __init__(self, build: Build, arch: GemmaArch) -> None:
        super().__init__()
        self.before = RMSNorm(build, arch.hidden, arch.eps)
        self.gated = SwiGLU(build, arch.hidden, arch.width, GELU)
        self.after = RMSNorm(build, arch.hidden, arch.eps, weighted=False)

    def forward(self, x: torch.Tensor, signal: torch.Tensor | None) -> torch.Tensor:
        """[rows, hidden]; a row whose signal is 0, as all are without one, has no step behind it."""
        return self.after(x if signal is None else x + self.gated(self.before(signal)))


class DiffusionGemma(nn.Module):
    """See ``runtime.models.base.Model``. Built unfilled.

    Rows of a batch that are not `open` are committed: they skip the self-conditioning, and take the first of each
    layer's two scales instead of the second. `soften` makes of an open row's distribution what its next step takes as
    `signal`.
    """

    def __init__(self, arch: GemmaArch, build: Build) -> None:
        super().__init__()
        self.arch = arch
        self.lora = build.lora
        self.signal_width = arch.hidden
        kinds = arch.kinds
        here = [build.heads(arch.heads, kind.kv_heads, kind.head_dim).counts for kind in kinds]
        self.kv_shapes = tuple(
            KVShape(here[n][1], kinds[n].head_dim, kinds[n].head_dim, kinds[n].window) for n in arch.layers
        )
        self.attentions = [
            make_attention(AttentionShape(*counts, kind.head_dim, 1.0), build)
            for counts, kind in zip(here, kinds, strict=True)
        ]
        self.rotaries = [
            RotaryTable(build, kind.rotary_dim, kind.theta, arch.max_positions, span=kind.head_dim) for kind in kinds
        ]
        # rounded as the embeddings are, which were trained so
        self.embedding_scale = float(torch.tensor(arch.hidden**0.5, dtype=build.dtype))
        self.embedding = Embedding(build, arch.vocab_size, arch.hidden)
        self.ids = self.embedding.ids
        self.conditioning = SelfConditioning(build, arch)
        self.layers = nn.ModuleList(Layer(build, arch, index) for index in range(len(arch.layers)))
        self.scales = build.parameter(len(arch.layers), 2)  # of committed rows, of open ones
        self.norm = RMSNorm(build, arch.hidden, arch.eps)
        self.head = CappedHead(self.embedding.weight, build.kernels, arch.cap)

    @torch.inference_mode()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens) * self.embedding_scale

    @torch.inference_mode()
    def soften(self, probs: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
        """[n, ids that are here] -> [n, hidden]: the mean embedding under each distribution.

        See ``kernels.weighted_embedding``.
        """
        return self.embedding.mean(probs, divisor) * self.embedding_scale

    @torch.inference_mode()
    def forward(self, x: torch.Tensor, batch: ForwardBatch, pool: KVPool) -> torch.Tensor:
        if self.lora is not None:
            self.lora.begin(batch)
        contexts = [
            KindContext(batch, rotary.cover(batch.reach), attention.plan(batch, kind.window))
            for kind, rotary, attention in zip(self.arch.kinds, self.rotaries, self.attentions, strict=True)
        ]
        x = torch.where(batch.open[:, None], self.conditioning(x, batch.signal), x)
        scales = self.scales.tensor[:, batch.open.long(), None]
        layers = cast("list[Layer]", list(self.layers))
        following = [*(layer.input_norm for layer in layers[1:]), self.norm]
        normed = layers[0].input_norm(x)
        for layer, scale, norm in zip(layers, scales, following, strict=True):
            normed, x = layer(normed, x, contexts, pool, scale, norm)
        return normed

    @torch.inference_mode()
    def finish(self, left: torch.Tensor) -> torch.Tensor:
        return left  # a step that denoises wants the logits of nearly all its rows
