"""Seconds of service per owner, for queues that serve one request at a time and give all owners equal time.

Start-time fair queuing (Goyal, Vin and Cheng 1996): the next request is one of the owner that has used the least. An
owner joins at the level of the owner that is served, so that idle owners accumulate no credit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MAX_OWNERS = 1024  # owners whose time is remembered while nothing of theirs waits


class ServiceTime:
    """Seconds of service that each owner has used."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._level = 0.0

    def __len__(self) -> int:
        return len(self._used)

    def __getitem__(self, owner: str) -> float:
        return self._used.get(owner, 0.0)

    def join(self, owner: str, waiting: Collection[str]) -> None:
        """Adds an owner without waiting or running requests. `waiting`: owners with waiting requests."""
        if len(self._used) >= MAX_OWNERS:
            self._used = {each: used for each, used in self._used.items() if used > self._level or each in waiting}
        self._used[owner] = max(self[owner], self._level)

    def begin(self, owner: str) -> None:
        """Starts the service of a request."""
        self._level = self[owner]

    def end(self, owner: str, seconds: float, *, idle: bool) -> None:
        """Ends the service of a request after `seconds`. `idle`: no request waits."""
        self._used[owner] = self[owner] + seconds
        if idle:
            self._level = max(self._level, self._used[owner])

    def least(self, owners: Iterable[str]) -> float:
        """Returns the smallest used time among `owners`."""
        return min(self[owner] for owner in owners)
