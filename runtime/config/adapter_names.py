"""Validates names of LoRA adapters, values NAME=PATH of flags, and combinations of engine flags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from runtime.errors import ConfigError

if TYPE_CHECKING:
    from runtime.config.config import EngineConfig

DEFAULT_MAX_LORAS = 8  # slots of a server whose adapters are loaded later
MAX_NAME_CHARS = 200
_ROUNDED = "are rounded may depend on how many rows there are"


def check_adapter_name(name: str) -> str:
    """Returns the name of an adapter. Raises ConfigError if it is invalid."""
    if not name or not name.isprintable() or name != name.strip() or len(name) > MAX_NAME_CHARS:
        raise ConfigError(
            f"{name[:80]!r} is not the name of an adapter: use 1 to {MAX_NAME_CHARS} printable characters"
        )
    return name


def named_adapters(values: Iterable[str], flag: str = "--lora") -> dict[str, str]:
    """Parses NAME=PATH values; returns name -> URI. Raises ConfigError for other forms and duplicate names."""
    found: dict[str, str] = {}
    for value in values:
        name, sign, uri = value.partition("=")
        if not sign or not uri:
            raise ConfigError(f"{flag} {value!r} is not of the form NAME=PATH")
        if check_adapter_name(name) in found:
            raise ConfigError(f"{flag}: the name {name!r} is given twice")
        found[name] = uri
    return found


def validate_combinations(config: EngineConfig) -> None:
    """Raises ConfigError, with the flags and the fix, for unsupported combinations."""
    if config.use_lora != (config.lora_path is not None):
        raise ConfigError("--use-lora and --lora-path go together; give both, or leave both out")
    if config.pre_merge_lora and not config.use_lora:
        raise ConfigError("--pre-merge-lora: merges the adapter of --use-lora and --lora-path; give these too")
    named_adapters(config.lora)
    if config.lora and config.default_adapter:
        raise ConfigError(
            "--lora: with --use-lora all requests have one adapter; add --pre-merge-lora, or leave --use-lora out"
        )
    if config.max_lora_rank is not None and not config.serves_adapters:
        raise ConfigError("--max-lora-rank: there are no adapters that requests name; give --lora or --max-loras too")
    if config.expert_parallel_size not in (1, config.tensor_parallel_size):
        raise ConfigError(
            f"--expert-parallel-size {config.expert_parallel_size}: must be 1 or --tensor-parallel-size, "
            f"{config.tensor_parallel_size}"
        )
    if config.eos_token_ids is not None and config.mask_token_id in config.eos_token_ids:
        raise ConfigError(f"--eos-token-ids: {config.mask_token_id} is also --mask-token-id")
    if config.sampling_mode == "edit" and config.remask_threshold:
        raise ConfigError(
            f"--remask-threshold {config.remask_threshold:g}: only the threshold algorithm masks again, not "
            "--sampling-mode edit; leave it out"
        )
    _check_exact(config)


def _check_exact(config: EngineConfig) -> None:
    many, compiles = config.tensor_parallel_size > 1, config.compile_mode is not None
    if config.deterministic and many:
        why, other = f"--deterministic: how sums of several ranks {_ROUNDED}", "--tensor-parallel-size"
    elif compiles and many:
        why, other = "--torch-compile-mode: sharded logits are not compiled", "--tensor-parallel-size"
    elif compiles and config.deterministic:
        why, other = f"--torch-compile-mode: how compiled sums {_ROUNDED}", "--deterministic"
    else:
        return
    raise ConfigError(f"{why}; leave it out, or {other}")
