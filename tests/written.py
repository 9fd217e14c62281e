"""What a process has written to a file that it shares with us."""

from __future__ import annotations

import os
from typing import IO, Any


def written(file: IO[Any]) -> str:
    """All of it. Who inherits a file shares its position too: reading by it would move where the process writes next,
    and a line that comes at that moment would be written over the first."""
    descriptor = file.fileno()
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
