"""Reads PEFT's adapter_config.json: target modules, ranks and scales."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import ConfigError
from runtime.models.config_reader import ConfigReader

FILE = "adapter_config.json"
MAX_RANK = 4096
MAX_PATTERN_CHARS = 1000  # characters of a regular expression, which is untrusted

ALL_LINEAR = "all-linear"
# Fields about training, or that repeat what the tensors and the model state.
IGNORED_FIELDS = frozenset(
    """
    arrow_config auto_mapping base_model_class base_model_name_or_path corda_config eva_config inference_mode
    kasa_config lora_dropout lora_ga_config loftq_config megatron_config megatron_core monteclora_config peft_version
    qalora_group_size revision runtime_config task_type velora_config
    """.split()  # noqa: SIM905
)
KNOWN_FIELDS = frozenset(
    """
    alpha_pattern exclude_modules init_lora_weights layers_pattern layers_to_transform lora_alpha peft_type r
    rank_pattern target_modules use_rslora bias
    """.split()  # noqa: SIM905
)
UNSUPPORTED = {  # unsupported fields, and what to do instead
    "modules_to_save": "full modules in addition to the adapter's pairs are not supported; train without them",
    "use_dora": "DoRA is not supported; train a plain LoRA",
    "target_parameters": "adapters of parameters outside of modules are not supported; target the modules",
    "trainable_token_indices": "trained tokens are not supported; train without them",
    "layer_replication": "duplicated layers are not supported; train without it",
    "fan_in_fan_out": "transposed weights are not supported; this model family has none",
    "lora_bias": "biases of an adapter are not supported; train without them",
}
CHANGES_BASE = (
    "pissa",
    "olora",
    "corda",
    "loftq",
    "lora_ga",
)  # initializations that also change the base model's weights


@dataclass(frozen=True)
class PeftConfig:
    """Target modules of an adapter, by the names of the published model, without prefix and ending."""

    rank: int
    alpha: float
    rslora: bool
    ranks: Mapping[str, float]  # pattern of module names -> rank
    alphas: Mapping[str, float]
    targeted: Callable[[str], bool]  # whether a linear layer's module is a target

    def rank_of(self, module: str) -> int:
        return int(_matching(self.ranks, module, self.rank))

    def scale(self, module: str) -> float:
        """Returns the factor of `up @ down` of a module."""
        rank = self.rank_of(module)
        return _matching(self.alphas, module, self.alpha) / (math.sqrt(rank) if self.rslora else rank)


def parse(config: Mapping[str, Any]) -> PeftConfig:
    """Parses adapter_config.json.

    Raises:
        ConfigError: Names a field that is invalid, or that would change the model and is not supported.
    """
    fields = ConfigReader(config, FILE)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ConfigError(f"{FILE}: peft_type is {kind!r}; only LORA adapters can be served")
    if config.get("bias", "none") != "none":
        raise ConfigError(f"{FILE}: bias is {config['bias']!r}: trained biases are not supported; train with bias none")
    initial = str(config.get("init_lora_weights", True)).lower()
    if initial.startswith(CHANGES_BASE):
        raise ConfigError(
            f"{FILE}: init_lora_weights {initial!r} changes the base's weights too; convert the adapter to a plain "
            "LoRA when it is saved (path_initial_model_for_weight_conversion)"
        )
    for name, value in config.items():
        if name not in KNOWN_FIELDS and name not in IGNORED_FIELDS and value not in (None, False, "", [], {}):
            why = UNSUPPORTED.get(name, "this is not supported; leave it out of the adapter's training")
            raise ConfigError(f"{FILE}: {name} is {value!r}: {why}")
    return PeftConfig(
        rank=fields.integer("r", high=MAX_RANK),
        alpha=fields.number("lora_alpha"),
        rslora=fields.flag("use_rslora", False),
        ranks=_numbers(config, "rank_pattern", integers=True),
        alphas=_numbers(config, "alpha_pattern", integers=False),
        targeted=_targeted(config),
    )


def _numbers(config: Mapping[str, Any], name: str, *, integers: bool) -> Mapping[str, float]:
    values = config.get(name) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{FILE}: {name} must map patterns of modules' names to numbers")
    for pattern, value in values.items():
        _compiled(name, pattern)
        kinds = int if integers else int | float
        good = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value) and value > 0
        if not good or (integers and value > MAX_RANK):
            kind = f"a rank from 1 to {MAX_RANK}" if integers else "a number above 0"
            raise ConfigError(f"{FILE}: {name} gives {pattern!r} {value!r}, not {kind}")
    return values


def _matching(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Returns the value of the first pattern that matches a module's name, or its end after a dot."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _targeted(config: Mapping[str, Any]) -> Callable[[str], bool]:
    """Combines target_modules, layers_to_transform and exclude_modules."""
    targets, layers = _names(config, "target_modules"), _layers(config)
    excluded = _names(config, "exclude_modules") if config.get("exclude_modules") else None
    if layers is not None and isinstance(targets, str):
        raise ConfigError(f"{FILE}: layers_to_transform goes with a list of target_modules, not with {targets!r}")

    def named(names: str | list[str], module: str) -> bool:
        if isinstance(names, str):
            return names == ALL_LINEAR or re.fullmatch(names, module) is not None
        return any(module == name or module.endswith(f".{name}") for name in names)

    def targeted(module: str) -> bool:
        if (excluded is not None and named(excluded, module)) or not named(targets, module):
            return False
        return layers is None or layers(module)

    return targeted


def _names(config: Mapping[str, Any], name: str) -> str | list[str]:
    value = config.get(name)
    if isinstance(value, str) and value:
        if value != ALL_LINEAR:
            _compiled(name, value)
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return value
    raise ConfigError(f"{FILE}: {name} must be a list of modules' names or a regular expression, not {value!r}")


def _layers(config: Mapping[str, Any]) -> Callable[[str], bool] | None:
    """Returns whether a module is in one of layers_to_transform; None without that field."""
    transformed, names = config.get("layers_to_transform"), config.get("layers_pattern") or []
    if transformed is None:
        return None
    numbers = [transformed] if isinstance(transformed, int) else transformed
    if not isinstance(numbers, list) or not all(isinstance(one, int) for one in numbers):
        raise ConfigError(
            f"{FILE}: layers_to_transform must be a layer's number or a list of them, not {transformed!r}"
        )
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ConfigError(f"{FILE}: layers_pattern must be a name or a list of names, not {names!r}")
    patterns = [_compiled("layers_pattern", rf".*\.{one}\.(\d+)\.") for one in names] or [
        re.compile(r".*\.[^.]*\.(\d+)\.")
    ]

    def inside(module: str) -> bool:
        found = next((match for pattern in patterns if (match := pattern.match(module))), None)
        return found is not None and int(found[1]) in numbers

    return inside


def _compiled(name: str, pattern: Any) -> re.Pattern[str]:
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS:
        raise ConfigError(f"{FILE}: {name} must be a regular expression of at most {MAX_PATTERN_CHARS} characters")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError) as error:
        raise ConfigError(f"{FILE}: {name} has {pattern!r}, which is not a regular expression: {error}") from None
