"""Reads a file to which another process writes through an inherited descriptor."""

import os
from typing import IO, Any


def written(file: IO[Any]) -> str:
    """Returns the whole content without changing the file position.

    The process that inherited the descriptor shares its position. A seek for reading would also move the position at
    which the process writes next, so its next line could overwrite the first one.
    """
    descriptor = file.fileno()
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
