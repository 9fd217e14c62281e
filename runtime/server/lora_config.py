"""--lora-config: which adapters a server has, by a file or a directory that changes while it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.config.adapters import check_adapter_name
from runtime.errors import ConfigError
from runtime.weights.checkpoint_files import read_flag_file

LIMIT = 1 << 20  # bytes of a file
FLAG = "--lora-config"


def read_lora_config(path: str) -> dict[str, str]:
    """Name -> where it is: a YAML or JSON mapping, or a directory with a file for each name, as ConfigMaps are mounted.
    ConfigError for what is neither."""
    if not os.path.isdir(path):
        return _mapping(path, read_flag_file(path, FLAG, LIMIT))
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    except OSError as error:
        raise ConfigError(f"{FLAG}: {path} cannot be read: {error.strerror}") from None
    found: dict[object, object] = {name: read_flag_file(Path(path) / name, FLAG, LIMIT).strip() for name in names}
    return _checked(path, found)


def _mapping(path: str, text: str) -> dict[str, str]:
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"{FLAG}: {path} is neither YAML nor JSON") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{FLAG}: {path} must map names of adapters to where they are")
    return _checked(path, data)


def _checked(path: str, data: Mapping[Any, Any]) -> dict[str, str]:
    found = {}
    for name, uri in data.items():
        if not isinstance(name, str) or not isinstance(uri, str) or not uri:
            raise ConfigError(f"{FLAG}: {path} must map names of adapters to where they are, and {name!r} does not")
        found[check_adapter_name(name)] = uri
    return found
