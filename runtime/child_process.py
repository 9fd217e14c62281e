"""Commands that start modules of this package as child processes."""

from __future__ import annotations

import os
import sys
import sysconfig


def module_command(module: str) -> tuple[str, ...]:
    """Returns the command ``python -m MODULE``.

    ``-m`` puts the current directory first on sys.path, so that a file of the user there, such as types.py, replaces a
    module of the standard library. The command has ``-P``, which prevents this, unless this process has the current
    directory there as well: it may then have imported the package or the modules of a plugin from it.
    """
    return (sys.executable, *(() if _finds_in_current_directory() else ("-P",)), "-m", module)


def _finds_in_current_directory() -> bool:
    """Whether sys.path has the current directory before the standard library."""
    standard = sysconfig.get_path("stdlib")
    first = sys.path[: sys.path.index(standard)] if standard in sys.path else sys.path
    try:
        return "" in first or os.getcwd() in first
    except FileNotFoundError:  # it was deleted
        return "" in first
