"""Tests of a model that loads for ten minutes under bursts of load.

Replicas must not be removed before they have served requests.
"""

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

    def __init__(self, **autoscaling: Any) -> None:
        rules = Rules.read({"autoscaling": {"maxReplicas": 4, **autoscaling}})
        assert rules is not None
        self.sim = Simulation(rules, startup=LOADING, max_running=MAX_RUNNING)
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
    queue.run(4 * HOUR, lambda now: now % EVERY < BURST)
    for hour in range(4):
        assert sum(hour * HOUR <= second < (hour + 1) * HOUR for second in queue.changes) <= 4
    assert queue.waited[0] > 100, "few requests waited in the first burst, although only one replica exists"
    assert max(waiting for burst, waiting in queue.waited.items() if burst) < 1
    assert queue.sim.replicas == 4


def test_replicas_are_removed_after_the_bursts() -> None:
    queue = Queue()
    queue.run(HOUR, lambda now: now < BURST)
    assert max(queue.sim.sizes) == 4
    assert queue.sim.replicas == 1
    assert len(queue.changes) <= 4


def test_full_replicas_stay_although_no_request_waits() -> None:
    queue = Queue()
    queue.run(4 * HOUR, lambda now: True)
    assert queue.changes == queue.changes[:2]
    assert queue.sim.replicas == 4


@pytest.mark.parametrize(
    "engine",
    [
        {"extraArgs": [f"--max-num-reqs={MAX_RUNNING}"]},
        {"extraArgs": ["--max-num-reqs", str(MAX_RUNNING)]},
        {"maxNumReqs": 128},  # an environment variable of the podTemplate may set another limit
    ],
)
def test_capacity_comes_from_the_metrics_of_pods_and_not_from_the_spec(engine: dict[str, Any]) -> None:
    queue = Queue()
    rules = Rules.read({"engine": engine, "autoscaling": {"maxReplicas": 4}})
    assert rules is not None
    queue.sim.rules = rules
    queue.run(4 * HOUR, lambda now: True)
    assert len(queue.changes) <= 2, "the number of replicas changed more than twice, although all replicas are full"
    assert queue.sim.replicas == 4


def test_a_pod_without_capacity_metric_stays_while_it_runs_requests() -> None:
    queue = Queue()
    queue.sim.max_running = 0
    queue.run(2 * HOUR, lambda now: True)
    assert queue.sim.replicas == 4
    assert len(queue.changes) <= 2
