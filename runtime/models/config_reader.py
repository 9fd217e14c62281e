"""Typed access to config.json and similar files. Unifies the field names of transformers 4 and 5."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from runtime.errors import ConfigError

log = logging.getLogger(__name__)

# Larger numbers are errors, detected before anything of such a size is allocated.
MAX_INTEGER, MAX_LAYERS, MAX_EXPERTS, MAX_POSITIONS = 2**22, 10_000, 2**14, 2**24
# Fields that change no forward pass, that other code reads (tokenizer, dtype, rotary embedding), that a family reads
# only in some configs, or that concern images or training.
UNREAD = frozenset(
    """
    model_type architectures auto_map torch_dtype dtype transformers_version _name_or_path quantization_config
    pad_token_id bos_token_id use_cache initializer_range attention_dropout embedding_dropout output_dropout
    rope_theta rope_parameters rope_scaling partial_rotary_factor rotary_dim
    intermediate_size mlp_ratio max_window_layers sliding_window n_group topk_group output_router_logits
    router_aux_loss_coef vision_config boi_token_id eoi_token_id image_token_id fuse_cross_entropy
    """.split()  # noqa: SIM905
)


class ConfigReader:
    """Reads fields of a config. A field whose default is None is required."""

    def __init__(self, config: Mapping[str, Any], file: str = "config.json") -> None:
        self._config = config
        self._file = file
        self._read: set[str] = set()

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = MAX_INTEGER) -> int:
        """Returns an integer from `low` to `high`, which may be written as a float, such as 8.0."""
        value = self._get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigError(f"{self._file}: {name} must be a whole number of at least {low}, not {value!r}")
        if value > high:
            raise ConfigError(f"{self._file}: {name} must be at most {high}, not {value}")
        return value

    def layers(self, name: str) -> int:
        """Returns a number of layers."""
        return self.integer(name, high=MAX_LAYERS)

    def experts(self, name: str) -> int:
        """Returns a number of experts."""
        return self.integer(name, high=MAX_EXPERTS)

    def positions(self, name: str, default: int | None = None) -> int:
        """Returns a number of positions."""
        return self.integer(name, default, high=MAX_POSITIONS)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a finite number above 0."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{self._file}: {name} must be a number above 0, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._file}: {name} must be true or false, not {value!r}")
        return value

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self._value(name) is not None

    def strings(self, name: str) -> tuple[str, ...]:
        """Returns a list of strings; empty if absent or null."""
        value = self._value(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise ConfigError(f"{self._file}: {name} must be a list of names, not {value!r}")
        return tuple(value or ())

    def ids(self, name: str, what: str = "token id") -> tuple[int, ...]:
        """Returns the non-negative integers of a field with one number or a list; empty if absent or null."""
        value = self._value(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
            raise ConfigError(f"{self._file}: {name} must be a {what} or a list of them, not {value!r}")
        return tuple(values)

    def id(self, name: str) -> int | None:
        """Returns one token id; None if absent or null."""
        values = self.ids(name)
        if len(values) > 1:
            raise ConfigError(f"{self._file}: {name} must be one token id, not {list(values)!r}")
        return values[0] if values else None

    def reject_unsupported(self, supported: Mapping[str, tuple[Any, ...]]) -> None:
        """Raises ConfigError for fields with other values than the supported ones; absent fields are accepted."""
        self._read |= supported.keys()
        for name, values in supported.items():
            if name in self._config and self._config[name] not in values:
                allowed = " or ".join(repr(v) for v in values)
                raise ConfigError(f"{self._file}: {name} is {self._config[name]!r}, but only {allowed} is supported")

    def warn_unread(self, family: str, known: frozenset[str] = frozenset()) -> None:
        """Logs a warning with the fields that were not read and are neither in `UNREAD` nor in `known`."""
        if unknown := sorted(self._config.keys() - self._read - UNREAD - known):
            log.warning("%s holds fields that the %s family does not know: %s", self._file, family, ", ".join(unknown))

    def _value(self, name: str) -> Any:
        self._read.add(name)
        return self._config.get(name)

    def _get(self, name: str, default: Any) -> Any:
        value = self._value(name)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self._file} lacks {name}, which this model family needs")
        return default


# The name that families read -> other names in transformers 4 or 5.
ALIASES = {
    "num_experts": ("num_local_experts",),
    "num_nextn_predict_layers": ("num_mtp_layers",),
    "dtype": ("torch_dtype",),
}
NESTED = ("text_config",)  # objects of config.json with further fields of the model


def canonical(config: Mapping[str, Any], file: str = "config.json") -> dict[str, Any]:
    """Returns the config with each field under the name that families read.

    A field may occur under several names if the values are equal.

    Raises:
        ConfigError: two names of a field have different values.
    """
    found = dict(config)
    for name, others in ALIASES.items():
        for other in others:
            if other not in found:
                continue
            value = found.pop(other)
            if found.get(name) is None:
                found[name] = value
            elif value is not None and _bare(value) != _bare(found[name]):
                raise ConfigError(f"{file}: {other} {value!r} contradicts {name} {found[name]!r}; remove the wrong one")
    for name in NESTED:
        if isinstance(found.get(name), Mapping):
            found[name] = canonical(found[name], f"{file}'s {name}")
    return found


def _bare(value: Any) -> Any:
    return value.removeprefix("torch.") if isinstance(value, str) else value
