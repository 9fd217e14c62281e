"""Layers of DiffusionGemma (docs/models/architecture-notes.md#diffusiongemma-layers).

One stack of layers commits canvases causally and denoises open canvases with self-conditioning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from runtime.kernels.activation import Activation
from runtime.kernels.common import wide
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.fused_moe.moe_sum import TopKOutputs
from runtime.kernels.layernorm import NormOutputs, SandwichNormOps
from runtime.kernels.moe_router import RoutingConfig
from runtime.layers.attention import AttentionShape, BatchAttention, make_attention
from runtime.layers.embedding import Embedding
from runtime.layers.kv_pool import KVPool, KVShape
from runtime.layers.layer_factory import ForwardCall, LayerFactory
from runtime.layers.linear import Linear, attention_shards
from runtime.layers.lm_head import SoftcapLMHead
from runtime.layers.mlp import GatedMLP
from runtime.layers.moe import Router, make_experts
from runtime.layers.norm import RMSNorm
from runtime.layers.rotary import RotaryTable
from runtime.models.diffusion_gemma_config import DiffusionGemmaConfig, Kind

GELU: Activation = "gelu_tanh"


@dataclass(frozen=True)
class KindContext:
    """Inputs of the layers of one kind, per forward."""

    batch: ForwardBatch
    rotary: torch.Tensor  # ``RotaryTable.cover``
    attention: BatchAttention


class SelfAttention(nn.Module):
    """Attention with norms of queries, keys and values and unscaled scores. Layers without a window derive V from K."""

    __call__: ForwardCall[[torch.Tensor, KindContext, KVPool, int], torch.Tensor]

    def __init__(self, factory: LayerFactory, config: DiffusionGemmaConfig, kind: Kind) -> None:
        super().__init__()
        self.kind, self.eps = kind, config.eps
        self.kernels = factory.kernels
        self.heads, self.kv_heads, rows, columns = attention_shards(
            factory, config.heads, kind.kv_heads, kind.head_dim, values=kind.window is not None
        )
        stored = config.heads + (1 if kind.window is None else 2) * kind.kv_heads
        self.qkv_proj = Linear(factory, config.hidden, stored * kind.head_dim, bias=False, outputs_shard=rows)
        self.q_weight = factory.parameter(kind.head_dim)
        self.k_weight = factory.parameter(kind.head_dim)
        self.o_proj = Linear(factory, config.heads * kind.head_dim, config.hidden, bias=False, inputs_shard=columns)

    def forward(self, x: torch.Tensor, context: KindContext, pool: KVPool, layer: int) -> torch.Tensor:
        kind, batch = self.kind, context.batch
        kv = pool.layer(layer)
        q = self.kernels.qk_norm_rope_and_cache(
            self.qkv_proj(x), batch.positions, context.rotary, self.q_weight.tensor, self.k_weight.tensor, self.heads,
            self.kv_heads, self.eps, slots=batch.slots, k_cache=kv.k, v_cache=kv.v, pair_stride=kind.head_dim // 2,
            v_norm=True, v_from_k=kind.window is None,
        )  # fmt: skip
        return self.o_proj(context.attention.run(q, kv).flatten(1))


class Experts(nn.Module):
    """Router and experts, with separate norms. The router takes rows under a norm without weights (`router_input`), or
    unnormed rows with the norm's factors; the norm's scale is folded into the router's weight.
    """

    __call__: ForwardCall[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

    def __init__(self, factory: LayerFactory, config: DiffusionGemmaConfig) -> None:
        super().__init__()
        routing = RoutingConfig(config.top_k, 1, 1, True, 1.0, "softmax")
        self.eps = config.eps
        self.router = Router(factory, config.hidden, config.experts, routing, bias=False)
        self.expert_scale = factory.parameter(config.experts, dtype=wide(factory.dtype))
        self.pre_feedforward_layernorm_2 = RMSNorm(factory, config.hidden, config.eps)
        held, self.expert_shard = make_experts(factory, config.experts, config.hidden, config.expert_width)
        self.gate_up_proj, self.down_proj = held
        self.kernels, self.group = factory.kernels, factory.group

    def router_input(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x.to(wide(x.dtype)), None, self.eps)

    def forward(self, router_input: torch.Tensor, normed: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
        ids, weights = self.router(router_input, None, factor)
        weights = weights * self.expert_scale.tensor[ids]
        if self.expert_shard is not None:
            ids = self.expert_shard.local_ids(ids)
        gate_up, down = self.gate_up_proj.kernel_arg, self.down_proj.kernel_arg
        out = self.group.output_buffer(normed.shape, normed.dtype)
        return self.group.all_reduce_out(self.kernels.moe(normed, ids, weights, gate_up, down, None, GELU, out))

    def choices(self, norms: NormOutputs, sandwich_norms: SandwichNormOps) -> torch.Tensor | TopKOutputs:
        """Returns the outputs of each row's experts, to be summed by `sandwich_norms`; with tensor parallelism their
        sum.
        """
        if not self.group.is_single:
            return self(norms.total, norms.experts, norms.factor)
        ids, weights = self.router(norms.total, None, norms.factor)
        pairs = sandwich_norms.fused_experts(
            norms.experts, ids, self.gate_up_proj.kernel_arg, self.down_proj.kernel_arg, GELU
        )
        return TopKOutputs(pairs, ids, weights, self.expert_scale.tensor)


class DecoderLayer(nn.Module):
    """Attention, then a dense MLP in parallel with experts, each with norms before and after. The input norm is
    applied by the previous layer.
    """

    __call__: ForwardCall[
        [torch.Tensor, torch.Tensor, list[KindContext], KVPool, torch.Tensor, RMSNorm],
        tuple[torch.Tensor, torch.Tensor],
    ]

    def __init__(self, factory: LayerFactory, config: DiffusionGemmaConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.kind = config.layers[index]

        def norm() -> RMSNorm:
            return RMSNorm(factory, config.hidden, config.eps)

        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.self_attn = SelfAttention(factory, config, config.kinds[self.kind])
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm_1 = norm(), norm()
        self.mlp = GatedMLP(factory, config.hidden, config.width, GELU)
        self.experts, self.post_feedforward_layernorm_2 = Experts(factory, config), norm()
        self.post_feedforward_layernorm = norm()
        self.eps = config.eps
        self.kernels = factory.kernels

    def forward(
        self, normed: torch.Tensor, x: torch.Tensor, contexts: list[KindContext], pool: KVPool, scale: torch.Tensor,
        following: RMSNorm,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Returns (following(x), x), both [rows, hidden]. `scale` [rows, 1] is a factor of each row's output."""
        attn_output = self.self_attn(normed, contexts[self.kind], pool, self.index)
        sandwich_norms = self.kernels.sandwich_norms
        if sandwich_norms is None:
            x = x + self.post_attention_layernorm(attn_output)
            dense = self.mlp(self.pre_feedforward_layernorm(x))
            chosen = self.experts(self.experts.router_input(x), self.experts.pre_feedforward_layernorm_2(x), None)
            x = (
                x
                + self.post_feedforward_layernorm(
                    self.post_feedforward_layernorm_1(dense) + self.post_feedforward_layernorm_2(chosen)
                )
            ) * scale
            return following(x), x
        norms = sandwich_norms.pre_mlp_norms(
            attn_output,
            x,
            _norm_weight(self.post_attention_layernorm),
            _norm_weight(self.pre_feedforward_layernorm),
            _norm_weight(self.experts.pre_feedforward_layernorm_2),
            self.eps,
        )
        after = tuple(
            _norm_weight(norm)
            for norm in (
                self.post_feedforward_layernorm_1,
                self.post_feedforward_layernorm_2,
                self.post_feedforward_layernorm,
                following,
            )
        )
        dense, choices = self.mlp(norms.dense), self.experts.choices(norms, sandwich_norms)
        return sandwich_norms.post_mlp_norms(dense, choices, norms.total, scale, after, self.eps)


def _norm_weight(norm: RMSNorm) -> torch.Tensor:
    assert norm.weight is not None
    return norm.weight.tensor


class SelfConditioning(nn.Module):
    """Adds the self-conditioning of the last step to the embeddings of editable rows."""

    __call__: ForwardCall[[torch.Tensor, torch.Tensor | None], torch.Tensor]

    def __init__(self, factory: LayerFactory, config: DiffusionGemmaConfig) -> None:
        super().__init__()
        self.pre_norm = RMSNorm(factory, config.hidden, config.eps)
        self.mlp = GatedMLP(factory, config.hidden, config.width, GELU)
        self.post_norm = RMSNorm(factory, config.hidden, config.eps, weighted=False)

    def forward(self, x: torch.Tensor, signal: torch.Tensor | None) -> torch.Tensor:
        """[rows, hidden]; a row whose signal is 0, as all are without one, is in its first step."""
        return self.post_norm(x if signal is None else x + self.mlp(self.pre_norm(signal)))


class DiffusionGemma(nn.Module):
    """See ``runtime.models.base.Model``. Created uninitialized.

    Rows that are not editable are committed: they skip the self-conditioning and use the first of each layer's two
    scales. `compute_self_conditioning` maps an editable row's distribution to the `signal` of its next step.
    """

    def __init__(self, config: DiffusionGemmaConfig, factory: LayerFactory) -> None:
        super().__init__()
        self.config = config
        self.lora = factory.lora
        self.self_conditioning_size = config.hidden
        kinds = config.kinds
        expert_shard = [factory.local_heads(config.heads, kind.kv_heads, kind.head_dim).counts for kind in kinds]
        self.kv_shapes = tuple(
            KVShape(expert_shard[n][1], kinds[n].head_dim, kinds[n].head_dim, kinds[n].window) for n in config.layers
        )
        self.attentions = [
            make_attention(AttentionShape(*counts, kind.head_dim, 1.0), factory)
            for counts, kind in zip(expert_shard, kinds, strict=True)
        ]
        self.rotaries = [
            RotaryTable(factory, kind.rotary_dim, kind.theta, config.max_positions, span=kind.head_dim)
            for kind in kinds
        ]
        # rounded to the model's dtype, as in training
        self.embed_scale = float(torch.tensor(config.hidden**0.5, dtype=factory.dtype))
        self.embed_tokens = Embedding(factory, config.vocab_size, config.hidden)
        self.ids = self.embed_tokens.ids
        self.self_conditioning = SelfConditioning(factory, config)
        self.layers = nn.ModuleList(DecoderLayer(factory, config, index) for index in range(len(config.layers)))
        self.scales = factory.parameter(len(config.layers), 2)  # of committed and of editable rows
        self.norm = RMSNorm(factory, config.hidden, config.eps)
        self.lm_head = SoftcapLMHead(self.embed_tokens.weight, factory.kernels, config.cap)

    @torch.inference_mode()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embed_tokens(tokens) * self.embed_scale

    @torch.inference_mode()
    def compute_self_conditioning(self, probs: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
        """[n, local ids] -> [n, hidden]: the mean embedding under each distribution. See
        ``kernels.weighted_embedding``.
        """
        return self.embed_tokens.soft_embedding(probs, divisor) * self.embed_scale

    @torch.inference_mode()
    def forward(self, x: torch.Tensor, batch: ForwardBatch, pool: KVPool) -> torch.Tensor:
        if self.lora is not None:
            self.lora.set_batch(batch)
        contexts = [
            KindContext(batch, rotary.cover(batch.max_seq_len), attention.prepare_metadata(batch, kind.window))
            for kind, rotary, attention in zip(self.config.kinds, self.rotaries, self.attentions, strict=True)
        ]
        x = torch.where(batch.is_editable[:, None], self.self_conditioning(x, batch.self_conditioning), x)
        scales = self.scales.tensor[:, batch.is_editable.long(), None]
        layers = cast("list[DecoderLayer]", list(self.layers))
        following = [*(layer.input_layernorm for layer in layers[1:]), self.norm]
        normed = layers[0].input_layernorm(x)
        for layer, scale, norm in zip(layers, scales, following, strict=True):
            normed, x = layer(normed, x, contexts, pool, scale, norm)
        return normed

    @torch.inference_mode()
    def final_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states  # a denoising step needs the logits of nearly all rows
