"""Seconds of service per tenant, for queues that serve one request at a time and give all tenants equal time.

Start-time fair queuing (Goyal, Vin and Cheng 1996): the next request is one of the tenant that has used the least. A
tenant joins at the level of the tenant that is served, so that idle tenants accumulate no credit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MAX_TENANTS = 1024  # from this number on, `join` forgets tenants without waiting requests that are not above the level


class ServiceTime:
    """Seconds of service that each tenant has used."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._level = 0.0

    def __len__(self) -> int:
        return len(self._used)

    def __getitem__(self, tenant: str) -> float:
        return self._used.get(tenant, 0.0)

    def join(self, tenant: str, waiting: Collection[str]) -> None:
        """Adds a tenant without waiting or running requests. `waiting`: tenants with waiting requests."""
        if len(self._used) >= MAX_TENANTS:
            self._used = {each: used for each, used in self._used.items() if used > self._level or each in waiting}
        self._used[tenant] = max(self[tenant], self._level)

    def begin(self, tenant: str) -> None:
        """Starts the service of a request."""
        self._level = self[tenant]

    def end(self, tenant: str, seconds: float, *, idle: bool) -> None:
        """Ends the service of a request after `seconds`. `idle`: no request waits."""
        self._used[tenant] = self[tenant] + seconds
        if idle:
            self._level = max(self._level, self._used[tenant])

    def least(self, tenants: Iterable[str]) -> float:
        """Returns the smallest used time among `tenants`."""
        return min(self[tenant] for tenant in tenants)
