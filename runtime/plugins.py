"""Loads plugins: Python files and installed packages that register strategies, algorithms, families or formats.

See docs/research/experiments.md#an-algorithm-of-your-own-in-20-minutes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from runtime.errors import ConfigError, RegisteredTwiceError

log = logging.getLogger("unmask.plugins")

ENTRY_POINT_GROUP = "unmask.plugins"
T = TypeVar("T")
_loaded: dict[str, str] = {}  # path of a file, or name of an entry point -> digest of its content, or its value
_lock = threading.Lock()


class Registry(dict[str, T]):
    """Entries of one kind by key. Plugins add entries.

    Args:
        kind: what the entries are, for messages.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        _registries.append(self)

    def add(self, key: str, entry: T) -> T:
        """Adds and returns an entry. Raises RegisteredTwiceError if the key is taken."""
        if key in self:
            raise RegisteredTwiceError(f"{self.kind} {key!r} is registered twice")
        self[key] = entry
        return entry


_registries: list[Registry[Any]] = []


def load_plugins(files: Iterable[str]) -> None:
    """Executes files of --plugin, and loads the entry points of installed packages, once per process.

    An entry point ``NAME = "MODULE"`` is imported; ``NAME = "MODULE:FUNCTION"`` is also called.

    Raises:
        ConfigError: A file is missing or was changed after it was loaded, or a plugin raises or registers a key that
            exists. Nothing of that plugin stays registered.
    """
    with _lock:
        for entry in entry_points(group=ENTRY_POINT_GROUP):
            if entry.name not in _loaded:
                with _naming(f"entry point {entry.name!r} of {ENTRY_POINT_GROUP}", entry.value.partition(":")[0]):
                    loaded = entry.load()
                    if not isinstance(loaded, ModuleType):
                        loaded()
                _loaded[entry.name] = entry.value
        for file in files:
            _load_file(Path(file))


def digest_of(file: str) -> str:
    """Returns the SHA-256 of a plugin. Raises ConfigError if it cannot be read."""
    return hashlib.sha256(_read(Path(file))).hexdigest()


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # reading a pipe or a device such as /dev/zero may not end
            raise OSError("it is not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"--plugin {path}: cannot be read: {error.strerror or error}; give the path of a Python file"
        ) from None


def _load_file(path: Path) -> None:
    source, where = _read(path), str(path.absolute())
    digest = hashlib.sha256(source).hexdigest()
    if where in _loaded:
        if _loaded[where] != digest:
            raise ConfigError(f"--plugin {path}: was changed after this process loaded it; start a new process")
        return
    name = f"unmask_plugin_{path.stem}_{digest[:8]}"
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None:
        raise ConfigError(f"--plugin {path}: is not a Python file; give one whose name ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    try:
        with _naming(f"--plugin {path}", where):
            # not through the loader, which would read the file again, or a cached .pyc file of an older version
            exec(compile(source, where, "exec"), module.__dict__)
    except ConfigError:
        del sys.modules[name]
        raise
    _loaded[where] = digest


@contextlib.contextmanager
def _naming(name: str, where: str) -> Iterator[None]:
    """Turns exceptions into ConfigErrors that name the plugin, and restores the registries.

    Args:
        name: Name of the plugin in messages.
        where: Its file, whose line the message names.
    """
    before = [(registry, dict(registry)) for registry in _registries]
    try:
        yield
    except RegisteredTwiceError as error:
        _restore(before)
        raise ConfigError(f"{name}: {error}; choose a key that is not taken") from None
    except Exception as error:
        _restore(before)
        log.error("%s: raised an exception on import", name, exc_info=error)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == where]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        at = "" if line is None else f"line {line} "
        reason = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
        raise ConfigError(f"{name}: {at}raised {type(error).__name__}: {reason}; correct the file") from None


def _restore(copies: list[tuple[Registry[Any], dict[str, Any]]]) -> None:
    for registry, content in copies:
        registry.clear()
        registry.update(content)
