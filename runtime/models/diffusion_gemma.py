"""The family DiffusionGemma (docs/models/recipes.md#diffusiongemma).

docs/models/architecture-notes.md#diffusiongemma-layers describes the architecture. Encoder and decoder have all tensors
in common but a scale per layer. A file may hold the common ones once, under the name of either, or twice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.kernels.activation import Activation
from runtime.kernels.common import wide
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.fused_moe.fused_moe import TopKOutputs
from runtime.kernels.layernorm import NormOutputs, SandwichNormOps
from runtime.kernels.moe_router import RoutingConfig
from runtime.kernels.rotary_and_cache import QKNormRopeConfig
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
from runtime.models.base import Fused, ModelFamily, ModelInfo, WeightMap, WeightTarget, register_family
from runtime.models.config_reader import ConfigReader
from runtime.models.decoder import expert_targets, fused_expert_targets, mlp_targets
from runtime.parameters.sharding import local_expert_ids
from runtime.request.field_spec import Value

TEXT = "config.json's text_config"
SLIDING, FULL = "sliding_attention", "full_attention"
PATTERN = 6  # without layer_types every sixth layer is a full one

# Fields that change the computation, with the supported values.
SUPPORTED: dict[str, tuple[Any, ...]] = {"tie_word_embeddings": (True,)}
TEXT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "tie_word_embeddings": (True,),
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "attention_k_eq_v": (True,),
    "enable_moe_block": (True,),
    "use_bidirectional_attention": (None, "vision"),  # "vision" concerns images, which are not supported
    "hidden_size_per_layer_input": (0, None),
    "num_kv_shared_layers": (0, None),
    "use_double_wide_mlp": (False,),
}
ROPE: dict[str, dict[str, Any]] = {  # for configs without rope_parameters
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


DECODER, ENCODER = "model.decoder.", "model.encoder.language_model."
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
EMBEDDING = f"{DECODER}embed_tokens.weight"
LAYER = {  # tensors of a layer that are complete parameters
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attn.q_norm.weight": "self_attn.q_weight",
    "self_attn.k_norm.weight": "self_attn.k_weight",
    "self_attn.o_proj.weight": "self_attn.o_proj.weight",
    "post_attention_layernorm.weight": "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight": "pre_feedforward_layernorm.weight",
    "post_feedforward_layernorm_1.weight": "post_feedforward_layernorm_1.weight",
    "router.per_expert_scale": "experts.expert_scale",
    "pre_feedforward_layernorm_2.weight": "experts.pre_feedforward_layernorm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_feedforward_layernorm_2.weight",
    "post_feedforward_layernorm.weight": "post_feedforward_layernorm.weight",
}
GELU: Activation = "gelu_tanh"


@dataclass(frozen=True)
class Kind:
    """Properties of the layers of one kind. Layers without a window derive V from K."""

    kv_heads: int
    head_dim: int
    window: int | None
    theta: float
    rotary_dim: int  # rotated dimensions: half from the start of a head, half from its middle


@dataclass(frozen=True, kw_only=True)
class DiffusionGemmaConfig(ModelInfo):
    """Architecture of DiffusionGemma, read from config.json. A block is a canvas."""

    hidden: int
    heads: int
    width: int  # intermediate size of the dense MLP and of the self-conditioning
    experts: int
    top_k: int
    expert_width: int
    kinds: tuple[Kind, ...]
    layers: tuple[int, ...]  # the kind of each layer
    eps: float
    cap: float  # soft cap of the logits


def parse(config: Mapping[str, Any]) -> DiffusionGemmaConfig:
    """Reads config.json. Raises ConfigError that names the field if one is missing, wrong, inconsistent or not
    supported.
    """
    fields = ConfigReader(config)
    fields.reject_unsupported(SUPPORTED)
    inner = _object(config, "text_config", "config.json")
    if not inner:
        raise ConfigError("config.json lacks text_config, which this model family needs")
    text = ConfigReader(inner, TEXT)
    text.reject_unsupported(TEXT_SUPPORTED)
    names = _layer_types(text)
    experts, top_k = text.experts("num_experts"), text.integer("top_k_experts")
    if top_k > experts:
        raise ConfigError(f"{TEXT}: top_k_experts {top_k} is more than num_experts {experts}")
    used = [name for name in (SLIDING, FULL) if name in names]
    heads = text.integer("num_attention_heads")
    shapes = _shapes(text, inner, names)
    ropes = _object(inner, "rope_parameters", TEXT) or ROPE
    parsed = DiffusionGemmaConfig(
        vocab_size=text.integer("vocab_size", 262_144, low=2),
        hidden=text.integer("hidden_size"),
        heads=heads,
        width=text.integer("intermediate_size"),
        experts=experts,
        top_k=top_k,
        expert_width=text.integer("moe_intermediate_size"),
        kinds=tuple(_kind(name, shapes, heads, ropes, text) for name in used),
        layers=tuple(used.index(name) for name in names),
        max_positions=text.positions("max_position_embeddings", 131_072),
        eps=text.number("rms_norm_eps", 1e-6),
        cap=text.number("final_logit_softcapping", 30.0),
        block_size=fields.integer("canvas_length", 256),
        mask_id=None,
        eos_ids=tuple(sorted({*fields.ids("eos_token_id"), *text.ids("eos_token_id")})),
        bos_id=text.id("bos_token_id"),
    )
    fields.warn_unread("diffusion_gemma", frozenset({"text_config"}))
    text.warn_unread("diffusion_gemma", frozenset({"num_global_key_value_heads", "global_head_dim", "head_dim"}))
    return parsed


def _object(config: Mapping[str, Any], name: str, file: str) -> Mapping[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{file}: {name} must be an object, not {value!r}")
    return value


def _layer_types(text: ConfigReader) -> tuple[str, ...]:
    layers = text.layers("num_hidden_layers")
    names = text.strings("layer_types") or tuple(FULL if (n + 1) % PATTERN == 0 else SLIDING for n in range(layers))
    if len(names) != layers:
        raise ConfigError(f"{TEXT}: layer_types has {len(names)} entries, but num_hidden_layers is {layers}")
    for name in names:
        if name not in (SLIDING, FULL):
            raise ConfigError(f"{TEXT}: layer_types names {name!r}, but only {SLIDING!r} and {FULL!r} are supported")
    if names[-1] != FULL:
        raise ConfigError(f"{TEXT}: layer_types ends with {names[-1]!r}, but the last layer of this family is {FULL!r}")
    return names


def _shapes(text: ConfigReader, inner: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Returns KV heads and head_dim of each kind of layer."""
    base = text.integer("num_key_value_heads"), text.integer("head_dim", 256)
    every = [base] * len(names)
    if text.has("per_layer_config"):
        for key, own in _object(inner, "per_layer_config", TEXT).items():
            layer = f"{TEXT}: per_layer_config[{key!r}]"
            if not key.isdecimal() or int(key) >= len(names):
                raise ConfigError(f"{layer} is none of the {len(names)} layers, which are numbered from 0")
            if not isinstance(own, Mapping) or own.keys() - {"head_dim", "num_key_value_heads"}:
                raise ConfigError(f"{layer} may hold head_dim and num_key_value_heads, not {own!r}")
            mine = ConfigReader(own, layer)
            every[int(key)] = mine.integer("num_key_value_heads", base[0]), mine.integer("head_dim", base[1])
    else:
        full = text.integer("num_global_key_value_heads", base[0]), text.integer("global_head_dim", 512)
        every = [full if name == FULL else base for name in names]
    shapes: dict[str, tuple[int, int]] = {}
    for n, (name, shape) in enumerate(zip(names, every, strict=True)):
        if shapes.setdefault(name, shape) != shape:
            raise ConfigError(
                f"{TEXT}: per_layer_config gives layer {n} other heads than another {name} layer, which is not "
                "supported"
            )
    return shapes


def _kind(
    name: str, shapes: Mapping[str, tuple[int, int]], heads: int, ropes: Mapping[str, Any], text: ConfigReader
) -> Kind:
    kv_heads, head_dim = shapes[name]
    if heads % kv_heads:
        raise ConfigError(f"{TEXT}: num_attention_heads {heads} is no multiple of the {kv_heads} key heads of {name}")
    file = f"{TEXT}: rope_parameters.{name}"
    own = _object(ropes, name, f"{TEXT}: rope_parameters")
    if not own:
        raise ConfigError(f"{TEXT}: rope_parameters lacks {name}, which this model's layer_types name")
    rope = ConfigReader(own, file)
    rope.reject_unsupported({"rope_type": ("default", "proportional"), "factor": (1, None)})
    if surplus := sorted(own.keys() - {"rope_type", "rope_theta", "partial_rotary_factor", "factor"}):
        raise ConfigError(f"{file} holds {', '.join(surplus)}, which is not supported")
    rotary_factor = rope.number("partial_rotary_factor", 1.0)
    if rotary_factor != 1 and own.get("rope_type") != "proportional":
        raise ConfigError(
            f"{file}: partial_rotary_factor {rotary_factor:g} is supported only with rope_type 'proportional'"
        )
    rotary = 2 * int(rotary_factor * head_dim // 2)
    if head_dim % 2 or not 2 <= rotary <= head_dim:
        raise ConfigError(
            f"{file}: partial_rotary_factor rotates {rotary} of a head's {head_dim} dimensions; both must be even, and "
            "the first at least 2"
        )
    return Kind(
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=text.integer("sliding_window", 512) if name == SLIDING else None,
        theta=rope.number("rope_theta"),
        rotary_dim=rotary,
    )


def weights(config: DiffusionGemmaConfig) -> WeightMap:
    """Returns the weight map. Google's file has fused experts; quantized ones name each expert."""
    slots = {EMBEDDING: WeightTarget("embed_tokens.weight"), f"{DECODER}norm.weight": WeightTarget("norm.weight")}
    conditioning = f"{DECODER}self_conditioning."
    slots[f"{conditioning}pre_norm.weight"] = WeightTarget("self_conditioning.pre_norm.weight")
    slots |= mlp_targets(conditioning, "self_conditioning.mlp.", config.width)
    fused: dict[str, Fused] = {}
    for index, kind in enumerate(config.layers):
        checkpoint_prefix, prefix = f"{DECODER}layers.{index}.", f"layers.{index}."
        slots |= {checkpoint_prefix + name: WeightTarget(prefix + param) for name, param in LAYER.items()}
        slots |= mlp_targets(f"{checkpoint_prefix}mlp.", f"{prefix}mlp.", config.width)
        experts = config.experts, config.expert_width, f"{checkpoint_prefix}experts.", f"{prefix}experts."
        slots |= expert_targets(*experts)
        fused |= fused_expert_targets(*experts)
        slots[f"{checkpoint_prefix}router.proj.weight"] = WeightTarget(
            f"{prefix}experts.router.weight",
            transform=_folded,
            combine_with={f"{checkpoint_prefix}router.scale": (config.hidden,)},
        )
        slots |= _attention(config, kind, checkpoint_prefix, prefix)
        slots[f"{ENCODER}layers.{index}.layer_scalar"] = WeightTarget("scales", (index, slice(0, 1)))
        slots[f"{checkpoint_prefix}layer_scalar"] = WeightTarget("scales", (index, slice(1, 2)))
    return WeightMap(slots, _canonical, lambda name: name.startswith(VISION), fused, copies=True)


def _canonical(name: str) -> str:
    if name == "lm_head.weight":
        return EMBEDDING
    if name.startswith(ENCODER) and not name.endswith(".layer_scalar"):
        return DECODER + name.removeprefix(ENCODER)
    return name


def _attention(config: DiffusionGemmaConfig, kind: int, checkpoint_prefix: str, prefix: str) -> dict[str, WeightTarget]:
    shape = config.kinds[kind]
    names = ("q", "k") if shape.window is None else ("q", "k", "v")
    slots, first = {}, 0
    for name in names:
        last = first + (config.heads if name == "q" else shape.kv_heads) * shape.head_dim
        slots[f"{checkpoint_prefix}self_attn.{name}_proj.weight"] = WeightTarget(
            f"{prefix}self_attn.qkv_proj.weight", (slice(first, last),)
        )
        first = last
    return slots


def _folded(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Folds the scale of the router's input norm into the router's weight."""
    return weight.double() * (scale.double() / math.sqrt(weight.shape[-1]))


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
        self.kernels = factory.kernels
        v_from_k = kind.window is None
        heads, kv_heads, rows, columns = attention_shards(
            factory, config.heads, kind.kv_heads, kind.head_dim, values=not v_from_k
        )
        self.qkv_config = QKNormRopeConfig(
            heads, kv_heads, config.eps, pair_stride=kind.head_dim // 2, v_norm=True, v_from_k=v_from_k
        )
        stored = config.heads + (1 if v_from_k else 2) * kind.kv_heads
        self.qkv_proj = Linear(factory, config.hidden, stored * kind.head_dim, bias=False, outputs_shard=rows)
        self.q_weight = factory.parameter(kind.head_dim)
        self.k_weight = factory.parameter(kind.head_dim)
        self.o_proj = Linear(factory, config.heads * kind.head_dim, config.hidden, bias=False, inputs_shard=columns)

    def forward(self, x: torch.Tensor, context: KindContext, pool: KVPool, layer: int) -> torch.Tensor:
        batch, kv = context.batch, pool.layer(layer)
        q = self.kernels.qk_norm_rope_and_cache(
            self.qkv_proj(x), batch.positions, context.rotary, self.q_weight.tensor, self.k_weight.tensor,
            self.qkv_config, batch.slots, kv.k, kv.v,
        )  # fmt: skip
        return self.o_proj(context.attention.run(q, kv).flatten(1))


class Experts(nn.Module):
    """Router and experts, with separate norms.

    The input of the router is either rows under a norm without weights (`router_input`), or unnormed rows with the
    factors of that norm. The scale of the norm is folded into the router's weight.
    """

    __call__: ForwardCall[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

    def __init__(self, factory: LayerFactory, config: DiffusionGemmaConfig) -> None:
        super().__init__()
        routing = RoutingConfig(config.top_k, 1, 1, True, 1.0, "softmax")
        self.eps = config.eps
        self.router = Router(factory, config.hidden, config.experts, routing, bias=False)
        self.expert_scale = factory.parameter(config.experts, dtype=wide(factory.dtype))
        self.pre_feedforward_layernorm_2 = RMSNorm(factory, config.hidden, config.eps)
        weights, self.expert_shard = make_experts(factory, config.experts, config.hidden, config.expert_width)
        self.gate_up_proj, self.down_proj = weights
        self.kernels, self.group = factory.kernels, factory.group

    def router_input(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x.to(wide(x.dtype)), None, self.eps)

    def forward(self, router_input: torch.Tensor, normed: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
        ids, weights = self.router(router_input, None, factor)
        weights = weights * self.expert_scale.tensor[ids]
        ids = local_expert_ids(ids, self.expert_shard)
        gate_up, down = self.gate_up_proj.kernel_arg, self.down_proj.kernel_arg
        out = self.group.output_buffer(normed.shape, normed.dtype)
        return self.group.all_reduce_out(self.kernels.moe(normed, ids, weights, gate_up, down, None, GELU, out))

    def choices(self, norms: NormOutputs, sandwich_norms: SandwichNormOps) -> torch.Tensor | TopKOutputs:
        """Returns the outputs of each row's experts, which `sandwich_norms` sums.

        With tensor parallelism, returns their sum, after the all-reduce.
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
            both = self.post_feedforward_layernorm_1(dense) + self.post_feedforward_layernorm_2(chosen)
            x = (x + self.post_feedforward_layernorm(both)) * scale
            return following(x), x
        norms = sandwich_norms.pre_mlp_norms(
            attn_output, x, _norm_weight(self.post_attention_layernorm), _norm_weight(self.pre_feedforward_layernorm),
            _norm_weight(self.experts.pre_feedforward_layernorm_2), self.eps,
        )  # fmt: skip
        after = (
            self.post_feedforward_layernorm_1, self.post_feedforward_layernorm_2, self.post_feedforward_layernorm,
            following,
        )  # fmt: skip
        dense, choices = self.mlp(norms.dense), self.experts.choices(norms, sandwich_norms)
        weights = tuple(map(_norm_weight, after))
        return sandwich_norms.post_mlp_norms(dense, choices, norms.total, scale, weights, self.eps)


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
        """Returns the conditioned embeddings, [rows, hidden].

        `signal` [rows, hidden] is 0 for rows in their first step; None if all are.
        """
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
        head_counts = [factory.local_heads(config.heads, kind.kv_heads, kind.head_dim).counts for kind in kinds]
        self.kv_shapes = tuple(
            KVShape(head_counts[n][1], kinds[n].head_dim, kinds[n].head_dim, kinds[n].window) for n in config.layers
        )
        self.attentions = [
            make_attention(AttentionShape(*counts, kind.head_dim, 1.0), factory)
            for counts, kind in zip(head_counts, kinds, strict=True)
        ]
        self.rotaries = [
            RotaryTable(factory, kind.rotary_dim, kind.theta, config.max_positions, span=kind.head_dim)
            for kind in kinds
        ]
        # rounded to the model's dtype, as in training
        self.embed_scale = float(torch.tensor(config.hidden**0.5, dtype=factory.dtype))
        self.embed_tokens = Embedding(factory, config.vocab_size, config.hidden)
        self.vocab_shard = self.embed_tokens.vocab_shard
        self.self_conditioning = SelfConditioning(factory, config)
        self.layers = nn.ModuleList(DecoderLayer(factory, config, index) for index in range(len(config.layers)))
        self.scales = factory.parameter(len(config.layers), 2)  # scales of committed and of editable rows
        self.norm = RMSNorm(factory, config.hidden, config.eps)
        self.lm_head = SoftcapLMHead(self.embed_tokens.weight, factory.kernels, config.cap)

    @torch.inference_mode()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embed_tokens(tokens) * self.embed_scale

    @torch.inference_mode()
    def compute_self_conditioning(self, probs: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the mean embedding under each distribution, [n, hidden]. See ``kernels.weighted_embedding``.

        Args:
            probs: [n, local ids].
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


def generation(config: Mapping[str, Any]) -> dict[str, Value]:
    """Returns the defaults of decoding fields from generation_config.json. Raises ConfigError if it is invalid."""
    fields = ConfigReader(config, "generation_config.json")
    found: dict[str, Value] = {}
    for name in ("t_min", "t_max", "confidence_threshold"):
        if fields.has(name):
            found[name] = fields.number(name)
    for name, low in (("max_denoising_steps", 1), ("stability_threshold", 0)):
        if fields.has(name):
            found[name] = fields.integer(name, low=low)
    sampler = config.get("sampler_config") or {}
    if not isinstance(sampler, Mapping):
        raise ConfigError(f"generation_config.json: sampler_config must be an object, not {sampler!r}")
    inner = ConfigReader(sampler, "generation_config.json's sampler_config")
    inner.reject_unsupported({"_cls_name": ("EntropyBoundSamplerConfig",)})
    if inner.has("entropy_bound"):
        found["entropy_bound"] = inner.number("entropy_bound")
    return found


DIFFUSION_GEMMA = register_family(
    ModelFamily(
        key="diffusion_gemma",
        detect=lambda config: config.get("model_type") == "diffusion_gemma",
        architectures=("DiffusionGemmaForBlockDiffusion",),
        parse=parse,
        facts=lambda config: config,
        make=DiffusionGemma,
        weights=weights,
        strategies=("diffusion_gemma",),
        masks=False,
        generation=generation,
        tool_calls="gemma4",
        reasoning="gemma4",
    )
)
