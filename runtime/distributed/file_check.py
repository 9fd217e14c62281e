"""Digests of the files that all ranks of an engine must have: checkpoint, adapters of the flags, and plugins."""

from __future__ import annotations

from runtime.config import EngineConfig
from runtime.lora.adapter_checkpoint import resolve_adapter
from runtime.plugins import digest_of
from runtime.weights import resolve_checkpoint
from runtime.weights.checkpoint_digest import file_digests
from runtime.weights.hub import Progress


def file_digests_of(config: EngineConfig, progress: Progress | None = None) -> dict[str, str]:
    """Returns file name -> digest; adapters' names prefix their files. Raises ConfigError for missing ones."""
    found = file_digests(resolve_checkpoint(config.model, progress).path)
    adapters = dict(config.adapters)
    if config.lora_path is not None:
        adapters["--lora-path"] = config.lora_path
    for name, uri in adapters.items():
        found |= {f"{name}/{file}": digest for file, digest in file_digests(resolve_adapter(uri)).items()}
    return found | {f"--plugin {file}": digest_of(file) for file in config.plugin}
