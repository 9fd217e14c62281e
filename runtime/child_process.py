"""Commands that start modules of this package as child processes, and the end of a child with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import sysconfig

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def module_command(module: str) -> tuple[str, ...]:
    """Returns the command ``python -m MODULE``.

    ``-m`` puts the current directory first on sys.path, so that a file of the user there, such as types.py, replaces a
    module of the standard library. The command has ``-P``, which prevents this, unless this process has the current
    directory there as well: it may then have imported the package or the modules of a plugin from it.
    """
    return (sys.executable, *(() if _finds_in_current_directory() else ("-P",)), "-m", module)


def _finds_in_current_directory() -> bool:
    """Returns whether sys.path has the current directory before the standard library."""
    standard = sysconfig.get_path("stdlib")
    first = sys.path[: sys.path.index(standard)] if standard in sys.path else sys.path
    try:
        return "" in first or os.getcwd() in first
    except FileNotFoundError:  # it was deleted
        return "" in first


def exit_with_parent() -> None:
    """Makes the kernel kill this process when the thread that started it ends.

    Reading the end of a pipe needs the process's own Python code, and a call that holds the GIL may never return to it.
    The thread that starts the process must be the parent's main thread, or wait for the process. Linux only: elsewhere
    only the pipe ends a process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
