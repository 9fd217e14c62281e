"""The decoder that most families share: pre-norm layers of attention and a gated MLP or MoE.

A family's file defines how its checkpoints are recognized, how config.json maps to `DecoderConfig`, and how checkpoint
tensors map to the parameters here. `llama_weights` has the tensor names of Llama and Qwen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from runtime.kernels.common import wide
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.moe_router import RoutingConfig
from runtime.kernels.rotary_and_cache import QKNormRopeConfig
from runtime.layers.attention import AttentionShape, BatchAttention, make_attention
from runtime.layers.embedding import Embedding
from runtime.layers.kv_pool import KVPool, KVShape
from runtime.layers.layer_factory import ForwardCall, LayerFactory
from runtime.layers.linear import Linear, attention_shards
from runtime.layers.lm_head import LMHead
from runtime.layers.mlp import GatedMLP
from runtime.layers.moe import MoE
from runtime.layers.norm import RMSNorm
from runtime.layers.rotary import RotaryTable, Yarn
from runtime.models.base import Fused, Model, ModelFamily, ModelInfo, WeightMap, WeightTarget
from runtime.parameters.sharding import Index
from runtime.parameters.weight import tensor_of


@dataclass(frozen=True)
class MoEConfig:
    """Experts of the layers that have some."""

    layers: frozenset[int]
    experts: int
    width: int  # intermediate size of one expert
    shared_width: int  # total intermediate size of the shared experts; 0: none
    routing: RoutingConfig
    router_bias: bool


@dataclass(frozen=True)
class QueryLengthScaling:
    """Queries at position p are multiplied by 1 + beta * ln(1 + p // original_positions)."""

    beta: float
    original_positions: int

    def of(self, positions: torch.Tensor, dtype: torch.dtype, *, per_row: bool = False) -> torch.Tensor:
        """Returns the factors [rows, 1, 1] of `dtype` for queries [rows, heads, head_dim] at int64 `positions` [rows].

        `per_row`: compute each row separately, because on a CPU the last bit of a logarithm depends on its index in the
        tensor.
        """
        if per_row:
            return torch.cat([self.of(position, dtype) for position in torch.split(positions, 1)])
        return (1 + self.beta * torch.log1p((positions // self.original_positions).double())).to(dtype)[:, None, None]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of a model."""

    theta: float
    dim: int  # number of rotated dimensions, the first of each head
    yarn: Yarn | None = None
    query_scaling: QueryLengthScaling | None = None


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(ModelInfo):
    """Architecture of a decoder, read from config.json."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeConfig
    eps: float
    qk_norm: bool  # RMSNorm of each query and key head before the rotary embedding
    qkv_bias: bool
    out_bias: bool
    width: int  # intermediate size of dense layers; 0: all layers have experts
    mixture: MoEConfig | None
    tied: bool  # tied word embeddings
    padding: int = 0  # rows of the embedding and lm_head behind the vocabulary
    norm_head: bool = False  # columns of the lm_head are normalized to length 1 at load
    clip: float | None = None  # clips queries and keys before the rotary embedding, and values


@dataclass(frozen=True)
class ForwardContext:
    """Inputs of all layers, per forward."""

    batch: ForwardBatch
    pool: KVPool
    rotary: torch.Tensor  # ``RotaryTable.cover``
    attention: BatchAttention
    query_scaling: torch.Tensor | None  # ``QueryLengthScaling.of``
    first: torch.Tensor | None  # int64 [rows]: the first row of each row's block, with expert pools


def first_rows(positions: torch.Tensor, slots: torch.Tensor, block: int) -> torch.Tensor:
    """Returns the first row of each row's block, int64 [rows], with blocks of `block` absolute positions.

    The rows of a request are consecutive. A row with slot -1 is a block of its own.
    """
    follows = (positions[1:] == positions[:-1] + 1) & (positions[1:] % block != 0) & (slots[1:] >= 0)
    rows = torch.arange(len(positions), device=positions.device)
    return torch.cat([rows[:1], torch.where(follows, 0, rows[1:])]).cummax(0).values


class SelfAttention(nn.Module):
    """Fused QKV projection, norm and rotary embedding, paged attention, output projection."""

    __call__: ForwardCall[[torch.Tensor, ForwardContext, int], torch.Tensor]

    def __init__(self, factory: LayerFactory, config: DecoderConfig) -> None:
        super().__init__()
        self.kernels = factory.kernels
        heads, kv_heads, rows, columns = attention_shards(factory, config.heads, config.kv_heads, config.head_dim)
        self.qkv_config = QKNormRopeConfig(heads, kv_heads, config.eps, config.clip)
        self.qkv_proj = Linear(
            factory, config.hidden, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=config.qkv_bias,
            outputs_shard=rows,
        )  # fmt: skip
        self.q_norm = RMSNorm(factory, config.head_dim, config.eps) if config.qk_norm else None
        self.k_norm = RMSNorm(factory, config.head_dim, config.eps) if config.qk_norm else None
        self.o_proj = Linear(
            factory, config.heads * config.head_dim, config.hidden, bias=config.out_bias, inputs_shard=columns
        )

    def forward(self, x: torch.Tensor, context: ForwardContext, layer: int) -> torch.Tensor:
        return self.o_proj(self._attend(x, context, layer))

    def forward_add(self, x: torch.Tensor, context: ForwardContext, layer: int, residual: torch.Tensor) -> torch.Tensor:
        """Returns ``residual + self(x)``."""
        return self.o_proj.forward_add(self._attend(x, context, layer), residual)

    def forward_add_norm(
        self, x: torch.Tensor, context: ForwardContext, layer: int, residual: torch.Tensor, norm: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ``norm.add(self(x), residual)``, fused if possible."""
        return self.o_proj.forward_add_norm(self._attend(x, context, layer), residual, norm)

    def _attend(self, x: torch.Tensor, context: ForwardContext, layer: int) -> torch.Tensor:
        """Returns the attention output before o_proj, [rows, heads * head_dim]."""
        kv = context.pool.layer(layer)
        q = self.kernels.qk_norm_rope_and_cache(
            self.qkv_proj(x), context.batch.positions, context.rotary,
            None if self.q_norm is None else tensor_of(self.q_norm.weight),
            None if self.k_norm is None else tensor_of(self.k_norm.weight),
            self.qkv_config, context.batch.slots, kv.k, kv.v,
        )  # fmt: skip
        if context.query_scaling is not None:
            q = q * context.query_scaling
        return context.attention.run(q, kv).flatten(1)


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP.

    It returns the residual stream and the rows under the input norm of the next layer. The last layer calls its halves,
    `forward_attention` and `forward_mlp`.
    """

    __call__: ForwardCall[[torch.Tensor, torch.Tensor, ForwardContext, RMSNorm], tuple[torch.Tensor, torch.Tensor]]

    def __init__(self, factory: LayerFactory, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.input_layernorm = RMSNorm(factory, config.hidden, config.eps)
        self.self_attn = SelfAttention(factory, config)
        self.post_attention_layernorm = RMSNorm(factory, config.hidden, config.eps)
        mixture = config.mixture
        if mixture is not None and index in mixture.layers:
            self.mlp: MoE | GatedMLP = MoE(
                factory, config.hidden, mixture.width, mixture.experts, mixture.shared_width, mixture.routing,
                router_bias=mixture.router_bias,
            )  # fmt: skip
        else:
            self.mlp = GatedMLP(factory, config.hidden, config.width)

    def forward(
        self, normed: torch.Tensor, residual: torch.Tensor, context: ForwardContext, following: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, residual = self.self_attn.forward_add_norm(
            normed, context, self.index, residual, self.post_attention_layernorm
        )
        return self._mlp_add_norm(normed, residual, context.first, following)

    def forward_attention(self, normed: torch.Tensor, residual: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Returns the residual stream after attention."""
        return self.self_attn.forward_add(normed, context, self.index, residual)

    def forward_mlp(self, residual: torch.Tensor, following: RMSNorm) -> torch.Tensor:
        """Applies the MLP and `following` to some rows of the result of `forward_attention`."""
        return self._mlp_add_norm(self.post_attention_layernorm(residual), residual, None, following)[0]

    def _mlp_add_norm(
        self, normed: torch.Tensor, residual: torch.Tensor, first: torch.Tensor | None, following: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(self.mlp, MoE):
            return self.mlp.forward_add_norm(normed, first, residual, following)
        return self.mlp.forward_add_norm(normed, residual, following)


class Decoder(nn.Module):
    """See ``runtime.models.base.Model``. Created uninitialized."""

    def __init__(self, config: DecoderConfig, factory: LayerFactory) -> None:
        super().__init__()
        self.config = config
        self.per_row = factory.kernels.batch_invariant and factory.device.type == "cpu"
        self.lora = factory.lora
        # rows that share an expert pool
        self.routing_block = 0 if config.mixture is None else config.mixture.routing.block
        # compute the last layer's MLP for sampled rows only; not with expert pools or LoRA
        self.split_last_layer = not self.routing_block and self.lora is None
        heads, kv_heads = factory.local_heads(config.heads, config.kv_heads, config.head_dim).counts
        self.kv_shapes = (KVShape(kv_heads, config.head_dim, config.head_dim),) * config.layers
        shape = AttentionShape(heads, kv_heads, config.head_dim, config.head_dim**-0.5)
        self.attention = make_attention(shape, factory)
        rope = config.rope
        self.rotary = RotaryTable(factory, rope.dim, rope.theta, config.max_positions, rope.yarn)
        self.embed_tokens = Embedding(factory, config.vocab_size + config.padding, config.hidden)
        self.layers = nn.ModuleList(DecoderLayer(factory, config, index) for index in range(config.layers))
        self.norm = RMSNorm(factory, config.hidden, config.eps)
        rows = config.vocab_size + config.padding
        self.lm_head_weight = None if config.tied else factory.vocab_weight(rows, config.hidden)
        self.vocab_shard = self.embed_tokens.vocab_shard
        self.lm_head = LMHead(self.lm_head_weight or self.embed_tokens.weight, factory.kernels, self.vocab_shard)

    @torch.inference_mode()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embed_tokens(tokens)

    @torch.inference_mode()
    def forward(self, x: torch.Tensor, batch: ForwardBatch, pool: KVPool) -> torch.Tensor:
        if self.lora is not None:
            self.lora.set_batch(batch)
        table, attention = self.rotary.cover(batch.max_seq_len), self.attention.prepare_metadata(batch)
        query_scaling = self.config.rope.query_scaling
        query_scale = (
            None if query_scaling is None else query_scaling.of(batch.positions, x.dtype, per_row=self.per_row)
        )
        first = first_rows(batch.positions, batch.slots, self.routing_block) if self.routing_block else None
        context = ForwardContext(batch, pool, table, attention, query_scale, first)
        layers = cast("list[DecoderLayer]", list(self.layers))
        following = [*(layer.input_layernorm for layer in layers[1:]), self.norm]
        normed = layers[0].input_layernorm(x)
        full_layers = layers[:-1] if self.split_last_layer else layers
        for layer, norm in zip(full_layers, following, strict=False):
            normed, x = layer(normed, x, context, norm)
        return layers[-1].forward_attention(normed, x, context) if self.split_last_layer else normed

    @torch.inference_mode()
    def final_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if not self.split_last_layer:
            return hidden_states
        return cast("DecoderLayer", self.layers[-1]).forward_mlp(hidden_states, self.norm)


@dataclass(frozen=True)
class TensorNames:
    """Checkpoint names of a decoder's tensors, without `.weight` or `.bias`; the defaults are those of Llama.

    `layer` has {} for the layer number and is the prefix of the names that follow.
    """

    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{}."
    input_norm: str = "input_layernorm"
    post_norm: str = "post_attention_layernorm"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    router_bias: str = "mlp.gate.expert_bias"
    experts: str = "mlp.experts"
    shared: str = "mlp.shared_experts"


LLAMA = TensorNames()


def llama_weights(config: DecoderConfig, names: TensorNames = LLAMA) -> WeightMap:
    """Returns the weight map of Llama-like checkpoints, with separate tensors for queries, keys and values."""
    return decoder_weights(config, names, partial(_attention_targets, config, names))


def decoder_weights(
    config: DecoderConfig,
    names: TensorNames,
    attention: Callable[[str, str], dict[str, WeightTarget]],
    rename: Callable[[str], str] = lambda name: name,
) -> WeightMap:
    """Returns the weight map of a decoder.

    `attention` maps (checkpoint prefix, parameter prefix) to the targets of a layer's attention. A checkpoint may also
    hold rotary tables, and an lm_head although it is tied; both are skipped.
    """
    slots = {
        f"{names.embedding}.weight": WeightTarget("embed_tokens.weight"),
        f"{names.norm}.weight": WeightTarget("norm.weight"),
    }
    head = f"{names.head}.weight"
    if not config.tied:
        slots[head] = WeightTarget("lm_head_weight", transform=_unit_columns if config.norm_head else None)
    fused: dict[str, Fused] = {}
    for index in range(config.layers):
        checkpoint_prefix, prefix = names.layer.format(index), f"layers.{index}."
        slots[f"{checkpoint_prefix}{names.input_norm}.weight"] = WeightTarget(f"{prefix}input_layernorm.weight")
        slots[f"{checkpoint_prefix}{names.post_norm}.weight"] = WeightTarget(f"{prefix}post_attention_layernorm.weight")
        slots |= attention(checkpoint_prefix, f"{prefix}self_attn.")
        if config.mixture is None or index not in config.mixture.layers:
            slots |= mlp_targets(checkpoint_prefix, f"{prefix}mlp.", config.width, (names.gate, names.up, names.down))
            continue
        slots |= _moe_targets(config.mixture, names, checkpoint_prefix, f"{prefix}mlp.")
        mixture, experts = config.mixture, f"{checkpoint_prefix}{names.experts}."
        fused |= fused_expert_targets(mixture.experts, mixture.width, experts, f"{prefix}mlp.")
    return WeightMap(
        slots, rename, lambda name: name.endswith("rotary_emb.inv_freq") or (config.tied and name == head), fused
    )


def _attention_targets(
    config: DecoderConfig, names: TensorNames, checkpoint_prefix: str, prefix: str
) -> dict[str, WeightTarget]:
    queries, keys = config.heads * config.head_dim, (config.heads + config.kv_heads) * config.head_dim
    values = keys + config.kv_heads * config.head_dim
    slots = {f"{checkpoint_prefix}{names.out}.weight": WeightTarget(f"{prefix}o_proj.weight")}
    for name, rows in ((names.q, slice(0, queries)), (names.k, slice(queries, keys)), (names.v, slice(keys, values))):
        slots[f"{checkpoint_prefix}{name}.weight"] = WeightTarget(f"{prefix}qkv_proj.weight", (rows,))
        if config.qkv_bias:
            slots[f"{checkpoint_prefix}{name}.bias"] = WeightTarget(f"{prefix}qkv_proj.bias", (rows,))
    if config.out_bias:
        slots[f"{checkpoint_prefix}{names.out}.bias"] = WeightTarget(f"{prefix}o_proj.bias")
    if config.qk_norm:
        slots[f"{checkpoint_prefix}{names.q_norm}.weight"] = WeightTarget(f"{prefix}q_norm.weight")
        slots[f"{checkpoint_prefix}{names.k_norm}.weight"] = WeightTarget(f"{prefix}k_norm.weight")
    return slots


def _moe_targets(
    mixture: MoEConfig, names: TensorNames, checkpoint_prefix: str, prefix: str
) -> dict[str, WeightTarget]:
    """Returns the targets of the router, of each expert, and of the shared experts."""
    slots = {f"{checkpoint_prefix}{names.router}.weight": WeightTarget(f"{prefix}gate.weight")}
    if mixture.router_bias:
        slots[f"{checkpoint_prefix}{names.router_bias}"] = WeightTarget(f"{prefix}gate.bias")
    slots |= expert_targets(mixture.experts, mixture.width, f"{checkpoint_prefix}{names.experts}.", prefix)
    if mixture.shared_width:
        shared = f"{checkpoint_prefix}{names.shared}."
        slots |= mlp_targets(shared, f"{prefix}shared_experts.", mixture.shared_width)
    return slots


def expert_targets(experts: int, width: int, checkpoint_prefix: str, prefix: str) -> dict[str, WeightTarget]:
    """Returns the targets of gate, up and down of each expert of a layer."""
    slots: dict[str, WeightTarget] = {}
    for expert in range(experts):
        gate, up, down = (f"{checkpoint_prefix}{expert}.{part}_proj.weight" for part in ("gate", "up", "down"))
        slots[gate] = WeightTarget(f"{prefix}gate_up_proj", (expert, slice(0, width)))
        slots[up] = WeightTarget(f"{prefix}gate_up_proj", (expert, slice(width, 2 * width)))
        slots[down] = WeightTarget(f"{prefix}down_proj", (expert,))
    return slots


def fused_expert_targets(experts: int, width: int, checkpoint_prefix: str, prefix: str) -> dict[str, Fused]:
    """Returns the targets of experts that a checkpoint stores as stacked tensors [experts, out, in], without `.weight`.

    A checkpoint has three of these tensors, or two: gate_up_proj, with the gate rows before the up rows, and down_proj.
    """
    every = slice(None)
    slots = {
        "gate_up_proj": WeightTarget(f"{prefix}gate_up_proj"),
        "gate_proj": WeightTarget(f"{prefix}gate_up_proj", (every, slice(0, width))),
        "up_proj": WeightTarget(f"{prefix}gate_up_proj", (every, slice(width, 2 * width))),
        "down_proj": WeightTarget(f"{prefix}down_proj"),
    }
    halves: dict[str, dict[str, Index]] = {
        "gate_up_proj": {"gate_proj": (slice(0, width),), "up_proj": (slice(width, 2 * width),)}
    }
    return {
        f"{checkpoint_prefix}{name}": Fused(
            slot,
            {
                f"{checkpoint_prefix}{expert}.{part}.weight": (expert, *rows)
                for part, rows in halves.get(name, {name: ()}).items()
                for expert in range(experts)
            },
        )
        for name, slot in slots.items()
    }


def mlp_targets(
    checkpoint_prefix: str, prefix: str, width: int, names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
) -> dict[str, WeightTarget]:
    """Returns the targets of gate, up and down (`names`) of an MLP without biases. Gate and up are one parameter."""
    gate, up, down = (f"{checkpoint_prefix}{name}.weight" for name in names)
    return {
        gate: WeightTarget(f"{prefix}gate_up_proj.weight", (slice(0, width),)),
        up: WeightTarget(f"{prefix}gate_up_proj.weight", (slice(width, 2 * width),)),
        down: WeightTarget(f"{prefix}down_proj.weight"),
    }


def _unit_columns(head: torch.Tensor) -> torch.Tensor:
    """Returns `head` [vocab, hidden] with every column normalized to length 1."""
    return F.normalize(head.to(wide(head.dtype)), dim=0, eps=1e-7)


@dataclass(frozen=True, kw_only=True)
class DecoderFamily(ModelFamily[DecoderConfig]):
    """A family over `Decoder`, by default with the tensor names of Llama."""

    facts: Callable[[DecoderConfig], ModelInfo] = lambda config: config  # a `DecoderConfig` is a `ModelInfo`
    make: Callable[[DecoderConfig, LayerFactory], Model] = Decoder
    weights: Callable[[DecoderConfig], WeightMap] = llama_weights
