"""Names of the repository that a checkpoint is from. They tell what its files do not, such as a version."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from runtime.errors import ConfigError
from runtime.weights import checkpoint_files
from runtime.weights.checkpoint_files import REPOSITORY
from runtime.weights.hub import NAME

_CACHED = "models--"  # huggingface_hub's cache has the directories models--ORG--NAME/snapshots/COMMIT
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def repository_names(model: str | None, path: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns ``org/name`` or ``name`` of a checkpoint's repository; () for the demo model.

    A later name counts only for what the names before it do not tell. The first is that of the address, or that in the
    file `REPOSITORY`, before that of the directory. A link to a directory has its own name and that of its target. The
    last is `_name_or_path` of config.json, the checkpoint that this one was trained from.

    Args:
        model: value of --model.
        path: directory of the checkpoint.
        config: content of config.json.

    Raises:
        ConfigError: The file `REPOSITORY` has something else.
    """
    return () if model is None else tuple(dict.fromkeys(filter(None, _names(model, path, config))))


def write_repository(directory: Path, name: str) -> None:
    """Writes the file `REPOSITORY` into a directory with the files of the repository ``org/name``."""
    (directory / REPOSITORY).write_text(f"{name}\n", encoding="utf-8")


def _names(model: str, path: Path, config: Mapping[str, Any]) -> Iterator[str]:
    if address := NAME.fullmatch(model):
        yield address[1]
    else:
        if (text := checkpoint_files.read_text(path, REPOSITORY, limit=1024)) is not None:
            yield _checked(text.strip(), path)
        yield _of_directory(path.absolute())
        yield _of_directory(path.resolve())
    origin = config.get("_name_or_path")
    if isinstance(origin, str):
        yield origin if _REPOSITORY.fullmatch(origin) and origin[0] != "." else _of_directory(PurePath(origin))


def _checked(name: str, path: Path) -> str:
    if not _REPOSITORY.fullmatch(name):
        raise ConfigError(f"{path / REPOSITORY} has {name[:80]!r}, not the name of a repository, org/name; correct it")
    return name


def _of_directory(path: PurePath) -> str:
    cached = path.parent.parent.name
    if path.parent.name == "snapshots" and cached.startswith(_CACHED):
        return cached.removeprefix(_CACHED).replace("--", "/")
    return path.name
