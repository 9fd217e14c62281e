"""The directory with the sockets of one server's processes. What a killed server left is removed by the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from runtime.errors import ConfigError

PREFIX = "unmask-"
LOCK = "lock"  # locked as long as the server lives; the kernel unlocks it with the process's end


@contextlib.contextmanager
def socket_dir() -> Iterator[Path]:
    """Makes a directory that only this user may enter, and removes it at the end.

    Raises:
        ConfigError: No directory for temporary files can be written.
    """
    try:
        remove_abandoned()
        path, lock = _make()
    except OSError:
        raise ConfigError(
            "the server needs a directory for temporary files, and none can be written; set TMPDIR to one"
        ) from None
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int]:
    """Returns a new directory and a descriptor of its locked file."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            lock = _locked(path / LOCK, create=True)
        except OSError:  # the file system is full
            shutil.rmtree(path, ignore_errors=True)
            raise
        if lock is not None:
            return path, lock


def remove_abandoned() -> None:
    """Removes this user's directories of servers that no longer run."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or gone meanwhile
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            if (lock := _locked(path / LOCK, create=False)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: Path, *, create: bool) -> int | None:
    """A descriptor of the locked file; None if another process has locked it or removed it meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    os.close(descriptor)
    return None
