"""Tests of a model that loads for ten minutes under bursts of load: replicas stay until they have served requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator.autoscaler.simulation import Simulation
from unmask_operator.autoscaler.rules import Rules

HOUR = 3600
BURST, EVERY, LOADING = 60, 900, 600
SECONDS, MAX_RUNNING = 8, 8  # seconds that a request runs; concurrent requests per replica


class Queue:
    """Simulates a service whose pods load for ten minutes. Requests wait while all Ready pods are full."""

    def __init__(self, max_running: int = MAX_RUNNING, **engine: Any) -> None:
        rules = Rules.read({"engine": engine, "autoscaling": {"maxReplicas": 4}})
        assert rules is not None
        self.sim = Simulation(rules, startup=LOADING, max_running=max_running)
        self.present = 0.0
        self.waited: dict[int, float] = {}  # maximum number of waiting requests, by burst

    def run(self, seconds: int, burst: Any) -> None:
        for _ in range(seconds):
            now = self.sim.second
            running = min(self.present, MAX_RUNNING * len(self.sim.ready))
            waiting = self.present - running
            self.waited[int(now // EVERY)] = max(self.waited.get(int(now // EVERY), 0), waiting)
            if now % self.sim.rules.polling == 0:
                self.sim.look(waiting, running=running)
            self.present += (3.5 if burst(now) else 0.2) - running / SECONDS
            self.sim.second += 1

    @property
    def changes(self) -> list[float]:
        return [second for second, before, decision, _ in self.sim.trace if decision.desired != before]


def test_bursts_are_served_by_the_replicas_that_the_first_burst_added() -> None:
    queue = Queue()
    queue.run(2 * HOUR, lambda now: now % EVERY < BURST)
    assert len(queue.changes) <= 4
    assert queue.waited[0] > 100, "few requests waited in the first burst, although only one replica exists"
    assert max(waiting for burst, waiting in queue.waited.items() if burst) < 1
    assert queue.sim.replicas == 4


def test_replicas_are_removed_after_the_bursts() -> None:
    queue = Queue()
    queue.run(HOUR, lambda now: now < BURST)
    assert max(queue.sim.sizes) == 4
    assert queue.sim.replicas == 1
    assert len(queue.changes) <= 4


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"maxNumReqs": 128},  # an environment variable of the podTemplate may set another limit
        {"max_running": 0},  # an older runtime does not report its limit
    ],
)
def test_full_replicas_stay_although_no_request_waits(spec: dict[str, int]) -> None:
    queue = Queue(**spec)
    queue.run(2 * HOUR, lambda now: True)
    assert len(queue.changes) <= 2
    assert queue.sim.replicas == 4
