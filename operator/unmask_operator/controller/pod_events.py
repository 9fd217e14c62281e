"""Reads the Events of pods that are not Ready and whose status does not explain why."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from unmask_operator.kinds import EVENTS
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key, Obj, section
from unmask_operator.plan.observed import PodEvent
from unmask_operator.status.pods.event_messages import is_silent

AGAIN_SECONDS = 30.0  # between the first two reads for a pod; each pause is twice the previous one
LONGEST_SECONDS = 240.0  # longest pause; many pods have no explanation while a large image is pulled

# Components that start and stop pods. Events of others do not explain why a pod does not start.
REPORTERS = ("kubelet", "attachdetach-controller")

log = logging.getLogger(__name__)


@dataclass
class PodEvents:
    """The last Events of each pod that still has no explanation, by uid."""

    client: Client
    pods: Callable[[], Iterable[tuple[Key, Obj]]]  # all pods, each with its resource's key
    changed: Callable[[Key], None]  # called with the resource whose pods have new Events
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._requested: dict[str, tuple[float, float]] = {}  # time of the last read, and seconds until the next one
        self.events: Mapping[str, Sequence[PodEvent]] = {}

    async def poll(self) -> None:
        """Reads the Events of the pods that are due. Without such pods no request is sent."""
        now = datetime.now(UTC)
        silent = {pod["metadata"]["uid"]: key for key, pod in self.pods() if is_silent(pod, now)}
        self._requested = {uid: requested for uid, requested in self._requested.items() if uid in silent}
        self.events = {uid: found for uid, found in self.events.items() if uid in silent}
        for uid, key in silent.items():
            requested, pause = self._requested.get(uid, (float("-inf"), AGAIN_SECONDS / 2))
            if self.clock() - requested < pause:
                continue
            self._requested[uid] = self.clock(), min(2 * pause, LONGEST_SECONDS)
            try:
                events, _ = await self.client.list(EVENTS, key.namespace, fields=f"regarding.uid={uid}")
            except ApiError as error:
                log.warning("cannot list the Events of a pod: %s", error, extra={"service": key})
                continue
            if (found := in_order(events)) != self.events.get(uid, ()):
                self.events = {**self.events, uid: found}
                self.changed(key)


def in_order(events: Iterable[Obj]) -> tuple[PodEvent, ...]:
    """Returns the Events about the node and volumes, sorted by the time they were last seen, oldest first."""
    found = []
    for event in sorted(events, key=_last_seen):
        reporter = event.get("reportingController") or section(event, "deprecatedSource").get("component")
        if reporter in REPORTERS:
            reason, note = (str(event.get(member) or "") for member in ("reason", "note"))
            path = str(section(event, "regarding").get("fieldPath") or "")  # such as spec.containers{main}
            container = path.partition("{")[2].removesuffix("}")
            found.append(PodEvent(reason, note, event.get("type") == "Warning", container))
    return tuple(found)


def _last_seen(event: Obj) -> str:
    """Returns the time as text. Its order is that of the times, to the second."""
    series = section(event, "series").get("lastObservedTime")
    return str(series or event.get("deprecatedLastTimestamp") or event.get("eventTime") or "")
