"""Who is admitted next, and whose turns come first: fair shares between those who send.

An *owner* is who sends (the server's API keys tell), a *group* what is sent at once (the prompts and choices of one
HTTP request). Next in line is the owner of whom the fewest requests run, in it the group of which the fewest run, in it
the request that came first; among equals whoever has stood there longest. So it does not matter to a single request how
many choices others ask for, and who has nothing running waits only for those who stood there before, with nothing
running. A caller that names neither (``runtime.LLM``) is one group: first come, first served.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from runtime.engine.request import Request


class FairQueue:
    """The waiting requests, and how many run of each owner and group; every change costs the same however many wait."""

    def __init__(self) -> None:
        self._owners = _Line()
        self._groups: dict[str, _Line] = {}  # of each owner of whom something waits or runs
        self._waiting: dict[tuple[str, str], OrderedDict[int, Request]] = {}  # by group, in order of arrival
        self._count = 0
        self._groups_running = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        for members in self._waiting.values():
            yield from members.values()

    def first(self) -> Request:
        """The next to be admitted; there has to be one."""
        owner = self._owners.first()
        return next(iter(self._waiting[owner, self._groups[owner].first()].values()))

    def line(self) -> Iterator[Request]:
        """The first of each group, about in the order in which they would be admitted."""
        for owner in self._owners.line():
            for group in self._groups[owner].line():
                yield next(iter(self._waiting[owner, group].values()))

    def add(self, request: Request) -> None:
        """A new request, behind all that came before it from its group."""
        self._join(request, ahead=False)

    def remove(self, request: Request) -> None:
        """Forget a waiting request."""
        owner, group = place = request.spec.tenant, request.spec.parent_id
        members = self._waiting[place]
        del members[request.arrival_index]
        self._count -= 1
        if not members:
            del self._waiting[place]
            self._groups[owner].leave(group)
            if not self._groups[owner].names:
                self._owners.leave(owner)
                self._forget(owner)

    def admit(self, request: Request) -> None:
        """A waiting request runs from now on."""
        self._run(request, 1, ahead=False)  # first, so that the owner's line lives on when nothing else of it waits
        self.remove(request)

    def end(self, request: Request) -> None:
        """A running request is gone for good."""
        self._run(request, -1, ahead=False)
        self._forget(request.spec.tenant)

    def give_back(self, request: Request) -> None:
        """A running request waits again: it goes first in its group, which is the first of its equals."""
        self._run(request, -1, ahead=True)
        self._join(request, ahead=True)

    def running(self, request: Request) -> tuple[int, int]:
        """How many requests run of its owner, and how many of its group."""
        line = self._groups.get(request.spec.tenant)
        return self._owners.running.get(request.spec.tenant, 0), (
            0 if line is None else line.running.get(request.spec.parent_id, 0)
        )

    @property
    def parties(self) -> int:
        """Those that share the engine now: the owners with something running, or one owner's groups."""
        return len(self._owners.running) if len(self._owners.running) > 1 else self._groups_running

    def may_displace(self, request: Request, runner: Request) -> bool:
        """Whether a waiting request of a group that runs nothing may have the place of one whose side runs several."""
        owner, group = self.running(request)
        if group:
            return False
        its_owner, its_group = self.running(runner)
        if runner.spec.tenant != request.spec.tenant:
            return its_owner >= owner + 2  # so that it is not the other's turn to displace afterwards
        return its_group >= 2

    def _join(self, request: Request, *, ahead: bool) -> None:
        owner, group = place = request.spec.tenant, request.spec.parent_id
        members = self._waiting.get(place)
        if members is None:
            members = self._waiting[place] = OrderedDict()
            line = self._groups.setdefault(owner, _Line())
            if not line.names:
                self._owners.join(owner, ahead=ahead)
            line.join(group, ahead=ahead)
        members[request.arrival_index] = request
        if ahead:  # what runs of a group came before what waits of it, and the newest gives way first
            members.move_to_end(request.arrival_index, last=False)
        self._count += 1

    def _run(self, request: Request, change: int, *, ahead: bool) -> None:
        owner, group = request.spec.tenant, request.spec.parent_id
        line = self._groups[owner]
        before = len(line.running)
        line.run(group, change, ahead=ahead)
        self._owners.run(owner, change, ahead=ahead)
        self._groups_running += len(line.running) - before

    def _forget(self, owner: str) -> None:
        line = self._groups[owner]
        if not line.names and not line.running:
            del self._groups[owner]


class _Line:
    """Names in line: those of whom the fewest run first; among equals who has stood there longest."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}  # of names in line or not; nobody stands here with 0
        self.names: set[str] = set()  # those in line
        self._equals: dict[int, OrderedDict[str, None]] = {}

    def first(self) -> str:
        return next(iter(self._equals[min(self._equals)]))

    def line(self) -> Iterator[str]:
        return (name for count in sorted(self._equals) for name in list(self._equals[count]))

    def join(self, name: str, *, ahead: bool) -> None:
        self.names.add(name)
        running = self.running.get(name, 0)
        equals = self._equals.get(running)
        if equals is None:
            equals = self._equals[running] = OrderedDict()
        equals[name] = None
        if ahead:
            equals.move_to_end(name, last=False)

    def leave(self, name: str) -> None:
        self.names.discard(name)
        running = self.running.get(name, 0)
        del self._equals[running][name]
        if not self._equals[running]:
            del self._equals[running]

    def run(self, name: str, change: int, *, ahead: bool) -> None:
        """`change` more of `name` run; it takes its place among its new equals."""
        waits = name in self.names
        if waits:
            self.leave(name)
        running = self.running.get(name, 0) + change
        if running:
            self.running[name] = running
        else:
            del self.running[name]
        if waits:
            self.join(name, ahead=ahead)


def deal(requests: Iterable[Request]) -> list[list[Request]]:
    """Running requests in rounds: in each round one of every owner, or where there is one owner, of every group.

    What was served longest ago goes first: within a group, between an owner's groups, and within a round.
    """
    owners: dict[str, dict[str, list[Request]]] = {}
    for request in sorted(requests, key=served_longest_ago):
        owners.setdefault(request.spec.tenant, {}).setdefault(request.spec.parent_id, []).append(request)
    if len(owners) > 1:
        piles = [_in_turn(list(groups.values())) for groups in owners.values()]
    else:
        piles = [group for groups in owners.values() for group in groups.values()]
    return [sorted(round, key=served_longest_ago) for round in _rounds(piles)]


def _in_turn(groups: list[list[Request]]) -> list[Request]:
    """One request of each group after the other, first the group that was served longest ago."""
    groups.sort(key=lambda members: max(request.last_served_step for request in members))
    return [request for round in _rounds(groups) for request in round]


def served_longest_ago(request: Request) -> tuple[int, bool, int]:
    """Sorts by the last turn; among equals decoding before prefilling, then by arrival."""
    return request.last_served_step, request.prefilling, request.arrival_index


def _rounds(piles: Iterable[list[Request]]) -> Iterator[list[Request]]:
    for round in zip_longest(*piles):
        yield [request for request in round if request is not None]
