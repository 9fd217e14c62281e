"""Fields that requests may set, and their defaults."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.algorithms import base
from runtime.config import FLAGS, EngineConfig
from runtime.config.flags import DECODING
from runtime.errors import ConfigError, RequestError
from runtime.models.base import ModelFamily, ModelInfo
from runtime.models.published import PublishedDefaults
from runtime.request.decoding import with_decoding_defaults
from runtime.request.engine_messages import SAMPLING, EngineInfo
from runtime.request.field_spec import AlgorithmInfo, Field, Value, with_defaults
from runtime.request.validation import check_declared
from runtime.scheduling.strategy import Strategy
from runtime.weights.special_tokens import TokenIds

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointDefaults:
    """Defaults that come with a checkpoint: the published ones, and the content of generation_config.json."""

    published: PublishedDefaults
    generation: Mapping[str, Any]


def read_edit_tokens(facts: ModelInfo, ids: TokenIds) -> base.EditTokens | None:
    """Returns the DELETE and SPLIT tokens of a checkpoint; None if it has none.

    Raises:
        ConfigError: one of them is outside the vocabulary or is another special token too.
    """
    if facts.delete_id is None or facts.split_id is None:
        return None
    edit_tokens = base.EditTokens(facts.delete_id, facts.split_id)
    others: dict[str, set[int | None]] = {
        "mask_token_id": {ids.mask},
        "eos_token_id": set(ids.eos),
        "split_token_id": {edit_tokens.split},
    }
    for name, token in (("delete_token_id", edit_tokens.delete), ("split_token_id", edit_tokens.split)):
        if token >= facts.vocab_size:
            raise ConfigError(f"config.json: {name} {token} is outside the vocabulary (0 to {facts.vocab_size - 1})")
        for other, taken in others.items():
            if other != name and token in taken:
                raise ConfigError(f"config.json: {name} {token} is also the {other}; use a separate token")
    return edit_tokens


def request_defaults(
    config: EngineConfig,
    family: ModelFamily[Any],
    defaults: CheckpointDefaults,
    strategy: Strategy,
    key: str,
    block_size: int,
    edit_tokens: base.EditTokens | None,
) -> dict[str, Any]:
    """Returns fields of EngineInfo: what requests may set, and the defaults.

    A default is the first that exists of: the server's flag, the default of the strategy, that of the repository or the
    family (``models.published``), generation_config.json, and the default that the algorithm or strategy declares.

    Args:
        key: key of the strategy, as in --decoding-strategy.

    Raises:
        ConfigError: a flag is not supported by this strategy, or no algorithm is.
    """
    published = defaults.published
    from_generation_config = family.generation(defaults.generation)
    mode = _sampling_mode(config, family, published)

    def served(fields: tuple[Field, ...], algorithm: str = "") -> tuple[Field, ...]:
        flags = {f.name: value for f in fields if (value := _flag(config, f)) is not None}
        sources = (flags, strategy.defaults, published.fields_of(algorithm), from_generation_config)
        return with_defaults(fields, block_size, *sources)

    if mode != "edit" and all(rule.edits for rule in base.algorithms_for(key)):
        raise ConfigError(f"--decoding-strategy {key} needs --sampling-mode edit")
    supported = _fitting_algorithms(family, strategy, key, edit_tokens)
    fields = [*strategy.fields, *(field for rule in supported for field in rule.fields)]
    _check_used(config, f"{key} of the {family.key} family", fields)
    preferred = "edit" if mode == "edit" else "threshold"
    if (penalty := defaults.generation.get("repetition_penalty")) not in (None, 1):
        log.warning("generation_config.json: repetition_penalty %r is not applied; set it in requests", penalty)
    return {
        **_sampling(family, defaults, greedy=1.0 if strategy.uniform_noise else 0.0),
        "strategy_fields": list(served(strategy.fields)),
        "algorithms": [
            AlgorithmInfo(
                key=rule.key,
                fields=served(rule.fields, rule.key),
                modes=rule.modes,
                supports_grammar=rule.supports_grammar,
                reorders_tokens=rule.reorders_tokens,
            )
            for rule in supported
        ],
        "default_algorithm": next((rule.key for rule in supported if rule.key == preferred), supported[0].key),
    }


def with_decoding_flag(config: EngineConfig, info: EngineInfo) -> EngineInfo:
    """Returns the engine with the defaults of --decoding.

    Raises:
        ConfigError: a field of it is invalid, or another flag sets it too.
    """
    if config.decoding is None:
        return info
    decoding = json.loads(config.decoding)
    try:
        changed = with_decoding_defaults(info, decoding, "--decoding")
    except RequestError as error:
        fix = "" if ";" in str(error) else "; correct it, or leave it out"
        raise ConfigError(f"{error}{fix}") from error
    algorithm = info.algorithm(changed.default_algorithm)
    assert algorithm is not None
    of_mode = algorithm.modes.get(decoding.get("mode") or "", {})
    for field in (*info.strategy_fields, *algorithm.fields):
        name = field.flag or field.name
        if (decoding.get(field.name) is not None or field.name in of_mode) and getattr(config, name, None) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"--decoding: {field.name} is also set by {flag}; give one of them")
    return changed


def _fitting_algorithms(
    family: ModelFamily[Any], strategy: Strategy, key: str, edit_tokens: base.EditTokens | None
) -> list[base.UnmaskingAlgorithm]:
    """Returns the algorithms that a family supports with a strategy. Raises ConfigError if there are none."""
    found = [
        rule for rule in supported_algorithms(family, key, edit_tokens) if rule.uniform_noise == strategy.uniform_noise
    ]
    if not found:
        raise ConfigError(
            f"--decoding-strategy {key} of the {family.key} family supports no unmasking algorithm of this version; "
            f"available: {', '.join(base.algorithm_keys())}"
        )
    return found


def supported_algorithms(
    family: ModelFamily[Any], key: str, edit_tokens: base.EditTokens | None = None
) -> list[base.UnmaskingAlgorithm]:
    """Returns the unmasking algorithms that requests may select with the strategy `key`."""
    algorithms = [base.algorithms_with_edit_tokens(edit_tokens)(rule.key) for rule in base.algorithms_for(key)]
    return [rule for rule in algorithms if ("edit" if rule.edits else "naive") in family.sampling_modes]


def _sampling_mode(config: EngineConfig, family: ModelFamily[Any], published: PublishedDefaults) -> str:
    """Returns the mode of the flag, otherwise that of the repository, otherwise the first one of the family."""
    mode = config.sampling_mode or published.sampling_mode or family.sampling_modes[0]
    if mode not in family.sampling_modes:
        raise ConfigError(
            f"--sampling-mode {mode}: the {family.key} family has only {', '.join(family.sampling_modes)}"
        )
    if config.model_name in family.needs_edit and mode != "edit":
        raise ConfigError(f"--model-name {config.model_name} needs --sampling-mode edit")
    return mode


def _sampling(family: ModelFamily[Any], defaults: CheckpointDefaults, greedy: float) -> dict[str, float]:
    """Returns the defaults of sampling. `greedy`: the temperature if nothing is sampled."""
    published, generation = defaults.published.sampling, defaults.generation
    ignored = {name: generation[name] for name in SAMPLING if name in published and generation.get(name) is not None}
    if generation.get("do_sample", True) and any(value != published[name] for name, value in ignored.items()):
        values = ", ".join(f"{name} {value!r}" for name, value in ignored.items())
        log.info(
            "generation_config.json: %s ignored: only EOS ids of it are used in the %s family; set them in requests",
            values, family.key,
        )  # fmt: skip
    found: dict[str, Callable[[], float]] = {
        "temperature": lambda: _generation(generation, "temperature", 0, 100, greedy=greedy),
        "top_p": lambda: _generation(generation, "top_p", 0, 1, greedy=1.0),
        "top_k": lambda: int(_generation(generation, "top_k", -1, 2**31, greedy=0.0, integer=True)),
        "min_p": lambda: _generation(generation, "min_p", 0, 1, greedy=0.0),
    }
    return {name: published[name] if name in published else read() for name, read in found.items()}


def _generation(
    generation: Mapping[str, Any], name: str, low: float, high: float, greedy: float, *, integer: bool = False
) -> float:
    """Returns a sampling default of generation_config.json; `greedy` if it is absent or sampling is off."""
    value = generation.get(name)
    if value is None or not generation.get("do_sample", True):
        return greedy
    kind = int if integer else int | float
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
        number = "whole number" if integer else "number"
        raise ConfigError(f"generation_config.json: {name} is {value!r}, not a {number} from {low:g} to {high:g}")
    return float(value)


def _flag(config: EngineConfig, field: Field) -> Value | None:
    """Returns the flag that sets the default of a field; None if it is not set. Raises ConfigError if it is invalid."""
    dest = field.flag or field.name
    value: Value | None = getattr(config, dest, None)
    if value is not None:
        try:
            check_declared(f"--{dest.replace('_', '-')}", value, field)
        except RequestError as error:
            raise ConfigError(str(error)) from error
    return value


def _check_used(config: EngineConfig, server: str, fields: list[Field]) -> None:
    """Raises ConfigError for a decoding flag that no request of this server can use."""
    read = {"decoding", *(field.flag or field.name for field in fields)}
    for flag in FLAGS:
        if flag.group == DECODING and flag.dest not in read and getattr(config, flag.dest, None) is not None:
            raise ConfigError(f"--{flag.name} is not supported by {server}; leave it out")
