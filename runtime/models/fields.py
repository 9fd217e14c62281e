"""Typed reading of config.json: each field is checked, and a wrong one gets a sentence that names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runtime.errors import ConfigError


class Fields:
    """A view of config.json's fields. A default of None means that the field is required."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def whole(self, name: str, default: int | None = None, *, low: int = 1) -> int:
        """A whole number of at least `low`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigError(f"config.json: {name} must be a whole number of at least {low}, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ConfigError(f"config.json: {name} must be a number above 0, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"config.json: {name} must be true or false, not {value!r}")
        return value

    def only(self, built: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse fields that hold anything but the values that are built (an absent field is fine)."""
        for name, values in built.items():
            if name in self._config and self._config[name] not in values:
                wanted = " or ".join(repr(v) for v in values)
                raise ConfigError(f"config.json: {name} is {self._config[name]!r}, but only {wanted} is built")

    def _get(self, name: str, default: Any) -> Any:
        value = self._config.get(name)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"config.json lacks {name}, which this model family needs")
        return default
