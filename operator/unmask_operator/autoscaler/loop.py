"""The autoscaler's loop: scrapes due resources, decides, and writes `spec.replicas`."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from unmask_operator.autoscaler import idle
from unmask_operator.autoscaler.decide import decide
from unmask_operator.autoscaler.history import History, Reading, Sample
from unmask_operator.autoscaler.idle import Idleness, Routing
from unmask_operator.autoscaler.rules import Rules
from unmask_operator.objects import Key, Obj, is_ready, section, serves
from unmask_operator.plan.observed import Decision
from unmask_operator.status.pods.pod_status import is_live, load_seconds, name

log = logging.getLogger(__name__)

LONGEST_SLEEP = 5.0  # seconds; upper bound for the detection of new resources and shorter polling intervals
SHORTEST_SLEEP = 0.05  # seconds
LONGEST_TICK = 1.0  # seconds that a tick waits for pods

Scrape = Callable[[Mapping[str, str], Collection[str]], Awaitable[tuple[dict[str, Reading], dict[str, str]]]]


@dataclass
class Autoscaler:
    """Scales every resource with provider Builtin at its polling interval."""

    resources: Callable[[], Iterable[tuple[Key, Obj]]]  # all cached resources
    resource: Callable[[Key], Obj | None]  # a cached resource
    pods: Callable[[Key], Sequence[Obj]]  # cached pods of a resource, in any phase
    # Writes `spec.replicas` through the scale subresource; raises an exception on failure.
    scale: Callable[[Key, int], Awaitable[None]]
    decided: Callable[[Key], None]  # called after a change of the decision, to update the status
    scrape: Scrape  # IP addresses by pod, targets -> (readings, failures), see `scrape.scrape`
    now: Callable[[], datetime]  # the clock (UTC)
    routing: Callable[[Key], Routing] = lambda key: Routing()  # the state of the activator for a resource

    def __post_init__(self) -> None:
        self._histories: dict[Key, History] = {}
        self._decisions: dict[Key, Decision] = {}
        self._idle: dict[Key, Idleness] = {}  # of resources that scale to zero
        self._due: dict[Key, datetime] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}  # scrapes in progress

    def decision(self, key: Key) -> Decision | None:
        """Returns the last decision; None before the first scrape and for other providers."""
        return self._decisions.get(key)

    async def run(self) -> None:
        """Runs until cancelled. A new leader starts with an empty history."""
        try:
            while True:
                await asyncio.sleep(await self.tick(LONGEST_TICK))
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def tick(self, timeout: float | None = None) -> float:
        """Scrapes every due resource and decides.

        Args:
            timeout: Seconds after which the tick returns. Slow scrapes finish in the background, so they do not delay
                other resources. None: waits for all scrapes.

        Returns:
            Seconds until the next resource is due, at most `LONGEST_SLEEP`.
        """
        start, scaled = self.now(), set[Key]()
        for key, resource in self.resources():
            rules = Rules.read(section(resource, "spec"))
            if rules is None or resource["metadata"].get("deletionTimestamp"):
                continue
            scaled.add(key)
            is_due = self._due.get(key, start) <= start or self._was_woken(key, resource)
            if key not in self._tasks and is_due:
                self._due[key] = start + timedelta(seconds=rules.polling)
                task = self._tasks[key] = asyncio.create_task(self._look(key, resource, rules))
                task.add_done_callback(functools.partial(self._ended, key))
        for gone in self._histories.keys() - scaled:
            for memory in (self._histories, self._decisions, self._idle, self._due):
                memory.pop(gone, None)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=timeout)
        end = self.now()
        waits = [(self._due[key] - end).total_seconds() for key in scaled & self._due.keys()]
        return min(max(min(waits, default=LONGEST_SLEEP), SHORTEST_SLEEP), LONGEST_SLEEP)

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if not task.cancelled() and (error := task.exception()):  # a failure must not affect other resources
            log.error("%s: autoscaling failed", key, exc_info=error)

    async def _look(self, key: Key, resource: Obj, rules: Rules) -> None:
        pods = [pod for pod in self.pods(key) if is_live(pod) and serves(pod)]
        needed = {*rules.targets, *idle.NEEDED} if rules.zero else rules.targets
        readings, failures = await self.scrape(ready_addresses(pods), needed)
        fresh = self.resource(key)
        fresh_rules = None if fresh is None else Rules.read(section(fresh, "spec"))
        if fresh is None or fresh_rules is None or fresh["metadata"].get("uid") != resource["metadata"].get("uid"):
            return  # deleted, recreated or no longer scaled by Builtin during the scrape
        resource, rules = fresh, fresh_rules
        now = self.now()
        reported = {pod: reading.get("load_seconds", 0.0) for pod, reading in readings.items()}
        loads = {name(pod): load_seconds(pod, now, reported.get(name(pod), 0.0)) for pod in pods}
        sample = Sample(now, resource["spec"].get("replicas", 1), readings, failures, loads)
        decision, history = self._decide(key, rules, sample)
        old, new = sample.replicas, decision.desired
        if new != old:
            self._decisions[key] = decision  # a reconcile may see the new replicas before this write returns
            try:
                await self.scale(key, new)
            except Exception as error:  # any error of the client; the next tick retries
                log.warning("%s: cannot scale from %d to %d replicas: %s", key, old, new, error)
                reason = f"cannot write spec.replicas: {error}"
                decision = replace(decision, reason=reason, healthy=False)
            else:
                log.info("%s: scaled from %d to %d replicas: %s", key, old, new, decision.reason)
                history = history.scaled(sample.time, new - old)
                decision = replace(decision, last_scale_time=history.last_scale_time)
        self._histories[key] = history
        if history.warming_up and decision.healthy and new == old and not decision.idle:
            return  # no complete sample yet: keep the previous leader's status until the metrics are stale
        if self._decisions.get(key) != decision:
            self._decisions[key] = decision
            self.decided(key)

    def _decide(self, key: Key, rules: Rules, sample: Sample) -> tuple[Decision, History]:
        """Decides by load, and then whether an idle resource has no replicas."""
        history, awake = self._histories.get(key, History()), None
        if rules.zero is None or sample.replicas:
            awake, history = decide(rules, sample, history)
            if rules.zero is None:
                return awake, history
        routing = self.routing(key)
        self._idle[key] = self._idle.get(key, Idleness()).with_sample(sample, rules.polling, routing)
        return idle.decide(rules.zero, sample, self._idle[key], routing, awake), history

    def _was_woken(self, key: Key, resource: Obj) -> bool:
        """Returns whether the activator has added a replica since the last decision."""
        decision = self._decisions.get(key)
        return bool(decision and decision.idle and not decision.desired and resource["spec"].get("replicas"))


def ready_addresses(pods: Sequence[Obj]) -> dict[str, str]:
    """Returns the IP addresses of the Ready pods by pod name."""
    return {name(pod): address for pod in pods if is_ready(pod) and (address := pod["status"].get("podIP"))}
