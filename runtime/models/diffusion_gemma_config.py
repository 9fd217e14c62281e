"""Reads the config.json of DiffusionGemma and refuses values that are not supported.

docs/models/architecture-notes.md#diffusiongemma-layers describes the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import ConfigError
from runtime.models.config_reader import ConfigReader
from runtime.models.decoder_config import warn_unknown_fields

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
# Fields that other modules read (tokenizer, dtype), that concern images, or that do not affect the forward pass.
IGNORED = frozenset(
    """
    model_type architectures torch_dtype dtype transformers_version _name_or_path initializer_range
    vision_config boi_token_id eoi_token_id image_token_id pad_token_id attention_dropout use_cache
    quantization_config
    """.split()  # noqa: SIM905
)
READ = frozenset({"text_config", "canvas_length", "eos_token_id"})
TEXT_READ = frozenset(
    """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    global_head_dim num_global_key_value_heads per_layer_config layer_types sliding_window rope_parameters
    max_position_embeddings rms_norm_eps final_logit_softcapping num_experts top_k_experts moe_intermediate_size
    eos_token_id bos_token_id
    """.split()  # noqa: SIM905
)
ROPE: dict[str, dict[str, Any]] = {  # for configs without rope_parameters
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


@dataclass(frozen=True)
class Kind:
    """Properties of the layers of one kind. Layers without a window derive V from K."""

    kv_heads: int
    head_dim: int
    window: int | None
    theta: float
    rotary_dim: int  # rotated dimensions: half from the start of a head, half from its middle


@dataclass(frozen=True)
class DiffusionGemmaConfig:
    """Architecture of DiffusionGemma, read from config.json."""

    vocab_size: int
    hidden: int
    heads: int
    width: int  # intermediate size of the dense MLP and of the self-conditioning
    experts: int
    top_k: int
    expert_width: int
    kinds: tuple[Kind, ...]
    layers: tuple[int, ...]  # the kind of each layer
    max_positions: int
    eps: float
    cap: float  # soft cap of the logits
    canvas: int
    eos_ids: tuple[int, ...]
    bos_id: int | None


def parse(config: Mapping[str, Any]) -> DiffusionGemmaConfig:
    """Reads config.json. Raises ConfigError that names the field if one is missing, wrong, inconsistent or not
    supported.
    """
    fields = ConfigReader(config)
    fields.reject_unsupported(SUPPORTED)
    warn_unknown_fields(config, "diffusion_gemma", SUPPORTED.keys() | IGNORED | READ)
    inner = _object(config, "text_config", "config.json")
    if not inner:
        raise ConfigError("config.json lacks text_config, which this model family needs")
    text = ConfigReader(inner, TEXT)
    text.reject_unsupported(TEXT_SUPPORTED)
    warn_unknown_fields(inner, "diffusion_gemma", TEXT_SUPPORTED.keys() | IGNORED | TEXT_READ)
    names = _layer_types(text)
    experts, top_k = text.experts("num_experts"), text.integer("top_k_experts")
    if top_k > experts:
        raise ConfigError(f"{TEXT}: top_k_experts {top_k} is more than num_experts {experts}")
    used = [name for name in (SLIDING, FULL) if name in names]
    heads = text.integer("num_attention_heads")
    shapes = _shapes(text, inner, names)
    ropes = _object(inner, "rope_parameters", TEXT) or ROPE
    return DiffusionGemmaConfig(
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
        canvas=fields.integer("canvas_length", 256),
        eos_ids=tuple(sorted({*fields.ids("eos_token_id"), *text.ids("eos_token_id")})),
        bos_id=text.id("bos_token_id"),
    )


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
            raise ConfigError(f"{TEXT}: layer_types names {name!r}, but only {SLIDING!r} and {FULL!r} are built")
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
                f"{TEXT}: per_layer_config gives layer {n} other heads than another {name} layer, which is not built"
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
        raise ConfigError(f"{file} holds {', '.join(surplus)}, which is not built")
    rotary_factor = rope.number("partial_rotary_factor", 1.0)
    if rotary_factor != 1 and own.get("rope_type") != "proportional":
        raise ConfigError(
            f"{file}: partial_rotary_factor {rotary_factor:g} is built only with rope_type 'proportional'"
        )
    rotary = 2 * int(rotary_factor * head_dim // 2)
    if head_dim % 2 or not 2 <= rotary <= head_dim:
        raise ConfigError(
            f"{file}: partial_rotary_factor turns {rotary} of a head's {head_dim} dimensions; both must be even, and "
            "the first at least 2"
        )
    return Kind(
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=text.integer("sliding_window", 512) if name == SLIDING else None,
        theta=rope.number("rope_theta"),
        rotary_dim=rotary,
    )
