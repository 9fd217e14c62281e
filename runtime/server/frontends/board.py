"""How full the server is, where every frontend process sees it at once: a file in memory that all of them share.

So a request for which there is no room is refused before its answer begins, without asking the head. A process counts
what it asks for, the head what is over; the difference lives, also where the head has not heard of it yet. Each number
has one writer and lies in a word of its own, which is written and read whole.
"""

from __future__ import annotations

import mmap
import zlib
from collections import Counter
from pathlib import Path

WORD = 8  # bytes of a number
OWNERS = 4096  # places of keys' numbers
# Numbers of a process's, or of the head's: of all requests, and twice those of owners, each of whom has two places. In
# one it may be together with another owner, in both hardly.
COLUMN = 1 + 2 * OWNERS


class Board:
    """Numbers of one server of `processes` frontend processes."""

    def __init__(self, path: Path, processes: int) -> None:
        """Open the file, or make it."""
        size = (processes + (processes + 1) * COLUMN) * WORD
        if not path.exists():
            path.write_bytes(bytes(size))
            path.chmod(0o600)
        with path.open("r+b") as file:
            words = memoryview(mmap.mmap(file.fileno(), size)).cast("q")
        self._closed = words[:processes]
        columns = [words[begin : begin + COLUMN] for begin in range(processes, len(words), COLUMN)]
        self._over, self._asked = columns[0], columns[1:]
        self._seen: list[Counter[int]] = [Counter() for _ in self._asked]  # of what was asked, the head's alone

    @property
    def live(self) -> int:
        """Engine requests that have been asked for and are not over."""
        return self._live(0)

    def held(self, owner: str) -> int:
        """Those of an owner."""
        return min(map(self._live, _places(owner)))

    def _live(self, place: int) -> int:
        over = self._over[place]  # before what was asked: in between there may be one too many, but none too few
        return sum(asked[place] for asked in self._asked) - over

    # written by the head

    def see(self, process: int, owner: str, count: int) -> None:
        """It has heard of so many that a process asked for."""
        _add(self._seen[process], owner, count)

    def end(self, owner: str, count: int) -> None:
        """So many of them are over."""
        _add(self._over, owner, count)

    def renew(self, process: int) -> None:
        """A process has ended, and all that it asked for without being heard is over."""
        self._closed[process] = 0
        seen = self._seen[process]
        for place, asked in enumerate(self._asked[process]):
            if lost := asked - seen[place]:
                self._over[place] += lost
                seen[place] = asked

    # written by a process

    def ask(self, process: int, owner: str, count: int) -> None:
        _add(self._asked[process], owner, count)

    def closed(self, process: int) -> int:
        """Connections that a process was handed and that have ended."""
        return self._closed[process]

    def close(self, process: int) -> None:
        self._closed[process] += 1


def _places(owner: str) -> tuple[int, int]:
    digest = zlib.crc32(owner.encode())
    return 1 + digest % OWNERS, 1 + OWNERS + digest // 2**16 % OWNERS


def _add(column: memoryview[int] | Counter[int], owner: str, count: int) -> None:
    column[0] += count
    for place in _places(owner) if owner else ():
        column[place] += count


class Owned(Counter[str]):
    """Live requests of each owner; the board is told of those that end."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board

    def __setitem__(self, owner: str, count: int) -> None:
        if count < self[owner]:
            self._board.end(owner, self[owner] - count)
        super().__setitem__(owner, count)
