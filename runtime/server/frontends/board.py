"""How full the server is, where every frontend process sees it at once: a file in memory that one process writes.

So a request for which there is no room is refused before its answer begins, without asking the head. Each number has
one writer and lies in a word of its own, which is written and read whole.
"""

from __future__ import annotations

import mmap
import zlib
from collections import Counter
from pathlib import Path

WORD = 8  # bytes of a number
OWNERS = 4096  # places of keys' numbers; two keys in one are counted together


class Board:
    """Numbers of one server of `processes` frontend processes."""

    def __init__(self, path: Path, processes: int) -> None:
        """Open the file, or make it."""
        size = (1 + 2 * processes + OWNERS) * WORD
        if not path.exists():
            path.write_bytes(bytes(size))
            path.chmod(0o600)
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), size)).cast("q")
        self._processes = processes

    # written by the head

    @property
    def live(self) -> int:
        """Engine requests that have not ended, of all processes."""
        return self._words[0]

    @live.setter
    def live(self, count: int) -> None:
        self._words[0] = count

    def taken(self, process: int) -> int:
        """Engine requests of a process that the head has seen so far."""
        return self._words[1 + process]

    def take(self, process: int, count: int) -> None:
        self._words[1 + process] += count

    def held(self, owner: str) -> int:
        """Live requests of an owner."""
        return self._words[self._place(owner)]

    def hold(self, owner: str, more: int) -> None:
        self._words[self._place(owner)] += more

    def _place(self, owner: str) -> int:
        return 1 + 2 * self._processes + zlib.crc32(owner.encode()) % OWNERS

    # written by a process

    def closed(self, process: int) -> int:
        """Connections that a process was handed and that have ended."""
        return self._words[1 + self._processes + process]

    def close(self, process: int) -> None:
        self._words[1 + self._processes + process] += 1

    def renew(self, process: int) -> None:
        """Another one takes the place of a process that has ended."""
        self._words[1 + process] = self._words[1 + self._processes + process] = 0


class Owned(Counter[str]):
    """Live requests of each owner, which the board shows too."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board

    def __setitem__(self, owner: str, count: int) -> None:
        self._board.hold(owner, count - self[owner])
        super().__setitem__(owner, count)
