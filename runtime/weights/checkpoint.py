"""A checkpoint directory: config.json, generation_config.json, tokenizer files and safetensors.

All files are read as data, through ``runtime.weights.checkpoint_files``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from safetensors import SafetensorError, safe_open

from runtime.errors import ConfigError
from runtime.weights import checkpoint_files, hub

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    import torch

    from runtime.parameters.sharding import Index
    from runtime.weights.shard_stream import TensorRange

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# First letters of other safetensors files beside shards without an index: adapters of PEFT and MLX, the weights in the
# authors' own format, and states of a training.
OTHER_FILES = ("adapter", "consolidated", "optimizer")


class Slice(Protocol):
    """A tensor of an open file, read lazily."""

    def get_shape(self) -> list[int]: ...
    def __getitem__(self, box: Index) -> torch.Tensor: ...


class TensorFile(Protocol):
    """An open safetensors file of the library."""

    def keys(self) -> list[str]: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...
    def get_slice(self, name: str) -> Slice: ...


@dataclass(frozen=True)
class Checkpoint:
    """A local checkpoint directory."""

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]

    @property
    def revision(self) -> str | None:
        """The commit if this is a snapshot in the hub's cache, whose directories are named by commits."""
        name = self.path.name
        return name if self.path.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", name) else None

    def read_json(self, file: str) -> dict[str, Any]:
        """Returns the object in `file`, {} without one. Raises ConfigError for anything but a JSON object."""
        return checkpoint_files.read_json(self.path, file) or {}

    @contextmanager
    def tensors(self, file: str) -> Iterator[TensorFile]:
        """Opens the safetensors file `file`. Raises ConfigError if it is not readable."""
        with checkpoint_files.opened_path(self.path, file) as path:
            if path is None:
                raise ConfigError(f"{self.path / file} is gone; download the checkpoint again")
            with open_tensors(path, self.path / file) as handle:
                yield handle

    @contextmanager
    def tensor_bytes(self, file: str) -> Iterator[tuple[int, dict[str, TensorRange]]]:
        """Opens the safetensors file `file` for reading its bytes, after `tensors` opened it without an error.

        Yields its descriptor, and the range of each tensor.
        """
        from runtime.weights.shard_stream import tensor_ranges

        with checkpoint_files.opened(self.path, file) as descriptor:
            if descriptor is None:
                raise ConfigError(f"{self.path / file} is gone; download the checkpoint again")
            yield descriptor, tensor_ranges(descriptor, str(self.path / file))

    def tensor_files(self) -> dict[str, str]:
        """Returns tensor name -> safetensors file. Raises ConfigError if a shard is missing or unreadable."""
        shards, listed = self._weight_files()
        found: dict[str, str] = {}
        for file in shards:
            with self.tensors(file) as handle:
                names = list(handle.keys())
            for name in names:
                if listed is not None and listed.get(name) != file:
                    raise ConfigError(
                        f"{self.path / file} holds tensor {name!r}, which {INDEX_FILE} does not list there; "
                        "download the checkpoint again, or correct the index"
                    )
                if name in found:
                    raise ConfigError(f"tensor {name!r} is in both {found[name]} and {file} of {self.path}")
                found[name] = file
        if listed is not None and (lost := [n for n in listed if n not in found]):
            raise ConfigError(
                f"{self.path / INDEX_FILE} lists {summary(lost)}, which its shards do not hold; "
                "download the checkpoint again, or correct the index"
            )
        return found

    def log_ignored_files(self) -> None:
        """Logs the safetensors files that are not loaded. Raises ConfigError as `tensor_files`, without opening any."""
        shards, listed = self._weight_files()
        why = f"{INDEX_FILE} lists other files" if listed is not None else "no shard of the weights"
        for name in self._safetensors():
            if name not in shards:
                # this one has the weights too, perhaps others
                level = logging.WARNING if name == SINGLE_FILE else logging.INFO
                log.log(level, "%s ignored: %s", self.path / name, why)

    def _weight_files(self) -> tuple[list[str], dict[str, str] | None]:
        if checkpoint_files.has(self.path, SINGLE_FILE) and not checkpoint_files.has(self.path, INDEX_FILE):
            return [SINGLE_FILE], None
        if checkpoint_files.has(self.path, INDEX_FILE):
            listed = self.read_json(INDEX_FILE).get("weight_map")
            if not isinstance(listed, dict) or not all(isinstance(v, str) for v in listed.values()):
                raise ConfigError(f"{self.path / INDEX_FILE} has no weight_map of tensor names to files")
            listed = {name: os.path.normpath(file) for name, file in listed.items()}  # removes ./ from names
            shards, lost = sorted(set(listed.values())), []
            for file in shards:
                with checkpoint_files.opened(self.path, file) as descriptor:
                    if descriptor is None:
                        lost.append(file)
            if lost:
                raise ConfigError(f"{self.path} lacks {summary(lost)}, which {INDEX_FILE} lists; download it again")
            return shards, listed
        shards = [name for name in self._safetensors() if not name.startswith(OTHER_FILES)]
        if not shards:
            others = f", only {summary(found)}" if (found := self._safetensors()) else ""
            raise ConfigError(
                f"{self.path} holds no safetensors file of weights{others}; --model needs weights in that format, and "
                "--lora takes adapters"
            )
        return shards, None

    def _safetensors(self) -> list[str]:
        return sorted(path.name for path in self.path.glob("*.safetensors"))


def resolve_checkpoint(model: str | None, progress: hub.Progress | None = None) -> Checkpoint:
    """Returns the checkpoint that `--model` names (docs/reference/flags.md).

    Args:
        model: A local directory, ``hf://org/name[@revision]`` (downloaded into huggingface_hub's cache), or None for
            the demo checkpoint in the package.
        progress: Called as ``("download", bytes_done, bytes_total)`` during a download.

    Raises:
        ConfigError: There is no such directory or repository, or it has no readable config.json or no weights.
    """
    if model is None:
        path = Path(__file__).resolve().parent.parent / "demo" / "checkpoint"
        if not path.is_dir():
            raise ConfigError("this copy of unmask has no demo checkpoint; name a model with --model")
        return _open(path)
    if model.startswith("hf://"):
        return _open(hub.download(model, hub.PATTERNS, progress))
    return _open(checkpoint_files.find_directory(model, f"--model {model!r}"))


def resolve_text_files(model: str | None) -> Path:
    """Returns the checkpoint's directory; of a hub repository only files other than weights are downloaded."""
    if model is not None and model.startswith("hf://"):
        return hub.download(model, hub.TEXT_PATTERNS)
    return resolve_checkpoint(model).path


def summary(names: list[str], limit: int = 4) -> str:
    """Returns a few names and the count of the rest: ``"'a', 'b' and 3 more"``."""
    shown = ", ".join(repr(n) for n in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _open(path: Path) -> Checkpoint:
    config = checkpoint_files.read_json(path, "config.json")
    if config is None:
        raise ConfigError(f"{path} holds no config.json; --model needs a checkpoint directory")
    checkpoint = Checkpoint(path, config, checkpoint_files.read_json(path, "generation_config.json") or {})
    checkpoint.log_ignored_files()
    return checkpoint


def open_tensors(path: str, name: object) -> Any:
    """Opens a safetensors file; the result is a context that enters a `TensorFile`. `name` is its name in the error."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{name} is not a readable safetensors file: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
