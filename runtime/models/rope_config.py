"""Reads the rotary embedding from a config's own fields or its `rope_parameters`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime.errors import ConfigError
from runtime.layers.rotary import Yarn
from runtime.models.config_reader import ConfigReader
from runtime.models.decoder import QueryLengthScaling

log = logging.getLogger(__name__)

ROPE, SCALING = "rope_parameters", "rope_scaling"
YARN_READ = frozenset(
    """
    factor original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim attention_factor
    llama_4_scaling_beta
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of a model."""

    theta: float
    dim: int  # number of rotated dimensions, the first of each head
    yarn: Yarn | None = None
    query_scaling: QueryLengthScaling | None = None


def rotary(config: Mapping[str, Any], head_dim: int, *, yarn: bool = False) -> RopeConfig:
    """Reads fields of the config, `rope_parameters` (transformers 5) or `rope_scaling` (transformers 4).

    Raises:
        ConfigError: the scaling is not supported, or values contradict each other; the message names the field.
    """
    name, nested = _rope_object(config)
    file = f"config.json's {name}"
    kinds = ("default", "yarn") if yarn else ("default",)
    ConfigReader(nested, file).reject_unsupported({"rope_type": kinds, "type": kinds})
    is_yarn = "yarn" in (nested.get("rope_type"), nested.get("type"))
    read_fields = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *(YARN_READ if is_yarn else ())}
    if surplus := sorted(nested.keys() - read_fields):
        raise ConfigError(f"config.json: {name} holds {', '.join(surplus)}, which is not built")
    for field in ("rope_theta", "partial_rotary_factor"):
        outer, inner = config.get(field), nested.get(field)
        if outer is None or inner is None or outer == inner:
            continue
        if name == SCALING and not is_yarn:  # which transformers 4 does not read if it scales nothing
            log.warning("config.json: %s %r of %s ignored: the config's own is %r", field, inner, name, outer)
        else:
            raise ConfigError(f"config.json: {field} {outer!r} contradicts {name}, which says {inner!r}")
    fields = ConfigReader({**nested, **{k: v for k, v in config.items() if v is not None}})
    rotary_factor = fields.number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * rotary_factor)
    source = (
        f"partial_rotary_factor {rotary_factor:g}"
        if fields.has("partial_rotary_factor")
        else f"a head's size of {head_dim}"
    )
    if fields.has("rotary_dim"):
        rotary_dim_field = fields.integer("rotary_dim")
        if fields.has("partial_rotary_factor") and rotary_dim_field != rotary_dim:
            raise ConfigError(
                f"config.json: rotary_dim {rotary_dim_field} contradicts partial_rotary_factor {rotary_factor}"
            )
        rotary_dim, source = rotary_dim_field, f"rotary_dim {rotary_dim_field}"
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ConfigError(
            f"config.json: with {source}, {rotary_dim} of a head's {head_dim} dimensions are rotary; it must be an "
            "even number of them, and not more than there are"
        )
    rope = RopeConfig(fields.number("rope_theta"), rotary_dim)
    return _with_yarn(rope, ConfigReader(nested, file), file) if is_yarn else rope


def _rope_object(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns name and content of the rope object: `rope_parameters`, `rope_scaling`, or both merged if they agree."""
    found: dict[str, dict[str, Any]] = {}
    for name in (ROPE, SCALING):
        value = config.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"config.json: {name} must be an object, not {value!r}")
        # transformers 5 writes one per layer type if a config has layer_types; other types are refused.
        inner = (value or {}).get("full_attention")
        found[name] = _without_identity(inner if isinstance(inner, Mapping) else value or {})
    newer, older = found[ROPE], found[SCALING]
    if not older or not newer:
        return (ROPE, newer) if newer or not older else (SCALING, older)
    for key in sorted({_rope_key(key) for key in newer} & {_rope_key(key) for key in older}):
        one, other = (next(v for k, v in each.items() if _rope_key(k) == key) for each in (newer, older))
        if one != other:
            raise ConfigError(f"config.json: {ROPE} says {key} {one!r}, and {SCALING} {other!r}; keep the right one")
    return ROPE, older | newer


def _rope_key(key: str) -> str:
    return "rope_type" if key == "type" else key


def _without_identity(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Drops nulls, and scaling by factor 1."""
    present = {key: value for key, value in rope.items() if value is not None}
    scaling = present.keys() - {"rope_theta", "partial_rotary_factor"}
    kinds = {present[key] for key in ("rope_type", "type") if isinstance(present.get(key), str)}
    if kinds == {"linear"} and scaling <= {"rope_type", "type", "factor"} and present.get("factor") == 1:
        return {key: value for key, value in present.items() if key not in scaling}
    return present


def _with_yarn(rope: RopeConfig, fields: ConfigReader, file: str) -> RopeConfig:
    """Adds YaRN, and query scaling if the config has it."""
    factor, original = fields.number("factor"), fields.integer("original_max_position_embeddings")
    if factor < 1:
        raise ConfigError(f"{file}: factor is {factor:g}, but YaRN stretches by 1 or more")
    fast, slow = fields.number("beta_fast", 32.0), fields.number("beta_slow", 1.0)
    if fast <= slow:
        raise ConfigError(f"{file}: beta_fast {fast:g} is not more than beta_slow {slow:g}")

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1

    if fields.has("attention_factor"):
        size = fields.number("attention_factor")
    elif fields.has("mscale") and fields.has("mscale_all_dim"):
        size = magnitude(fields.number("mscale")) / magnitude(fields.number("mscale_all_dim"))
    else:
        size = magnitude(1.0)
    query_scaling = (
        QueryLengthScaling(fields.number("llama_4_scaling_beta"), original)
        if fields.has("llama_4_scaling_beta")
        else None
    )
    return replace(rope, yarn=Yarn(factor, original, fast, slow, size), query_scaling=query_scaling)
