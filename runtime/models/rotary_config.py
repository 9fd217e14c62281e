"""How heads turn with the position, by a config's own fields or by its `rope_parameters`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime.errors import ConfigError
from runtime.layers.rotary import Yarn
from runtime.models.decoder import Growth
from runtime.models.fields import Fields

ROPE = "config.json's rope_parameters"
YARN_HONOURED = frozenset(
    """
    factor original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim attention_factor
    llama_4_scaling_beta
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Turn:
    """How heads turn with the position."""

    theta: float
    dim: int  # of a head's dimensions, the first ones
    yarn: Yarn | None = None
    growth: Growth | None = None


def rotary(config: Mapping[str, Any], head_dim: int, *, yarn: bool = False) -> Turn:
    """From fields of the config itself, or of its `rope_parameters`, where newer ones keep them."""
    nested = config.get("rope_parameters") or {}
    if not isinstance(nested, Mapping):
        raise ConfigError(f"config.json: rope_parameters must be an object, not {nested!r}")
    kinds = ("default", "yarn") if yarn else ("default",)
    Fields(nested, ROPE).only({"rope_type": kinds, "type": kinds})
    stretched = "yarn" in (nested.get("rope_type"), nested.get("type"))
    honoured = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *(YARN_HONOURED if stretched else ())}
    if surplus := sorted(nested.keys() - honoured):
        raise ConfigError(f"config.json: rope_parameters holds {', '.join(surplus)}, which is not built")
    for name in ("rope_theta", "partial_rotary_factor"):
        outer, inner = config.get(name), nested.get(name)
        if outer is not None and inner is not None and outer != inner:
            raise ConfigError(f"config.json: {name} {outer!r} contradicts rope_parameters, which says {inner!r}")
    fields = Fields({**nested, **{k: v for k, v in config.items() if v is not None}})
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
    turn = Turn(fields.number("rope_theta"), rotary_dim)
    return _stretched(turn, Fields(nested, ROPE)) if stretched else turn


def _stretched(turn: Turn, fields: Fields) -> Turn:
    """With YaRN, and with queries that grow past the positions of the training, where the config says so."""
    factor, original = fields.number("factor"), fields.whole("original_max_position_embeddings")
    if factor < 1:
        raise ConfigError(f"{ROPE}: factor is {factor:g}, but YaRN stretches by 1 or more")
    fast, slow = fields.number("beta_fast", 32.0), fields.number("beta_slow", 1.0)
    if fast <= slow:
        raise ConfigError(f"{ROPE}: beta_fast {fast:g} is not more than beta_slow {slow:g}")

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1

    if fields.has("attention_factor"):
        size = fields.number("attention_factor")
    elif fields.has("mscale") and fields.has("mscale_all_dim"):
        size = magnitude(fields.number("mscale")) / magnitude(fields.number("mscale_all_dim"))
    else:
        size = magnitude(1.0)
    growth = Growth(fields.number("llama_4_scaling_beta"), original) if fields.has("llama_4_scaling_beta") else None
    return replace(turn, yarn=Yarn(factor, original, fast, slow, size), growth=growth)
