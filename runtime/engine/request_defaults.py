"""What the requests of a server may set, and what those get that set nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.algorithms import (
    EditTokens,
    UnmaskingAlgorithm,
    algorithm_keys,
    algorithms_for,
    algorithms_with_edit_tokens,
)
from runtime.config import FLAGS, EngineConfig
from runtime.config.flags import DECODING
from runtime.errors import ConfigError, RequestError
from runtime.models import ModelFamily, ModelInfo
from runtime.request.engine_messages import EngineInfo
from runtime.request.field_spec import AlgorithmInfo, Field, Value, with_defaults
from runtime.request.validation import check_declared
from runtime.strategies import Strategy
from runtime.weights import TokenIds


def orders_of(info: EngineInfo) -> EditTokens | None:
    """What the model orders edits with, None if it cannot."""
    if info.delete_token_id is None or info.split_token_id is None:
        return None
    return EditTokens(info.delete_token_id, info.split_token_id)


def read_orders(facts: ModelInfo, ids: TokenIds) -> EditTokens | None:
    """The tokens that order edits, None if the model has none; ConfigError if one of them is something else as well."""
    if facts.delete_id is None or facts.split_id is None:
        return None
    orders = EditTokens(facts.delete_id, facts.split_id)
    others: dict[str, set[int | None]] = {
        "mask_token_id": {ids.mask},
        "eos_token_id": set(ids.eos),
        "split_token_id": {orders.split},
    }
    for name, token in (("delete_token_id", orders.delete), ("split_token_id", orders.split)):
        if token >= facts.vocab_size:
            raise ConfigError(f"config.json: {name} {token} is outside the vocabulary (0 to {facts.vocab_size - 1})")
        for other, taken in others.items():
            if other != name and token in taken:
                raise ConfigError(f"config.json: {name} {token} is also the {other}; an order is a token of its own")
    return orders


def offer(
    config: EngineConfig,
    family: ModelFamily[Any],
    generation: Mapping[str, Any],
    strategy: Strategy,
    key: str,
    block_size: int,
    orders: EditTokens | None,
) -> dict[str, Any]:
    """Fields of EngineInfo: what requests may set, and what those that set nothing get: the server's flag, else the
    strategy's, the checkpoint's or the family's own default, else what the rule or strategy declares.

    Args:
        generation: the checkpoint's generation_config.json. key: the strategy's.
    """
    own: dict[str, Value] = {"accept_threshold": family.accept_threshold}
    own |= family.generation(generation)
    mode = _sampling_mode(config, family)

    def served(fields: tuple[Field, ...]) -> tuple[Field, ...]:
        flags = {f.name: value for f in fields if (value := _flag(config, f)) is not None}
        return with_defaults(fields, block_size, flags, strategy.defaults, own)

    if mode != "edit" and all(rule.edits for rule in algorithms_for(key)):
        raise ConfigError(f"--decoding-strategy {key} needs --sampling-mode edit")
    fitting = [rule for rule in fitting_rules(family, key, orders) if rule.uniform_noise == strategy.uniform_noise]
    if not fitting:
        raise ConfigError(
            f"--decoding-strategy {key} of the {family.key} family goes with no acceptance rule that this version has; "
            f"it has: {', '.join(algorithm_keys())}"
        )
    _check_read(
        config,
        f"{key} of the {family.key} family",
        [*strategy.fields, *(field for rule in fitting for field in rule.fields)],
    )
    wanted = "edit" if mode == "edit" else "threshold"
    return {
        "temperature": _generation(generation, "temperature", 0, 100, greedy=1.0 if strategy.uniform_noise else 0.0),
        "top_p": _generation(generation, "top_p", 1e-6, 1, greedy=1.0),
        "top_k": int(_generation(generation, "top_k", -1, 2**31, greedy=0.0, whole=True)),
        "strategy_fields": list(served(strategy.fields)),
        "algorithms": [
            AlgorithmInfo(
                key=rule.key,
                fields=served(rule.fields),
                modes=rule.modes,
                supports_grammar=rule.supports_grammar,
                reorders_tokens=rule.reorders_tokens,
            )
            for rule in fitting
        ],
        "default_algorithm": next((rule.key for rule in fitting if rule.key == wanted), fitting[0].key),
    }


def fitting_rules(family: ModelFamily[Any], key: str, orders: EditTokens | None = None) -> list[UnmaskingAlgorithm]:
    """The acceptance rules that requests may choose. `key`: the strategy's."""
    every = [algorithms_with_edit_tokens(orders)(rule.key) for rule in algorithms_for(key)]
    return [rule for rule in every if ("edit" if rule.edits else "naive") in family.sampling_modes]


def _sampling_mode(config: EngineConfig, family: ModelFamily[Any]) -> str:
    """The flag's, else the family's first."""
    mode = config.sampling_mode or family.sampling_modes[0]
    if mode not in family.sampling_modes:
        raise ConfigError(
            f"--sampling-mode {mode}: the {family.key} family has only {', '.join(family.sampling_modes)}"
        )
    if config.model_name in family.needs_edit and mode != "edit":
        raise ConfigError(f"--model-name {config.model_name} needs --sampling-mode edit")
    return mode


def _generation(
    generation: Mapping[str, Any], name: str, low: float, high: float, greedy: float, *, whole: bool = False
) -> float:
    """A sampling default of generation_config.json; `greedy` where that names none or switches sampling off."""
    value = generation.get(name)
    if value is None or not generation.get("do_sample", True):
        return greedy
    kind = int if whole else int | float
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
        number = "whole number" if whole else "number"
        raise ConfigError(f"generation_config.json: {name} is {value!r}, not a {number} from {low:g} to {high:g}")
    return float(value)


def _flag(config: EngineConfig, field: Field) -> Value | None:
    """The server's default of a field, None if no flag sets it; ConfigError if the field cannot have it here."""
    dest = field.flag or field.name
    value: Value | None = getattr(config, dest, None)
    if value is not None:
        try:
            check_declared(f"--{dest.replace('_', '-')}", value, field)
        except RequestError as error:
            raise ConfigError(str(error)) from error
    return value


def _check_read(config: EngineConfig, server: str, fields: list[Field]) -> None:
    """Raises ConfigError for a default of something that no request of this `server` can have."""
    read = {field.flag or field.name for field in fields}
    for flag in FLAGS:
        if flag.group == DECODING and flag.dest not in read and getattr(config, flag.dest, None) is not None:
            raise ConfigError(f"--{flag.name} means nothing to {server}; leave it out")
