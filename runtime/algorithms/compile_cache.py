"""The directory of the code that torch.compile makes, which no other user may write."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from runtime.config.flags import SERVER_COMPILE_CACHE

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def use_private_cache() -> None:
    """Sets the directory in which torch.compile keeps its code, unless TORCHINDUCTOR_CACHE_DIR is set.

    Without the variable, torch takes a directory for temporary files with a known name. Another user can create it
    first, and this process would run what is in it.
    """
    if not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = str(_of_user() or _temporary())


def _of_user() -> Path | None:
    """Returns the directory in the user's cache; None if there is none that only this user can write."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        path = (Path(base) if base else Path.home() / ".cache") / "unmask" / "inductor"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        states = [each.stat(follow_symlinks=False) for each in (path, path.parent)]
    except (OSError, RuntimeError):  # there is no home directory, or it cannot be written
        return None
    is_private = all(state.st_uid == os.geteuid() and not state.st_mode & 0o022 for state in states)
    return path if is_private and os.access(path, os.W_OK) else None


@functools.cache
def _temporary() -> Path:
    """Creates a directory that the server removes at its end, or without a server this process."""
    if of_server := os.environ.get(SERVER_COMPILE_CACHE):
        path = Path(of_server)
        path.mkdir(mode=0o700, exist_ok=True)
        return path
    _KEPT.append(tempfile.TemporaryDirectory(prefix="unmask-inductor-", ignore_cleanup_errors=True))
    return Path(_KEPT[-1].name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
