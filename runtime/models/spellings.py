"""Maps the field names of config.json that transformers 4 and 5 write to one name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.errors import ConfigError

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
