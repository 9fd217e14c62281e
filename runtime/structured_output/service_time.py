"""Seconds of service by owner, for queues that serve one request at a time and give all owners equal time.

Start-time fair queuing (Goyal, Vin and Cheng 1996): the next request is one of the owner that has used the least. An
owner joins at the level of the one that is served, so that it saves up no time while it is away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MAX_OWNERS = 1024  # whose time is remembered while nothing of theirs waits


class ServiceTime:
    """The used seconds of each owner."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._level = 0.0

    def __len__(self) -> int:
        return len(self._used)

    def __getitem__(self, owner: str) -> float:
        return self._used.get(owner, 0.0)

    def join(self, owner: str, waiting: Collection[str]) -> None:
        """An owner of which nothing waited or was served brings a request. `waiting`: owners of which some waits."""
        if len(self._used) >= MAX_OWNERS:
            self._used = {each: used for each, used in self._used.items() if used > self._level or each in waiting}
        self._used[owner] = max(self[owner], self._level)

    def begin(self, owner: str) -> None:
        """The service of a request begins."""
        self._level = self[owner]

    def end(self, owner: str, seconds: float, *, idle: bool) -> None:
        """It ends after so many seconds. `idle`: nothing waits."""
        self._used[owner] = self[owner] + seconds
        if idle:
            self._level = max(self._level, self._used[owner])

    def least(self, owners: Iterable[str]) -> float:
        """What the owner that has used the least has used."""
        return min(self[owner] for owner in owners)
