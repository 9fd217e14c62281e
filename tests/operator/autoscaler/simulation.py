"""Simulation of a cluster for the autoscaler: pods with a startup time, a clock, and a trace of the decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from unmask_operator.autoscaler.decide import decide
from unmask_operator.autoscaler.history import History, Sample
from unmask_operator.autoscaler.rules import Rules
from unmask_operator.plan.observed import Decision

START = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Simulation:
    """Replicas that are Ready after `startup` seconds and divide the load. The `broken` youngest ones never are."""

    rules: Rules
    replicas: int = 1
    startup: float = 20
    broken: int = 0
    max_running: float = 128
    missing: Callable[[int, float], bool] = lambda pod, second: False
    second: float = 0
    history: History = field(default_factory=History)
    births: list[float] = field(default_factory=list)
    trace: list[tuple[float, int, Decision, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.births = [-1e9] * self.replicas

    @property
    def ready(self) -> list[int]:
        started = [n for n, birth in enumerate(self.births) if self.second - birth >= self.startup]
        return started[: max(len(self.births) - self.broken, 0)]

    def look(self, load: float, kv_percent: float = 0, running: float | None = None) -> Decision:
        """Polls once, with `load` waiting requests in total and as many running ones, or `running` if given."""
        ready = self.ready
        per_replica = load / len(ready) if ready else 0
        seen = [n for n in ready if not self.missing(n, self.second)]
        reading = {
            "queuedRequestsPerReplica": per_replica,
            "runningRequestsPerReplica": per_replica if running is None else running / max(len(ready), 1),
            "kvCacheUtilizationPercent": kv_percent,
            "max_running": self.max_running,
        }
        started = self.births[: max(len(self.births) - self.broken, 0)]
        view = Sample(
            START + timedelta(seconds=self.second),
            self.replicas,
            {str(n): reading for n in seen},
            {str(n): "no answer" for n in ready if n not in seen},
            {str(n): min(self.second - birth, self.startup) for n, birth in enumerate(started)},
        )
        decision, self.history = decide(self.rules, view, self.history)
        self.trace.append((self.second, self.replicas, decision, not view.failures))
        if decision.desired != self.replicas:
            self.history = self.history.scaled(view.time, decision.desired - self.replicas)
            self.resize(decision.desired)
        return decision

    def resize(self, replicas: int) -> None:
        self.births = self.births[:replicas] + [self.second] * (replicas - len(self.births))
        self.replicas = replicas

    def run(self, seconds: float, load: Callable[[float], float] | float) -> Simulation:
        end = self.second + seconds
        while self.second < end:
            self.look(load(self.second) if callable(load) else load)
            self.second += self.rules.polling
        return self

    def restart(self) -> None:
        """Resets the history, as a restart of the operator does."""
        self.history = History()

    @property
    def sizes(self) -> list[int]:
        return [decision.desired for _, _, decision, _ in self.trace]
