"""The only door to a checkpoint's files: plain files that lie in its directory, opened and then looked at.

Whoever made a checkpoint need not be who runs the server, and what is read of it can come out again (a template's text
in /tokenize, a file's words in an error). So a name in a checkpoint may be a link, as ConfigMaps, volumes and the
hub's cache have them, but only to something inside the same checkpoint. A file is walked to from the checkpoint's own
directory without following any link, so that nothing changes between the look and the reading.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.errors import ConfigError

JSON_BYTES = 128 << 20  # of one JSON file; the largest in use, tokenizers of large vocabularies, are a third of it
TEMPLATE_BYTES = 1 << 20  # of a chat template

KERNEL_PLACES = ("/proc", "/sys", "/dev")  # what stands there is the kernel's word on processes and devices, no file

_TRIES = 5  # a volume's links may be swapped between resolving a name and opening it
_SWAPPED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_NOT_PLAIN = "is no plain file; put one there"
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _Refused(Exception):
    """Why something is not read, in words that fit behind its name."""


@contextlib.contextmanager
def opened(directory: Path, name: str) -> Iterator[int | None]:
    """A descriptor of the checkpoint's file `name`, None where it has none.

    Raises:
        ConfigError: it is no plain file, or it does not lie in the checkpoint.
    """
    try:
        descriptor = _open_inside(directory, name)
    except _Refused as why:
        raise ConfigError(f"{directory / name} {why}") from None
    except OSError as error:
        raise ConfigError(f"{directory / name} cannot be read: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def opened_path(directory: Path, name: str) -> Iterator[str | None]:
    """A path to the checkpoint's file `name` for libraries that open by path; it leads to the very file that was
    looked at, whatever becomes of the name, where the system has paths of descriptors. Raises as `opened` does."""
    with opened(directory, name) as descriptor:
        if descriptor is None:
            yield None
        else:
            own = f"/proc/self/fd/{descriptor}"
            yield own if os.path.exists(own) else os.path.realpath(directory / name)


def read_text(directory: Path, name: str, limit: int) -> str | None:
    """The text of the checkpoint's file `name`, None where it has none.

    Raises:
        ConfigError: it is refused (`opened`), larger than `limit` bytes, or no UTF-8.
    """
    with opened(directory, name) as descriptor:
        return None if descriptor is None else _text(descriptor, str(directory / name), limit)


def read_json(directory: Path, name: str) -> dict[str, Any] | None:
    """The object in the checkpoint's file `name`, None where it has none; ConfigError for anything else."""
    text = read_text(directory, name, JSON_BYTES)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{directory / name} is not readable JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{directory / name} is not readable JSON: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{directory / name} must hold a JSON object, not a {type(value).__name__}")
    return value


def has(directory: Path, name: str) -> bool:
    """Whether the checkpoint has an entry `name`; whether that may be read is for who opens it."""
    return os.path.lexists(directory / name)


def read_owners_text(path: str | Path, flag: str, limit: int) -> str:
    """The text of a file that the server's owner chose with `flag`, wherever it lies.

    Raises:
        ConfigError: it is no plain file, one of the kernel's (/proc, /sys, /dev), too large, or no UTF-8.
    """
    try:
        descriptor = _open_anywhere(os.path.realpath(path, strict=True))
    except _Refused as why:
        raise ConfigError(f"{flag}: {path} {why}") from None
    except OSError as error:
        raise ConfigError(f"{flag}: {path} cannot be read: {error.strerror}") from None
    try:
        return _text(descriptor, f"{flag}: {path}", limit)
    finally:
        os.close(descriptor)


def _open_inside(directory: Path, name: str) -> int | None:
    if name != os.path.normpath(name) or name.startswith((os.sep, os.pardir)) or "\0" in name:
        raise _Refused("is no name inside the checkpoint; write the file's plain name, and put it there")
    for _ in range(_TRIES):
        if not has(directory, name):
            return None
        try:
            real = os.path.realpath(directory / name, strict=True)
            return _walk(_home(directory, real), real)
        except OSError as error:
            if error.errno not in _SWAPPED:
                raise
    if os.path.exists(directory / name):
        raise _Refused("is replaced again and again while it is opened; start again when it is in its place")
    raise _Refused("is a link to nothing; put the file itself there")


def _home(directory: Path, real: str) -> str:
    """The directory in which a checkpoint's file may lie, given where it does: the checkpoint's own, or the contents'
    of the same repository in the hub's cache (REPOSITORY/snapshots/REVISION, whose files link to REPOSITORY/blobs)."""
    root = os.path.realpath(directory, strict=True)
    places = [root]
    snapshots, repository = os.path.dirname(root), os.path.dirname(os.path.dirname(root))
    if os.path.basename(snapshots) == "snapshots" and os.path.basename(repository).startswith("models--"):
        places.append(os.path.join(repository, "blobs"))
    for place in places:
        if real.startswith(place.rstrip(os.sep) + os.sep):
            return place
    raise _Refused(f"leads out of the checkpoint, to {real}; put the file itself into the checkpoint's directory")


def _open_anywhere(real: str) -> int:
    kernels = _Refused("is the kernel's, no plain file; name a file on disk")
    if any(real == place or real.startswith(place + "/") for place in KERNEL_PLACES):
        raise kernels
    descriptor = _walk(os.sep, real)
    device = os.fstat(descriptor).st_dev
    if device in {os.stat(place).st_dev for place in ("/proc", "/sys") if os.path.isdir(place)} - {os.stat("/").st_dev}:
        os.close(descriptor)
        raise kernels  # the same file system, mounted elsewhere
    return descriptor


def _walk(root: str, real: str) -> int:
    """Open `real`, a plain file below `root`, step by step and without following any link."""
    *parts, last = os.path.relpath(real, root).split(os.sep)
    here = os.open(root, _DIRECTORY)
    try:
        for part in parts:
            here, above = os.open(part, _DIRECTORY, dir_fd=here), here
            os.close(above)
        # also before it is opened: opening a device may have effects
        if stat.S_ISREG(os.stat(last, dir_fd=here, follow_symlinks=False).st_mode):
            descriptor = os.open(last, _FILE, dir_fd=here)
        else:
            raise _Refused(_NOT_PLAIN)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _Refused(_NOT_PLAIN)
    return descriptor


def _text(descriptor: int, name: str, limit: int) -> str:
    size = os.fstat(descriptor).st_size
    data = bytearray()
    if size <= limit:
        with open(descriptor, "rb", closefd=False) as file:
            data += file.read(limit + 1)
    if max(size, len(data)) > limit:
        raise ConfigError(f"{name} is larger than the {limit} bytes that are read of it; make it smaller")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{name} cannot be read: it is not UTF-8 text") from None
