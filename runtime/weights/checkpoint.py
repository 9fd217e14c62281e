"""A checkpoint directory: config.json, generation_config.json, tokenizer files and safetensors.

All files are read as data, through ``runtime.weights.checkpoint_files``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
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
QUANTIZATION = "quantization_config"  # of config.json; tools may write it to a file of its own
PICKLED = "pytorch_model*"  # files of torch.save, whose loading may run code
MODELOPT_FILE = "hf_quant_config.json"
GPTQ_FILE = "quantize_config.json"
# First letters of other safetensors files beside shards without an index: adapters of PEFT and MLX, the weights in the
# authors' own format, and states of a training.
OTHER_FILES = ("adapter", "consolidated", "optimizer")

_NUMBERED = re.compile(r"(?P<prefix>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")
# Files without which a checkpoint loads -> what their absence means.
_OPTIONAL = {
    "tokenizer_config.json": "no tokenizer_config.json, so special tokens may be unknown",
    "generation_config.json": "no generation_config.json, so its end tokens and sampling defaults are not used",
    "chat_template.jinja": "no chat template, so chat requests are refused",
}


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

    def known_tensors(self) -> Collection[str] | None:
        """Returns the names of the tensors, from the index or the files themselves; None if neither is on the disk.

        Raises:
            ConfigError: As `read_index`, or as `tensor_files` without an index.
        """
        listed = self.read_index()
        if listed is None and self._safetensors():
            return self.tensor_files().keys()
        return None if listed is None else listed.keys()

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
        listed = self.read_index()
        if listed is None:
            return unlisted_shards(self._safetensors(), str(self.path)), None
        shards, lost = sorted(set(listed.values())), []
        for file in shards:
            with checkpoint_files.opened(self.path, file) as descriptor:
                if descriptor is None:
                    lost.append(file)
        if lost:
            raise ConfigError(f"{self.path} lacks {summary(lost)}, which {INDEX_FILE} lists; download it again")
        return shards, listed

    def read_index(self) -> dict[str, str] | None:
        """Returns tensor name -> file as in the index; None without an index. Raises ConfigError for an invalid one."""
        if not checkpoint_files.has(self.path, INDEX_FILE):
            return None
        listed = self.read_json(INDEX_FILE).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(v, str) for v in listed.values()):
            raise ConfigError(f"{self.path / INDEX_FILE} has no weight_map of tensor names to files")
        return {name: os.path.normpath(file) for name, file in listed.items()}  # removes ./ from names

    def weight_files(self) -> list[str]:
        """Returns the names of the safetensors files that are loaded. Raises ConfigError if one is missing."""
        shards, _ = self._weight_files()
        return shards

    def _safetensors(self) -> list[str]:
        return sorted(path.name for path in self.path.glob("*.safetensors"))


def unlisted_shards(names: Iterable[str], place: str) -> list[str]:
    """Returns which files have the weights of a checkpoint without an index.

    They are `SINGLE_FILE`, else all safetensors files in the directory itself except `OTHER_FILES`. If all of them have
    a number, none may be missing.

    Args:
        names: The files of the checkpoint.
        place: The checkpoint, as errors name it.

    Raises:
        ConfigError: There are none, or a numbered shard is missing.
    """
    found = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    own = [name for name in found if not name.startswith(OTHER_FILES)]
    if SINGLE_FILE in own:
        return [SINGLE_FILE]
    if not own:
        others = f", only {summary(found)}" if found else ""
        raise ConfigError(
            f"{place} holds no safetensors file of weights{others}; --model needs weights in that format, and --lora "
            "takes adapters"
        )
    matches = {name: match for name in own if (match := _NUMBERED.fullmatch(name))}
    if len(matches) < len(own):
        return own
    series: dict[tuple[str, int], dict[int, str]] = {}
    for name, match in matches.items():
        series.setdefault((match["prefix"], int(match["count"])), {})[int(match["number"])] = name
    for (_, count), files in series.items():
        begin = 0 if 0 in files else 1
        if lost := [str(number) for number in range(begin, begin + count) if number not in files]:
            first = files[min(files)]
            raise ConfigError(
                f"{place} has {first!r}, but lacks number {', '.join(lost[:4])} of {count}; download it again"
            )
    return own


def resolve_checkpoint(model: str | None, progress: hub.Progress | None = None) -> Checkpoint:
    """Returns the checkpoint that `--model` names (docs/reference/flags.md), with all its files.

    Args:
        model: A local directory, ``hf://org/name[@revision]`` (downloaded into huggingface_hub's cache), or None for
            the demo checkpoint in the package.
        progress: See `fetch_weights`.

    Raises:
        ConfigError: There is no such directory or repository, or it has no readable config.json or no weights.
    """
    checkpoint = open_checkpoint(model)
    fetch_weights(model, checkpoint, progress)
    return checkpoint


def open_checkpoint(model: str | None, *, has_weights: bool = True) -> Checkpoint:
    """Returns the checkpoint that `--model` names; of a hub repository only files other than weights are downloaded.

    Args:
        model: As for `resolve_checkpoint`.
        has_weights: Whether a directory without weights is refused.

    Raises:
        ConfigError: As `resolve_checkpoint`, except for missing weights in a repository.
    """
    if model is None:
        path = Path(__file__).resolve().parent.parent / "demo" / "checkpoint"
        if not path.is_dir():
            raise ConfigError("this copy of unmask has no demo checkpoint; name a model with --model")
        return _open(path, has_weights=has_weights)
    if model.startswith("hf://"):
        return _open_text(model, hub.download(model, hub.TEXT_PATTERNS, hub.SUBFOLDERS))
    directory = checkpoint_files.find_directory(model, f"--model {model!r}")
    if not checkpoint_files.has(directory, "config.json") and checkpoint_files.has(directory / "models", "config.json"):
        directory /= "models"  # an image with a model has it there
    return _open(directory, has_weights=has_weights)


def fetch_text(repository: hub.Repository, to: Path) -> Checkpoint:
    """Downloads the files other than weights into the directory `to`. Raises ConfigError as `open_checkpoint`."""
    if names := repository.text_files():
        repository.fetch(names, to=to)
    return _open_text(repository.model, to)


def resolve_text_files(model: str | None) -> Path:
    """Returns the checkpoint's directory; of a hub repository only files other than weights are downloaded."""
    return open_checkpoint(model).path


@dataclass(frozen=True)
class MissingWeights:
    """Files of weights that have to be downloaded."""

    repository: hub.Repository
    names: tuple[str, ...]

    def fetch(self, progress: hub.Progress | None = None) -> None:
        """Downloads them. Raises ConfigError if the disk has no space for them, or the download failed."""
        repository = self.repository
        if repository.unavailable:
            raise ConfigError(
                f"--model {repository.model!r} could not be fetched: the cache lacks {summary(list(self.names))}, and "
                f"{repository.unavailable}"
            )
        repository.fetch(self.names, progress)


def find_missing_weights(model: str | None, checkpoint: Checkpoint) -> MissingWeights | None:
    """Returns which weights of a hub repository are not in the cache; None if all of them are.

    Args:
        model: As for `resolve_checkpoint`.
        checkpoint: Result of `open_checkpoint`.

    Raises:
        ConfigError: The repository has no weights, or nothing lists its files and the cache lacks some.
    """
    if model is None or not model.startswith("hf://"):
        return None
    try:
        repository = hub.Repository.of(model, checkpoint.path.name)
    except hub.HubUnavailable as error:
        _check_unlisted(model, checkpoint, str(error))
        return None
    names = listed_weights(repository, checkpoint)
    missing = tuple(name for name in names if not os.path.exists(checkpoint.path / name))
    return MissingWeights(repository, missing) if missing else None


def listed_weights(repository: hub.Repository, checkpoint: Checkpoint) -> list[str]:
    """Returns the files of a repository that hold the weights of a checkpoint. Raises ConfigError if it lacks one."""
    listed = checkpoint.read_index()
    if listed is None:
        return unlisted_shards(repository.files, repository.model)
    names = sorted(set(listed.values()))
    if lost := [name for name in names if name not in repository.files]:
        raise ConfigError(
            f"--model {repository.model!r} lacks {summary(lost)}, which {INDEX_FILE} lists; use another revision"
        )
    return names


def check_weight_format(model: str | None, checkpoint: Checkpoint) -> None:
    """Checks that weights which may not be on the disk are in safetensors, if anything lists the files.

    A directory without weights passes, because they may follow.

    Args:
        model: As for `resolve_checkpoint`.
        checkpoint: Result of `open_checkpoint`.

    Raises:
        ConfigError: As `listed_weights`, or a directory has only weights of torch.save.
    """
    if model is not None and model.startswith("hf://"):
        with suppress(hub.HubUnavailable):
            listed_weights(hub.Repository.of(model, checkpoint.path.name), checkpoint)
    elif any(checkpoint.path.glob(PICKLED)) and checkpoint.read_index() is None:
        unlisted_shards([path.name for path in checkpoint.path.iterdir()], str(checkpoint.path))


def fetch_weights(model: str | None, checkpoint: Checkpoint, progress: hub.Progress | None = None) -> None:
    """Downloads the weights of a hub repository that are not in the cache.

    Args:
        model: As for `resolve_checkpoint`.
        checkpoint: Result of `open_checkpoint`.
        progress: Called as ``("download", bytes_done, bytes_total)`` during a download.

    Raises:
        ConfigError: As `find_missing_weights` and `MissingWeights.fetch`.
    """
    missing = find_missing_weights(model, checkpoint)
    if missing is not None:
        missing.fetch(progress)


def _check_unlisted(model: str, checkpoint: Checkpoint, reason: str) -> None:
    """Checks a copy in the cache whose files nothing lists. Raises ConfigError if it lacks weights."""
    try:
        checkpoint.weight_files()
    except ConfigError as error:
        raise ConfigError(f"--model {model!r} could not be fetched: {error}, and {reason}") from None
    path = checkpoint.path
    lacks = [consequence for file, consequence in _OPTIONAL.items() if not checkpoint_files.has(path, file)]
    tokenizer = checkpoint.read_json("tokenizer_config.json")
    if "chat_template" in tokenizer or checkpoint_files.has(path, "chat_template.json"):
        lacks = [consequence for consequence in lacks if "chat" not in consequence]
    if lacks:
        log.warning(
            "--model %s: the copy in the cache may be incomplete, as %s. It has %s. If the repository has these files, "
            "start once with the hub",
            model, reason, "; ".join(lacks),
        )  # fmt: skip


def summary(names: list[str], limit: int = 4) -> str:
    """Returns a few names and the count of the rest: ``"'a', 'b' and 3 more"``."""
    shown = ", ".join(repr(n) for n in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _open_text(model: str, path: Path) -> Checkpoint:
    """Opens the directory with the files of a repository other than weights."""
    if not checkpoint_files.has(path, "config.json"):
        raise ConfigError(
            f"{model} has no config.json, so it is no checkpoint in the format of Hugging Face (GGUF is not "
            "supported); name another repository"
        )
    return _open(path, has_weights=False)


def _open(path: Path, *, has_weights: bool) -> Checkpoint:
    config = checkpoint_files.read_json(path, "config.json")
    if config is None:
        raise ConfigError(f"{path} holds no config.json; --model needs a checkpoint directory")
    config = _with_quantization(path, config)
    checkpoint = Checkpoint(path, config, checkpoint_files.read_json(path, "generation_config.json") or {})
    if has_weights:
        checkpoint.log_ignored_files()
    return checkpoint


def _with_quantization(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Returns config.json with the quantization of a file of its own.

    That of ModelOpt may repeat fields of config.json. That of GPTQ is not read if config.json has a quantization.
    """
    stated = config.get(QUANTIZATION)
    if stated is None and (gptq := checkpoint_files.read_json(path, GPTQ_FILE)) is not None:
        return config | {QUANTIZATION: {"quant_method": "gptq"} | gptq}
    own = checkpoint_files.read_json(path, MODELOPT_FILE)
    if own is None or not (stated is None or isinstance(stated, dict)):
        return config
    if stated is not None and stated.get("quant_method", "modelopt") != "modelopt":
        return config
    fields = own.get("quantization")
    if not isinstance(fields, dict):
        raise ConfigError(f"{path / MODELOPT_FILE} has no object quantization; it says how weights are quantized")
    known = {name: value for name, value in (stated or {}).items() if value is not None}
    return config | {QUANTIZATION: {"quant_method": "modelopt"} | fields | known}


def open_tensors(path: str, name: object) -> Any:
    """Opens a safetensors file; the result is a context that enters a `TensorFile`. `name` is its name in the error."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{name} is not a readable safetensors file: {_first_line(error)}") from None
    except (RuntimeError, MemoryError) as error:  # a file larger than the memory that Linux or a limit lets it map
        raise ConfigError(
            f"{name} cannot be mapped into memory: {_first_line(error)}; give it more memory, or use smaller shards"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
