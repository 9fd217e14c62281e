"""A checkpoint is a directory: config.json, generation_config.json, tokenizer files, safetensors. All read as data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from runtime.errors import ConfigError
from runtime.weights import hub

INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """A local checkpoint directory."""

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]

    def read_json(self, file: str) -> dict[str, Any]:
        """The object in `file`, {} where there is no such file; ConfigError for anything but a JSON object."""
        return read_json(self.path / file)

    def tensor_files(self) -> dict[str, Path]:
        """Tensor name -> the safetensors file that holds it. ConfigError if a shard is missing or unreadable."""
        files, listed = self._weight_files()
        found: dict[str, Path] = {}
        for file in files:
            for name in _tensor_names(file):
                if listed is not None and listed.get(name) != file.name:
                    raise ConfigError(f"{file} holds tensor {name!r}, which {INDEX_FILE} does not list there")
                if name in found:
                    raise ConfigError(f"tensor {name!r} is in both {found[name].name} and {file.name} of {self.path}")
                found[name] = file
        if listed is not None and (lost := [n for n in listed if n not in found]):
            raise ConfigError(f"{self.path / INDEX_FILE} lists {summary(lost)}, which its shards do not hold")
        return found

    def _weight_files(self) -> tuple[list[Path], dict[str, str] | None]:
        single = self.path / "model.safetensors"
        if single.is_file():
            return [single], None
        if (self.path / INDEX_FILE).is_file():
            listed = self.read_json(INDEX_FILE).get("weight_map")
            if not isinstance(listed, dict) or not all(isinstance(v, str) for v in listed.values()):
                raise ConfigError(f"{self.path / INDEX_FILE} has no weight_map of tensor names to files")
            files = [self.path / file for file in sorted(set(listed.values()))]
            if lost := [f.name for f in files if not f.is_file()]:
                raise ConfigError(f"{self.path} lacks {summary(lost)}, which {INDEX_FILE} lists; download it again")
            return files, listed
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise ConfigError(f"{self.path} holds no safetensors file; --model needs weights in that format")
        return files, None


def resolve_checkpoint(model: str | None, progress: hub.Progress | None = None) -> Checkpoint:
    """The checkpoint that `--model` names (runtime.md 1).

    Args:
        model: a local directory, ``hf://org/name[@revision]`` (downloaded into huggingface_hub's cache), or None for
            the demo checkpoint shipped in the package.
        progress: hears of a download, ``("download", bytes_done, bytes_total)``.

    Raises:
        ConfigError: there is no such directory or repository, or it holds no readable config.json or no weights.
    """
    if model is None:
        path = Path(__file__).resolve().parent.parent / "demo" / "checkpoint"
        if not path.is_dir():
            raise ConfigError("this copy of unmask holds no demo checkpoint; name a model with --model")
        return _open(path)
    if model.startswith("hf://"):
        return _open(hub.download(model, hub.PATTERNS, progress))
    path = Path(model).expanduser()
    if not path.is_dir():
        raise ConfigError(f"--model {model!r} is not a directory (a hub repository is written hf://org/name)")
    return _open(path)


def resolve_text_files(model: str | None) -> Path:
    """The checkpoint's directory, for who reads no weights: of a hub's repository only the other files are fetched."""
    if model is not None and model.startswith("hf://"):
        return hub.download(model, hub.TEXT_PATTERNS)
    return resolve_checkpoint(model).path


def read_json(file: Path) -> dict[str, Any]:
    """The object in `file`, {} where there is no such file; ConfigError for anything but a JSON object."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} must hold a JSON object, not a {type(value).__name__}")
    return value


def summary(names: list[str], limit: int = 4) -> str:
    """``"'a', 'b' and 3 more"``: a few names and the count of the rest."""
    shown = ", ".join(repr(n) for n in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _open(path: Path) -> Checkpoint:
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} holds no config.json; --model needs a checkpoint directory")
    checkpoint = Checkpoint(path, read_json(path / "config.json"), read_json(path / "generation_config.json"))
    checkpoint._weight_files()
    return checkpoint


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _tensor_names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as handle:
            return list(handle.keys())
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} is not a readable safetensors file: {_first_line(error)}") from error
