"""Events of pods that do not come up and whose status does not say why."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from unmask_operator.client.errors import ApiError
from unmask_operator.objects import Key, Obj
from unmask_operator.state.observed import Told

AGAIN_SECONDS = 30.0  # between the first two looks at one pod; each pause is twice the one before
LONGEST_SECONDS = 240.0  # of those pauses: pulling a large image keeps many pods silent for long

HEEDED = ("kubelet", "attachdetach-controller")  # who prepare and end pods; others' Events explain nothing here

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Silent:
    """A pod to ask about: its uid, and the resource it belongs to."""

    uid: str
    key: Key


class PodEvents:
    """What was last told. `told` is by pod uid and holds only pods that are silent still."""

    def __init__(
        self,
        silent: Callable[[], Iterable[Silent]],
        read: Callable[[Silent], Awaitable[Sequence[Obj]]],
        changed: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silent = silent
        self._read = read
        self._changed = changed
        self._clock = clock
        self._asked: dict[str, tuple[float, float]] = {}  # when, and how long until the next look
        self.told: Mapping[str, Sequence[Told]] = {}

    async def poll(self) -> None:
        """Ask about the silent pods that are due. While none is silent the API server is asked nothing."""
        pods = {pod.uid: pod for pod in self._silent()}
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in pods}
        self.told = {uid: told for uid, told in self.told.items() if uid in pods}
        for uid, pod in pods.items():
            asked, pause = self._asked.get(uid, (float("-inf"), AGAIN_SECONDS / 2))
            if self._clock() - asked < pause:
                continue
            self._asked[uid] = self._clock(), min(2 * pause, LONGEST_SECONDS)
            try:
                told = in_order(await self._read(pod))
            except ApiError as error:
                log.warning("Events of a pod cannot be read: %s", error)
                continue
            if told != self.told.get(uid, ()):
                self.told = {**self.told, uid: told}
                self._changed(pod.key)


def in_order(events: Iterable[Obj]) -> tuple[Told, ...]:
    """Those of the node and its volumes, oldest first, by when each was last seen."""
    return tuple(
        Told(str(event.get("reason") or ""), str(event.get("note") or ""), event.get("type") == "Warning")
        for event in sorted(events, key=_last_seen)
        if _reporter(event) in HEEDED
    )


def _reporter(event: Obj) -> str:
    source = event.get("deprecatedSource") or {}
    return str(event.get("reportingController") or source.get("component") or "")


def _last_seen(event: Obj) -> str:
    """The time as text, which sorts as the time does to the second."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("deprecatedLastTimestamp"), event.get("eventTime"))
    return next((str(at) for at in times if at), "")
