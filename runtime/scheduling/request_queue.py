"""The queue of waiting requests.

Admission is fair across tenants and HTTP requests: a request with n=100 cannot starve others.

A *tenant* is an API key, a *group* consists of the prompts and choices of one HTTP request. The next request to admit
belongs to the tenant with the fewest running requests, and there to the group with the fewest running requests. Equal
tenants or groups are served in the order in which they entered the queue. Within a group, requests are served in the
order of their arrival. ``runtime.LLM`` uses one tenant and one group, so it is first come, first served.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from runtime.scheduling.request import Request


class FairQueue:
    """The waiting requests, and the numbers of running requests per tenant and group.

    The cost of each operation does not depend on the number of waiting requests.

    Attributes:
        count: number of waiting requests.
    """

    def __init__(self) -> None:
        self._tenants = _LeastRunningQueue()
        self._groups: dict[str, _LeastRunningQueue] = {}  # of each tenant with waiting or running requests
        self._waiting: dict[tuple[str, str], OrderedDict[int, Request]] = {}  # by tenant and group, in order of arrival
        self.count = 0
        self._groups_running = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Request]:
        for members in self._waiting.values():
            yield from members.values()

    def first(self) -> Request:
        """Returns the next request to admit; the queue must not be empty."""
        tenant = self._tenants.first()
        return next(iter(self._waiting[tenant, self._groups[tenant].first()].values()))

    def heads(self) -> Iterator[Request]:
        """Yields the first request of each group, approximately in the order of admission."""
        for tenant in self._tenants.names_in_order():
            for group in self._groups[tenant].names_in_order():
                yield next(iter(self._waiting[tenant, group].values()))

    def add(self, request: Request) -> None:
        """Adds a new request at the end of its group."""
        self._join(request, at_front=False)

    def remove(self, request: Request) -> None:
        """Removes a waiting request."""
        tenant, group = key = request.spec.tenant, request.spec.parent_id
        members = self._waiting[key]
        del members[request.arrival_index]
        self.count -= 1
        if not members:
            del self._waiting[key]
            self._groups[tenant].leave(group)
            if not self._groups[tenant].waiting:
                self._tenants.leave(tenant)
                self._forget(tenant)

    def admit(self, request: Request) -> None:
        """Moves a waiting request to the running ones."""
        self._count_running(request, 1, at_front=False)  # first, to keep the queue of the tenant
        self.remove(request)

    def end(self, request: Request) -> None:
        """Removes a running request."""
        self._count_running(request, -1, at_front=False)
        self._forget(request.spec.tenant)

    def requeue(self, request: Request) -> None:
        """Moves a running request back to the queue: first in its group, and its group first among equal ones."""
        self._count_running(request, -1, at_front=True)
        self._join(request, at_front=True)

    def running_counts(self, request: Request) -> tuple[int, int]:
        """Returns the numbers of running requests of the request's tenant and of its group."""
        groups = self._groups.get(request.spec.tenant)
        return self._tenants.running.get(request.spec.tenant, 0), (
            0 if groups is None else groups.running.get(request.spec.parent_id, 0)
        )

    @property
    def num_competing(self) -> int:
        """Number of tenants with running requests; if there is only one, of its groups with running requests."""
        return len(self._tenants.running) if len(self._tenants.running) > 1 else self._groups_running

    def may_preempt(self, request: Request, victim: Request) -> bool:
        """Whether a waiting request of a group without running requests may preempt `victim`.

        It may if the victim's tenant has at least two more running requests, or, within a tenant, if the victim's group
        has at least two.
        """
        tenant_running, group_running = self.running_counts(request)
        if group_running:
            return False
        victim_tenant_running, victim_group_running = self.running_counts(victim)
        if victim.spec.tenant != request.spec.tenant:
            return victim_tenant_running >= tenant_running + 2  # otherwise the victim could preempt in return
        return victim_group_running >= 2

    def _join(self, request: Request, *, at_front: bool) -> None:
        tenant, group = key = request.spec.tenant, request.spec.parent_id
        members = self._waiting.get(key)
        if members is None:
            members = self._waiting[key] = OrderedDict()
            groups = self._groups.setdefault(tenant, _LeastRunningQueue())
            if not groups.waiting:
                self._tenants.join(tenant, at_front=at_front)
            groups.join(group, at_front=at_front)
        members[request.arrival_index] = request
        if at_front:  # running requests of a group are older than its waiting ones
            members.move_to_end(request.arrival_index, last=False)
        self.count += 1

    def _count_running(self, request: Request, change: int, *, at_front: bool) -> None:
        tenant, group = request.spec.tenant, request.spec.parent_id
        groups = self._groups[tenant]
        before = len(groups.running)
        groups.count_running(group, change, at_front=at_front)
        self._tenants.count_running(tenant, change, at_front=at_front)
        self._groups_running += len(groups.running) - before

    def _forget(self, tenant: str) -> None:
        groups = self._groups[tenant]
        if not groups.waiting and not groups.running:
            del self._groups[tenant]


class _LeastRunningQueue:
    """A queue of names, those with the fewest running requests first; equal ones in the order of their entry.

    Attributes:
        running: number of running requests per name, waiting or not; 0 is left out.
        waiting: names in the queue.
    """

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.waiting: set[str] = set()
        self._by_running: dict[int, OrderedDict[str, None]] = {}

    def first(self) -> str:
        return next(iter(self._by_running[min(self._by_running)]))

    def names_in_order(self) -> Iterator[str]:
        return (name for count in sorted(self._by_running) for name in list(self._by_running[count]))

    def join(self, name: str, *, at_front: bool) -> None:
        self.waiting.add(name)
        running = self.running.get(name, 0)
        equals = self._by_running.get(running)
        if equals is None:
            equals = self._by_running[running] = OrderedDict()
        equals[name] = None
        if at_front:
            equals.move_to_end(name, last=False)

    def leave(self, name: str) -> None:
        self.waiting.discard(name)
        running = self.running.get(name, 0)
        del self._by_running[running][name]
        if not self._by_running[running]:
            del self._by_running[running]

    def count_running(self, name: str, change: int, *, at_front: bool) -> None:
        """Adds `change` to the running requests of `name`, and moves it among the names with as many of them."""
        waits = name in self.waiting
        if waits:
            self.leave(name)
        running = self.running.get(name, 0) + change
        if running:
            self.running[name] = running
        else:
            del self.running[name]
        if waits:
            self.join(name, at_front=at_front)


def round_robin(requests: Iterable[Request]) -> list[list[Request]]:
    """Returns the running requests in rounds: each round has one request per tenant, or per group of a single tenant.

    The least recently served comes first: within a group, among the groups of a tenant, and within a round.
    """
    tenants: dict[str, dict[str, list[Request]]] = {}
    for request in sorted(requests, key=served_longest_ago):
        tenants.setdefault(request.spec.tenant, {}).setdefault(request.spec.parent_id, []).append(request)
    if len(tenants) > 1:
        queues = [_interleave_groups(list(groups.values())) for groups in tenants.values()]
    else:
        queues = [group for groups in tenants.values() for group in groups.values()]
    return [sorted(round, key=served_longest_ago) for round in _rounds(queues)]


def _interleave_groups(groups: list[list[Request]]) -> list[Request]:
    """Returns one request per group in turn, beginning with the least recently served group."""
    groups.sort(key=lambda members: max(request.last_served_step for request in members))
    return [request for round in _rounds(groups) for request in round]


def served_longest_ago(request: Request) -> tuple[int, bool, int]:
    """Returns the sort key: last served step, then decoding before prefilling, then arrival."""
    return request.last_served_step, request.prefilling, request.arrival_index


def _rounds(queues: Iterable[list[Request]]) -> Iterator[list[Request]]:
    for round in zip_longest(*queues):
        yield [request for request in round if request is not None]
