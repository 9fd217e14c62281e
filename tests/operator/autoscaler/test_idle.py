"""Tests of scale to zero: when an idle service loses its last pod, and what prevents that."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.autoscaler.simulation import START
from unmask_operator.autoscaler.idle import FALLING_ASLEEP, Routing
from unmask_operator.autoscaler.loop import Autoscaler
from unmask_operator.autoscaler.scrape import FINISHED
from unmask_operator.objects import Obj
from unmask_operator.plan.observed import Decision

POLL, IDLE = 5, 60


class Sleeper:
    """A service with `pods` whose operator adds the activator to the Service as soon as it is idle.

    Attributes:
        load: of each pod. None: it does not answer.
        writes: seconds and replicas of each write of the scale.
    """

    def __init__(self, pods: int = 1, **zero: int) -> None:
        scaling = {"minReplicas": 0, "maxReplicas": 3, "zero": {"idleSeconds": IDLE, **zero}}
        self.resource: Obj = {"metadata": {"name": "s"}, "spec": {"replicas": pods, "autoscaling": scaling}}
        self.second, self.problem, self.routes, self.ready = 0, "", True, True
        self.load: dict[str, float] | None = {}
        self.writes = list[tuple[int, int]]()
        resources = {"s": self.resource}
        shell: Any = (resources.items, resources.get, self.pods, self.scale, lambda key: None)
        self.autoscaler = Autoscaler(*shell, self.scrape, self.now, self.routing)

    def now(self) -> Any:
        return START + timedelta(seconds=self.second)

    def pods(self, key: str) -> list[Obj]:
        return [
            {
                "metadata": {"name": f"s-{n}"},
                "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
                "status": {"podIP": f"s-{n}", "conditions": [{"type": "Ready", "status": str(self.ready)}]},
            }
            for n in range(self.replicas)
        ]

    async def scale(self, key: str, replicas: int) -> None:
        self.writes.append((self.second, replicas))
        self.replicas = replicas

    async def scrape(self, addresses: Mapping[str, str], targets: Collection[str]) -> Any:
        if self.load is None:
            return {}, dict.fromkeys(addresses, "gone")
        return {pod: dict.fromkeys(targets, 0.0) | self.load for pod in addresses}, {}

    def routing(self, key: str) -> Routing:
        decision = self.decision
        return Routing(self.problem, self.routes and bool(decision and decision.idle))

    @property
    def replicas(self) -> int:
        return int(self.resource["spec"]["replicas"])

    @replicas.setter
    def replicas(self, replicas: int) -> None:
        self.resource["spec"]["replicas"] = replicas

    @property
    def decision(self) -> Decision | None:
        return self.autoscaler.decision("s")

    def run(self, seconds: int, each: Callable[[], None] = lambda: None) -> None:
        for _ in range(seconds // POLL):
            each()
            asyncio.run(self.autoscaler.tick())
            self.second += POLL

    def finish(self) -> None:
        """Finishes a request that began after the last sample."""
        assert self.load is not None
        self.load[FINISHED] = self.load.get(FINISHED, 0.0) + 1


@pytest.mark.parametrize("pods", [1, 3])
def test_an_idle_service_loses_its_pods_after_the_activator_has_its_requests(pods: int) -> None:
    sleeper = Sleeper(pods)
    sleeper.run(IDLE + POLL)
    assert sleeper.decision is not None
    assert (sleeper.decision.idle, sleeper.decision.reason) == (True, FALLING_ASLEEP.format(IDLE))
    assert sleeper.writes == []
    sleeper.run(IDLE)
    assert sleeper.writes == [(IDLE + 2 * POLL, 0)]
    sleeper.run(600)
    assert (sleeper.decision.healthy, sleeper.decision.idle, len(sleeper.writes)) == (True, True, 1)


def unready(sleeper: Sleeper) -> None:
    sleeper.ready = False


def unread(sleeper: Sleeper) -> None:
    sleeper.load = None


def without_routes(sleeper: Sleeper) -> None:
    sleeper.routes = False


def loaded(name: str) -> Callable[[Sleeper], None]:
    def change(sleeper: Sleeper) -> None:
        sleeper.load = {name: 1.0}

    return change


@pytest.mark.parametrize(
    "change", [loaded("queuedRequestsPerReplica"), loaded("runningRequestsPerReplica"), unready, unread, without_routes]
)
def test_what_keeps_a_service_awake(change: Callable[[Sleeper], None]) -> None:
    sleeper = Sleeper()
    change(sleeper)
    sleeper.run(4 * IDLE)
    assert 0 not in [replicas for _, replicas in sleeper.writes]


def test_a_request_between_two_samples_keeps_a_service_awake() -> None:
    sleeper = Sleeper()
    sleeper.run(4 * IDLE, sleeper.finish)
    assert sleeper.writes == []
    sleeper.run(2 * IDLE)
    assert [replicas for _, replicas in sleeper.writes] == [0]


def test_a_request_that_arrives_while_the_service_falls_asleep_keeps_it_awake() -> None:
    sleeper = Sleeper()
    sleeper.run(IDLE + POLL)
    sleeper.finish()
    sleeper.run(POLL)
    assert sleeper.decision is not None
    assert not sleeper.decision.idle
    sleeper.run(IDLE - POLL)
    assert sleeper.writes == []


def test_a_gap_between_samples_begins_the_time_again() -> None:
    sleeper = Sleeper()
    sleeper.run(IDLE)
    sleeper.second += 300
    sleeper.run(IDLE)
    assert sleeper.writes == []


def test_a_service_without_an_activator_keeps_a_pod_and_one_that_sleeps_is_woken() -> None:
    sleeper = Sleeper()
    sleeper.problem = "no pod of the activator is Ready"
    sleeper.run(2 * IDLE)
    assert sleeper.decision is not None
    assert (sleeper.decision.healthy, sleeper.decision.cause) == (False, "ActivatorUnavailable")
    sleeper.problem = ""
    sleeper.run(2 * IDLE)
    assert sleeper.replicas == 0
    sleeper.problem = "no pod of the activator is Ready"
    sleeper.run(POLL)
    assert sleeper.replicas == 1


def test_a_service_that_was_woken_is_noticed_at_once_and_stays_awake_as_long_as_any_other() -> None:
    sleeper = Sleeper()
    sleeper.resource["spec"]["autoscaling"]["pollingIntervalSeconds"] = 30
    sleeper.run(4 * IDLE)
    assert sleeper.replicas == 0
    sleeper.replicas = 1  # by the activator
    sleeper.run(POLL)
    assert sleeper.decision is not None
    assert not sleeper.decision.idle
    writes = len(sleeper.writes)
    sleeper.run(IDLE - POLL)
    assert len(sleeper.writes) == writes
