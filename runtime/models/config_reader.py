"""Typed access to config.json and similar files. Unifies the field names of transformers 4 and 5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runtime.errors import ConfigError

# Larger numbers are errors, detected before anything of such a size is allocated.
MAX_INTEGER, MAX_LAYERS, MAX_EXPERTS, MAX_POSITIONS = 2**22, 10_000, 2**14, 2**24


class ConfigReader:
    """Reads fields of a config. A field whose default is None is required."""

    def __init__(self, config: Mapping[str, Any], file: str = "config.json") -> None:
        self._config = config
        self._file = file

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = MAX_INTEGER) -> int:
        """An integer from `low` to `high`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigError(f"{self._file}: {name} must be a whole number of at least {low}, not {value!r}")
        if value > high:
            raise ConfigError(f"{self._file}: {name} must be at most {high}, not {value}")
        return value

    def layers(self, name: str) -> int:
        """A number of layers."""
        return self.integer(name, high=MAX_LAYERS)

    def experts(self, name: str) -> int:
        """A number of experts."""
        return self.integer(name, high=MAX_EXPERTS)

    def positions(self, name: str, default: int | None = None) -> int:
        """A number of positions."""
        return self.integer(name, default, high=MAX_POSITIONS)

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
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
        return self._config.get(name) is not None

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if absent or null."""
        value = self._config.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise ConfigError(f"{self._file}: {name} must be a list of names, not {value!r}")
        return tuple(value or ())

    def ids(self, name: str, what: str = "token id") -> tuple[int, ...]:
        """Integers from 0: one, a list, or none if absent or null."""
        value = self._config.get(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
            raise ConfigError(f"{self._file}: {name} must be a {what} or a list of them, not {value!r}")
        return tuple(values)

    def id(self, name: str) -> int | None:
        """One token id, or None if absent or null."""
        values = self.ids(name)
        if len(values) > 1:
            raise ConfigError(f"{self._file}: {name} must be one token id, not {list(values)!r}")
        return values[0] if values else None

    def reject_unsupported(self, supported: Mapping[str, tuple[Any, ...]]) -> None:
        """Raises ConfigError for fields with other values than the supported ones; absent fields are accepted."""
        for name, values in supported.items():
            if name in self._config and self._config[name] not in values:
                allowed = " or ".join(repr(v) for v in values)
                raise ConfigError(f"{self._file}: {name} is {self._config[name]!r}, but only {allowed} is built")

    def _get(self, name: str, default: Any) -> Any:
        value = self._config.get(name)
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
                raise ConfigError(
                    f"{file}: {other} {value!r} contradicts {name} {found[name]!r}; keep the one that is right"
                )
    for name in NESTED:
        if isinstance(found.get(name), Mapping):
            found[name] = canonical(found[name], f"{file}'s {name}")
    return found


def _bare(value: Any) -> Any:
    return value.removeprefix("torch.") if isinstance(value, str) else value
