"""Ends a process with its parent."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def exit_with_parent() -> None:
    """Makes the kernel kill this process when the thread that started it ends.

    Reading the end of a pipe needs the process's own Python code, and a call that holds the GIL may never return to it.
    The thread that starts the process must be the parent's main thread, or wait for the process. Linux only: elsewhere
    only the pipe ends a process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
