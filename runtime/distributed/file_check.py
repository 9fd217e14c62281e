"""What every rank has to see alike of an engine: the checkpoint, and the adapters that the flags name."""

from __future__ import annotations

from runtime.config import EngineConfig
from runtime.lora.adapter_checkpoint import resolve_adapter
from runtime.weights import resolve_checkpoint
from runtime.weights.checkpoint_digest import digests
from runtime.weights.hub import Progress


def files_of(config: EngineConfig, progress: Progress | None = None) -> dict[str, str]:
    """A digest of each file; an adapter's are under its name. ConfigError for what is not there."""
    found = digests(resolve_checkpoint(config.model, progress).path)
    adapters = dict(config.adapters)
    if config.lora_path is not None:
        adapters["--lora-path"] = config.lora_path
    for name, uri in adapters.items():
        found |= {f"{name}/{file}": digest for file, digest in digests(resolve_adapter(uri)).items()}
    return found
