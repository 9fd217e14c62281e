"""How heads turn with the position, by a config's own fields or by its `rope_parameters`."""

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
    """How heads turn with the position."""

    theta: float
    dim: int  # of a head's dimensions, the first ones
    yarn: Yarn | None = None
    query_scaling: QueryLengthScaling | None = None


def rotary(config: Mapping[str, Any], head_dim: int, *, yarn: bool = False) -> RopeConfig:
    """From fields of the config, or of its `rope_parameters` (transformers 5) or `rope_scaling` (transformers 4).

    ConfigError, naming the field, for scaling that is not supported, and for values that contradict each other.
    """
    name, nested = _rope_object(config)
    file = f"config.json's {name}"
    kinds = ("default", "yarn") if yarn else ("default",)
    ConfigReader(nested, file).only({"rope_type": kinds, "type": kinds})
    stretched = "yarn" in (nested.get("rope_type"), nested.get("type"))
    honoured = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *(YARN_READ if stretched else ())}
    if surplus := sorted(nested.keys() - honoured):
        raise ConfigError(f"config.json: {name} holds {', '.join(surplus)}, which is not built")
    for field in ("rope_theta", "partial_rotary_factor"):
        outer, inner = config.get(field), nested.get(field)
        if outer is None or inner is None or outer == inner:
            continue
        if name == SCALING and not stretched:  # which transformers 4 does not read if it scales nothing
            log.warning("config.json: %s %r of %s ignored: the config's own is %r", field, inner, name, outer)
        else:
            raise ConfigError(f"config.json: {field} {outer!r} contradicts {name}, which says {inner!r}")
    fields = ConfigReader({**nested, **{k: v for k, v in config.items() if v is not None}})
    share = fields.number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * share)
    why = f"partial_rotary_factor {share:g}" if fields.has("partial_rotary_factor") else f"a head's size of {head_dim}"
    if fields.has("rotary_dim"):
        given = fields.whole("rotary_dim")
        if fields.has("partial_rotary_factor") and given != rotary_dim:
            raise ConfigError(f"config.json: rotary_dim {given} contradicts partial_rotary_factor {share}")
        rotary_dim, why = given, f"rotary_dim {given}"
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ConfigError(
            f"config.json: with {why}, {rotary_dim} of a head's {head_dim} dimensions are rotary; it must be an even "
            "number of them, and not more than there are"
        )
    turn = RopeConfig(fields.number("rope_theta"), rotary_dim)
    return _stretched(turn, ConfigReader(nested, file), file) if stretched else turn


def _rope_object(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The object with rotary parameters, and its name: `rope_parameters`, `rope_scaling`, or both where they agree."""
    found: dict[str, dict[str, Any]] = {}
    for name in (ROPE, SCALING):
        value = config.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"config.json: {name} must be an object, not {value!r}")
        # One per kind of layer, as transformers 5 writes it where a config has layer_types; other kinds are refused.
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
    """Without nulls, and without scaling by 1, which scales nothing."""
    present = {key: value for key, value in rope.items() if value is not None}
    scaling = present.keys() - {"rope_theta", "partial_rotary_factor"}
    kinds = {present[key] for key in ("rope_type", "type") if isinstance(present.get(key), str)}
    if kinds == {"linear"} and scaling <= {"rope_type", "type", "factor"} and present.get("factor") == 1:
        return {key: value for key, value in present.items() if key not in scaling}
    return present


def _stretched(turn: RopeConfig, fields: ConfigReader, file: str) -> RopeConfig:
    """With YaRN, and with queries that grow past the positions of the training, where the config says so."""
    factor, original = fields.number("factor"), fields.whole("original_max_position_embeddings")
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
    return replace(turn, yarn=Yarn(factor, original, fast, slow, size), query_scaling=query_scaling)
