"""Opens checkpoint files. All reads of a checkpoint go through this module.

The author of a checkpoint may not be the server's owner, and its content may become visible (a template's text in
/tokenize, a file's text in an error). Therefore a name in a checkpoint may be a link, as in ConfigMaps, volumes and
the hub's cache, but only to a regular file inside the same checkpoint. Paths are walked from the checkpoint's directory
without following links, so that nothing changes between the check and the read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.errors import ConfigError

JSON_BYTES = 128 << 20  # maximum size of a JSON file; the largest tokenizers have a third of it
TEMPLATE_BYTES = 1 << 20  # maximum size of a chat template

KERNEL_FILESYSTEMS = ("/proc", "/sys", "/dev")  # files of processes and devices

_TRIES = 5  # links of a volume may be swapped between resolving a name and opening it
_SWAPPED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_NOT_REGULAR = "is not a regular file; put one there"
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


REPOSITORY = "unmask-repository"  # has the name of the repository from which `unmask pull --to` downloaded the files
SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".tiktoken", REPOSITORY)
SAMPLE_BYTES = 1 << 16  # bytes per sample
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # first bytes of a Git LFS pointer
NUM_SAMPLES = 16  # samples per file, including its beginning and end


class _Refused(Exception):
    """Why a file is refused, as text that follows its name."""


@contextlib.contextmanager
def opened(directory: Path, name: str) -> Iterator[int | None]:
    """Yields a descriptor of the checkpoint's file `name`; None if it has none.

    Raises:
        ConfigError: It is not a regular file, is outside of the checkpoint, or is a pointer of Git LFS.
    """
    try:
        descriptor = _open_inside(directory, name)
    except _Refused as why:
        raise ConfigError(f"{directory / name} {why}") from None
    except OSError as error:
        raise ConfigError(f"{directory / name} cannot be read: {error.strerror}") from None
    try:
        if descriptor is not None and _is_lfs_pointer(descriptor):
            raise ConfigError(
                f"{directory / name} is a Git LFS pointer in place of the file; run `git lfs pull` in its repository"
            )
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _is_lfs_pointer(descriptor: int) -> bool:
    """Returns whether the file is a Git LFS pointer; False on a read error, which the reader reports."""
    with contextlib.suppress(OSError):
        return os.pread(descriptor, len(LFS_POINTER), 0) == LFS_POINTER
    return False


@contextlib.contextmanager
def opened_path(directory: Path, name: str) -> Iterator[str | None]:
    """Yields a path to the checkpoint's file `name`, for libraries that open by path.

    The path refers to the checked file even if the name is replaced, where the system has paths of descriptors. Raises
    as `opened`.
    """
    with opened(directory, name) as descriptor:
        if descriptor is None:
            yield None
        else:
            own = f"/proc/self/fd/{descriptor}"
            yield own if os.path.exists(own) else os.path.realpath(directory / name)


def read_text(directory: Path, name: str, limit: int) -> str | None:
    """Returns the text of the checkpoint's file `name`; None if it has none.

    Raises:
        ConfigError: The file is refused (`opened`), larger than `limit` bytes, or not UTF-8.
    """
    with opened(directory, name) as descriptor:
        return None if descriptor is None else _text(descriptor, str(directory / name), limit)


def read_bytes(directory: Path, name: str, limit: int) -> bytes | None:
    """Returns the content of the checkpoint's file `name`; None if it has none. Raises as `read_text`."""
    with opened(directory, name) as descriptor:
        return None if descriptor is None else _bytes(descriptor, str(directory / name), limit)


def read_json(directory: Path, name: str) -> dict[str, Any] | None:
    """Returns the object in the checkpoint's file `name`; None if it has none. Raises ConfigError for anything else."""
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
    """Returns whether the checkpoint has an entry `name`, readable or not."""
    return os.path.lexists(directory / name)


def find_directory(path: str, named: str) -> Path:
    """Returns the local directory `path`, in which ~ is the home directory.

    Raises:
        ConfigError: There is none, or it cannot be reached; `named` is its name in the message.
    """
    directory = Path(os.path.expanduser(path))
    try:
        if path and stat.S_ISDIR(directory.stat().st_mode):
            return directory
    except (OSError, ValueError) as error:  # ValueError: a null character, or half of a surrogate pair
        if isinstance(error, OSError) and error.errno not in _SWAPPED:
            raise ConfigError(f"{named} cannot be read: {error.strerror}") from None
    raise ConfigError(f"{named} is not a directory (a hub repository is written hf://org/name)")


def read_flag_file(path: str | Path, flag: str, limit: int) -> str:
    """Returns the text of a file that the server's owner named with `flag`, anywhere on disk.

    Raises:
        ConfigError: It is not a regular file, or in /proc, /sys or /dev, too large, or not UTF-8.
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
        raise _Refused("is not a name inside the checkpoint; use a relative name, and put the file there")
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
        raise _Refused("changed during every attempt to open it; start again when it is complete")
    raise _Refused("is a link to nothing; put the file itself there")


def _home(directory: Path, real: str) -> str:
    """Returns the directory that may contain the resolved path `real` of a checkpoint's file.

    This is the checkpoint's own, or that of the blobs of the same repository in the hub's cache
    (REPOSITORY/snapshots/REVISION, whose files link to REPOSITORY/blobs). Raises `_Refused` otherwise.
    """
    root = os.path.realpath(directory, strict=True)
    allowed = [root]
    snapshots, repository = os.path.dirname(root), os.path.dirname(os.path.dirname(root))
    if os.path.basename(snapshots) == "snapshots" and os.path.basename(repository).startswith("models--"):
        allowed.append(os.path.join(repository, "blobs"))
    for folder in allowed:
        if real.startswith(folder.rstrip(os.sep) + os.sep):
            return folder
    raise _Refused(f"leads out of the checkpoint, to {real}; put the file itself into the checkpoint's directory")


def _open_anywhere(real: str) -> int:
    kernels = _Refused("is in a kernel file system, not a regular file; name a file on disk")
    if any(real == folder or real.startswith(folder + "/") for folder in KERNEL_FILESYSTEMS):
        raise kernels
    descriptor = _walk(os.sep, real)
    device = os.fstat(descriptor).st_dev
    pseudo_devices = {os.stat(folder).st_dev for folder in ("/proc", "/sys") if os.path.isdir(folder)}
    if device in pseudo_devices - {os.stat("/").st_dev}:
        os.close(descriptor)
        raise kernels  # the same file system at another mount point
    return descriptor


def _walk(root: str, real: str) -> int:
    """Opens `real`, a regular file below `root`, step by step without following links."""
    *parts, last = os.path.relpath(real, root).split(os.sep)
    here = os.open(root, _DIRECTORY)
    try:
        for part in parts:
            here, above = os.open(part, _DIRECTORY, dir_fd=here), here
            os.close(above)
        # checked before opening, too: opening a device may have effects
        if stat.S_ISREG(os.stat(last, dir_fd=here, follow_symlinks=False).st_mode):
            descriptor = os.open(last, _FILE, dir_fd=here)
        else:
            raise _Refused(_NOT_REGULAR)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _Refused(_NOT_REGULAR)
    return descriptor


def _bytes(descriptor: int, name: str, limit: int) -> bytes:
    size = os.fstat(descriptor).st_size
    data = bytearray()
    if size <= limit:
        with open(descriptor, "rb", closefd=False) as file:
            data += file.read(limit + 1)
    if max(size, len(data)) > limit:
        raise ConfigError(f"{name} is larger than the limit of {limit} bytes; make it smaller")
    return bytes(data)


def _text(descriptor: int, name: str, limit: int) -> str:
    try:
        return _bytes(descriptor, name, limit).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{name} cannot be read: it is not UTF-8 text") from None


def file_digests(directory: Path) -> dict[str, str]:
    """Returns file name -> digest of its size and samples, for all files that are read except templates."""
    found = {}
    for path in sorted(path for suffix in SUFFIXES for path in directory.glob(f"*{suffix}")):
        with opened(directory, path.name) as descriptor:
            if descriptor is not None:
                found[path.name] = _digest(descriptor)
    return found


def _digest(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    made = hashlib.sha256(str(size).encode())
    last = max(size - SAMPLE_BYTES, 0)
    for sample in range(NUM_SAMPLES):
        made.update(os.pread(descriptor, SAMPLE_BYTES, last * sample // (NUM_SAMPLES - 1)))
    return made.hexdigest()
