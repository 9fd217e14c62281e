"""Converts tokenizers to ``tokenizer.json`` in a child process, and caches results by the content of their files."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.errors import ConfigError
from runtime.weights import checkpoint_files
from runtime.weights.tokenizer_formats import FILE, REMEDY, SETTING_FILES, TEMPORARY_VARIABLE, use_temporary_directory

log = logging.getLogger(__name__)

VERSION = 2  # of the conversion; a new number invalidates cached files
CONVERSION_SECONDS = 900.0  # wall time; the child limits its CPU time itself
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN")

_lock = threading.Lock()


def converted(directory: Path, vocabularies: Sequence[str]) -> dict[str, Any]:
    """Returns the tokenizer in the files `vocabularies` of a checkpoint, from the cache if it was converted before.

    ConfigError if a file cannot be read or the tokenizer cannot be converted.
    """
    inputs = {name: data for name in (*vocabularies, *SETTING_FILES) if (data := _content(directory, name)) is not None}
    key = _key(inputs)
    with _lock:
        return _find(key) or _convert_once(directory, inputs, key)


def _find(key: str) -> dict[str, Any] | None:
    """Returns the converted tokenizer from the cache or the temporary directory."""
    for directory in (cache_directory(), _temporary_directory()):
        found = None if directory is None else _cached(directory / f"{key}.json")
        if found is not None:
            return found
    return None


def _content(directory: Path, name: str) -> bytes | None:
    """Reads an input file. Raises ConfigError if it is larger than a JSON file may be."""
    with checkpoint_files.opened(directory, name) as descriptor:
        if descriptor is None:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(checkpoint_files.JSON_BYTES + 1)
    if len(data) > checkpoint_files.JSON_BYTES:
        raise ConfigError(
            f"{directory / name} is larger than {checkpoint_files.JSON_BYTES} bytes, the limit for such a file"
        )
    return data


def _key(inputs: Mapping[str, bytes]) -> str:
    """Returns the cache key: a digest of the input files and the versions of the converters."""
    digest = hashlib.sha256(f"{VERSION}".encode())
    for package in ("transformers", "tokenizers", "sentencepiece", "tiktoken"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"\0{package}={importlib.metadata.version(package)}".encode())
    for name, data in sorted(inputs.items()):
        digest.update(f"\0{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def cache_directory() -> Path | None:
    """Returns the cache directory; None if the user has no home directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "unmask" / "tokenizers"
    except RuntimeError:  # of Path.home
        return None


def _temporary_directory() -> Path | None:
    path = os.environ.get(TEMPORARY_VARIABLE)
    return Path(path) if path else None


def _cached(path: Path) -> dict[str, Any] | None:
    """Returns the object in a cached file; None if there is none, or another user wrote it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
            return None
        try:
            data = json.loads(file.read())
        except (OSError, ValueError):
            return None
    return data if isinstance(data, dict) else None


def _convert_once(directory: Path, inputs: Mapping[str, bytes], key: str) -> dict[str, Any]:
    """Converts, unless another process has done so while holding the lock of the cache."""
    with contextlib.ExitStack() as stack:
        target = _writable(stack, key)
        if found := _find(key):  # another process held the lock
            return found
        log.info("converting the tokenizer of %s to tokenizer.json", directory)
        text = _run(directory, inputs)
        _store(text, target, key)
        data: dict[str, Any] = json.loads(text)
        return data


def _store(text: str, target: Path | None, key: str) -> None:
    """Writes a converted tokenizer to the cache, or else to a temporary file, which other processes read too.

    Args:
        target: file of the cache, whose file system may be full; None if no cache directory can be written.
    """
    if target is None:
        log.info("converted tokenizer: temporary file, because no cache directory can be written")
    else:
        try:
            _replace(target, text)
            return
        except OSError as error:
            log.warning("converted tokenizer not cached: %s: %s", target, error.strerror)
    directory = _temporary_directory() or _own_temporary_directory()
    if target is not None and target.parent == directory:
        return
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(directory / f"{key}.json", text)
    except OSError as error:
        log.warning("converted tokenizer not stored, each process converts it: %s: %s", directory, error.strerror)


def _writable(stack: contextlib.ExitStack, key: str) -> Path | None:
    """Returns the file to write, in the first writable directory, locked until `stack` closes.

    The lock only saves work: files are replaced atomically, so processes without a lock do no harm.
    """
    for directory in (cache_directory(), _temporary_directory()):
        if directory is None:
            continue
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = stack.enter_context((directory / f"{key}.lock").open("w"))
        except OSError:
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        return directory / f"{key}.json"
    return None


def _own_temporary_directory() -> Path:
    """Creates a directory that this process removes at exit, and that its children use. Raises ConfigError."""
    path = Path(_temporary_path(lambda: tempfile.mkdtemp(prefix="unmask-tokenizer-")))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # forked children inherit the handler
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    use_temporary_directory(path)
    return path


def _temporary_path(create: Callable[[], str]) -> str:
    try:
        return create()
    except OSError:
        raise ConfigError(
            "converting the tokenizer needs a directory for temporary files, and none can be written; set TMPDIR to "
            f"one, or {REMEDY}"
        ) from None


def _replace(target: Path, text: str) -> None:
    """Writes the file atomically."""
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _workspace(inputs: Mapping[str, bytes]) -> Iterator[Path]:
    """Yields a directory with copies of the input files, which the child process reads instead of the checkpoint.

    It is inside the server's temporary directory, if there is one, which is removed even if the server was killed.
    """
    parent = _temporary_directory()

    def create() -> str:
        if parent is not None:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix="unmask-conversion-", dir=parent)

    path = Path(_temporary_path(create))
    try:
        (path / "inputs").mkdir()
        for name, data in inputs.items():
            (path / "inputs" / name).write_bytes(data)
        yield path
    except OSError as error:
        raise ConfigError(f"the tokenizer cannot be converted: {path}: {error.strerror}; free space there") from None
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _run(directory: Path, inputs: Mapping[str, bytes]) -> str:
    """Runs the child process; returns the converted tokenizer.json. Raises ConfigError if there is none."""
    formats = " and ".join(name for name in inputs if name not in SETTING_FILES)
    with _workspace(inputs) as workspace:
        with open(workspace / "log", "wb") as log_file:
            code: int | None
            try:
                code = subprocess.run(
                    [sys.executable, "-m", "runtime.weights.tokenizer_conversion", str(workspace)],
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    env=_environment(workspace),
                    timeout=CONVERSION_SECONDS,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = None
        result, reason = workspace / FILE, workspace / "reason"
        if code == 0 and result.exists():
            return result.read_text(encoding="utf-8")
        if reason.exists():
            why = reason.read_text(encoding="utf-8")
        elif code is None:
            why = f"the conversion took more than {CONVERSION_SECONDS:g} s"
        else:
            why = f"the converting process ended with code {code}: {_last_line(workspace / 'log')}"
    raise ConfigError(f"{directory}: its tokenizer ({formats}) cannot be converted: {why}; {REMEDY}")


def _environment(workspace: Path) -> dict[str, str]:
    """Returns the child's environment: no tokens, no network, no shared cache."""
    inherited = {name: value for name, value in os.environ.items() if name not in _HUB_TOKENS}
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(workspace / "hub"),
        "TIKTOKEN_CACHE_DIR": "",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no output"
