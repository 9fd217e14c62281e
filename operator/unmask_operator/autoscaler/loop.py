"""The loop around the decisions: who is due, scrape, decide, have `spec.replicas` written."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from unmask_operator.autoscaler.decide import decide
from unmask_operator.autoscaler.history import History, Reading, View
from unmask_operator.autoscaler.rules import Rules
from unmask_operator.objects import Key, Obj
from unmask_operator.state.observed import Decision
from unmask_operator.status.facts import section
from unmask_operator.status.pods import is_live, is_ready, load_seconds, name

log = logging.getLogger(__name__)

LONGEST_SLEEP = 5.0  # seconds: so soon a new service, or a shorter polling interval, is noticed

Scrape = Callable[[Mapping[str, str], Collection[str]], Awaitable[tuple[dict[str, Reading], dict[str, str]]]]


@dataclass
class Autoscaler:
    """Decides for every service of provider Builtin at its polling interval."""

    services: Callable[[], Iterable[tuple[Key, Obj]]]  # every resource as last seen
    pods: Callable[[Key], Sequence[Obj]]  # those of a resource, in any phase
    # Writes `spec.replicas` through the scale subresource. Any exception means that it was not written.
    scale: Callable[[Key, int], Awaitable[None]]
    decided: Callable[[Key], None]  # told whose decision is another than before: its status is due
    scrape: Scrape  # IP addresses by pod, targets -> (readings, failures), see `scrape.scrape`
    now: Callable[[], datetime]  # the clock (UTC)

    def __post_init__(self) -> None:
        self._histories: dict[Key, History] = {}
        self._decisions: dict[Key, Decision] = {}
        self._due: dict[Key, datetime] = {}

    def decision(self, key: Key) -> Decision | None:
        """The last word on a service; None before its pods were read and where Builtin has no say."""
        return self._decisions.get(key)

    async def run(self) -> None:
        """Tick for ever. Cancel it when leadership ends: the next leader begins with an empty memory."""
        while True:
            await asyncio.sleep(await self.tick())

    async def tick(self) -> float:
        """Look at every service that is due, all at once. Returns seconds until the next one is (at most 5)."""
        rules = {}
        services = {}
        for key, service in self.services():
            found = Rules.read(section(service, "spec"))
            if found is not None and not service["metadata"].get("deletionTimestamp"):
                rules[key], services[key] = found, service
        for gone in set(self._histories) - set(rules):
            for memory in (self._histories, self._decisions, self._due):
                memory.pop(gone, None)
        start = self.now()
        due = [key for key in rules if self._due.get(key, start) <= start]
        looks = (self._look(key, services[key], rules[key]) for key in due)
        results = await asyncio.gather(*looks, return_exceptions=True)  # one service's misfortune is not the others'
        for key, result in zip(due, results, strict=True):
            if isinstance(result, BaseException):
                log.error("%s: autoscaling failed", key, exc_info=result)
            self._due[key] = start + timedelta(seconds=rules[key].polling)
        end = self.now()
        waits = [(self._due.get(key, end) - end).total_seconds() for key in rules]
        return min(max(min(waits, default=LONGEST_SLEEP), 0.05), LONGEST_SLEEP)

    async def _look(self, key: Key, service: Obj, rules: Rules) -> None:
        pods = [pod for pod in self.pods(key) if is_live(pod)]
        readings, failures = await self.scrape(ready_addresses(pods), rules.targets)
        now = self.now()
        loads = {name(pod): load_seconds(pod, now, readings.get(name(pod), {}).get("loaded", 0.0)) for pod in pods}
        view = View(now, service["spec"].get("replicas", 1), readings, failures, loads)
        decision, history = decide(rules, view, self._histories.get(key, History()))
        if decision.desired != view.replicas:
            try:
                await self.scale(key, decision.desired)
            except Exception as error:  # whatever a client may raise; the next look tries again
                log.warning("%s: replicas %d -> %d not written: %s", key, view.replicas, decision.desired, error)
                reason = f"spec.replicas could not be written: {error}"
                decision = replace(decision, reason=reason, healthy=False)
            else:
                log.info("%s: replicas %d -> %d: %s", key, view.replicas, decision.desired, decision.reason)
                history = history.scaled(view.time, decision.desired - view.replicas)
                decision = replace(decision, last_scale_time=history.last_scale_time)
        self._histories[key] = history
        if history.blank and decision.healthy and decision.desired == view.replicas:
            return  # nothing was read yet: what the last leader said of it stands until patience is over
        if self._decisions.get(key) != decision:
            self._decisions[key] = decision
            self.decided(key)


def ready_addresses(pods: Sequence[Obj]) -> dict[str, str]:
    """IP addresses by name of the live pods that take traffic."""
    return {name(pod): address for pod in pods if is_ready(pod) and (address := pod["status"].get("podIP"))}
