"""Events of pods that do not come up and whose status does not say why."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import EVENTS
from unmask_operator.objects import Key, Obj
from unmask_operator.plan.observed import PodEvent
from unmask_operator.status.pods.event_messages import is_silent

AGAIN_SECONDS = 30.0  # between the first two looks at one pod; each pause is twice the one before
LONGEST_SECONDS = 240.0  # of those pauses: pulling a large image keeps many pods silent for long

REPORTERS = ("kubelet", "attachdetach-controller")  # who prepare and end pods; others' Events explain nothing here

log = logging.getLogger(__name__)


@dataclass
class PodEvents:
    """What was last told. `events` is by pod uid and holds only pods that are silent still."""

    client: Client
    pods: Callable[[], Iterable[tuple[Key, Obj]]]  # all there are, each with its resource's key
    changed: Callable[[Key], None]  # told of whose pods something new was told
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._requested: dict[str, tuple[float, float]] = {}  # when, and how long until the next look
        self.events: Mapping[str, Sequence[PodEvent]] = {}

    async def poll(self) -> None:
        """Ask about the silent pods that are due. While none is silent the API server is asked nothing."""
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
                log.warning("Events of a pod cannot be read: %s", error)
                continue
            if (found := in_order(events)) != self.events.get(uid, ()):
                self.events = {**self.events, uid: found}
                self.changed(key)


def in_order(events: Iterable[Obj]) -> tuple[PodEvent, ...]:
    """Those of the node and its volumes, oldest first, by when each was last seen."""
    return tuple(
        PodEvent(
            str(event.get("reason") or ""),
            str(event.get("note") or ""),
            event.get("type") == "Warning",
            _container(event),
        )
        for event in sorted(events, key=_last_seen)
        if _reporter(event) in REPORTERS
    )


def _container(event: Obj) -> str:
    """The container of a field path such as ``spec.containers{main}``; "" without one."""
    path = str((event.get("regarding") or {}).get("fieldPath") or "")
    return path.partition("{")[2].removesuffix("}")


def _reporter(event: Obj) -> str:
    source = event.get("deprecatedSource") or {}
    return str(event.get("reportingController") or source.get("component") or "")


def _last_seen(event: Obj) -> str:
    """The time as text, which sorts as the time does to the second."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("deprecatedLastTimestamp"), event.get("eventTime"))
    return next((str(at) for at in times if at), "")
