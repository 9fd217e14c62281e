"""Writes Events of resources: repeated ones as a series, and a limited number per resource, as client-go does.

client-go patches the first Event of a series. The operator has no right to patch Events, so it creates one per
`SERIES_SECONDS` that has the count.
"""

import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from unmask_operator.kinds import EVENTS
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import API_VERSION, FIELD_MANAGER, KIND, Key, Obj, seconds
from unmask_operator.status.limits import EVENT_NOTE_LENGTH, EVENT_REASON_LENGTH, valid_bytes, valid_reason
from unmask_operator.status.transitions import Event

SERIES_SECONDS = 300.0  # between two Events of a series; a series ends after twice this time without an Event
BURST = 25  # Events of a resource, of which one is regained per REFILL_SECONDS
REFILL_SECONDS = 300.0

log = logging.getLogger(__name__)


@dataclass
class _Series:
    first: datetime
    written: datetime | None = None
    last: datetime | None = None
    count: int = 0
    pending: bool = False  # whether there were Events since the last write

    def is_over(self, now: datetime) -> bool:
        return self.last is not None and now - self.last > timedelta(seconds=2 * SERIES_SECONDS)


class EventRecorder:
    """Writes the Events of one resource. The state is in memory, per leader.

    Args:
        client: Requests to the API server.
        instance: Name of the operator's pod, which reports the Events.
    """

    def __init__(self, client: Client, instance: str) -> None:
        self._client = client
        self._instance = instance
        self._tokens, self._refilled = float(BURST), datetime.min.replace(tzinfo=UTC)
        self._series: dict[Event, _Series] = {}

    def _take(self, now: datetime) -> bool:
        """Returns whether an Event may be written, and counts it."""
        regained = seconds(self._refilled, now) / REFILL_SECONDS
        self._tokens, self._refilled = min(BURST, self._tokens + regained), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def record(self, resource: Obj, events: Iterable[Event], now: datetime) -> None:
        """Writes new Events, and those of series that are due. An Event that cannot be written fails no reconcile."""
        self._series = {event: one for event, one in self._series.items() if one.pending or not one.is_over(now)}
        for event in events:
            one = self._series.setdefault(event, _Series(now))
            if one.last != now:  # one reconcile may tell the same twice
                one.count, one.last, one.pending = one.count + 1, now, True
        for event, one in list(self._series.items()):
            waits = one.written is not None and now - one.written < timedelta(seconds=SERIES_SECONDS)
            if not one.pending or waits:
                continue
            if not self._take(now):
                if one.written is None:
                    del self._series[event]  # memory is limited too
                continue
            one.written, one.pending = now, False
            try:
                await self._client.create(event_object(resource, event, self._instance, one.first, one.last, one.count))
            except ApiError as error:
                log.warning("cannot write an Event: %s", error, extra={"service": Key.of(resource)})


def event_object(
    resource: Obj, event: Event, instance: str, first: datetime, last: datetime | None = None, count: int = 1
) -> Obj:
    """Returns an Event of events.k8s.io/v1, with a series if it occurred more than once."""
    meta = resource["metadata"]
    series = {"series": {"count": count, "lastObservedTime": _stamp(last or first)}} if count > 1 else {}
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": meta["namespace"], "name": f"{meta['name']}.{uuid.uuid4().hex[:16]}"},
        "regarding": {"apiVersion": API_VERSION, "kind": KIND, **{m: meta[m] for m in ("namespace", "name", "uid")}},
        "type": event.type,
        "reason": valid_reason(event.reason),
        "note": valid_bytes(event.message, EVENT_NOTE_LENGTH),
        "action": "Reconcile",
        "eventTime": _stamp(first),
        "reportingController": FIELD_MANAGER,
        "reportingInstance": valid_bytes(instance, EVENT_REASON_LENGTH),
        **series,
    }


def _stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
