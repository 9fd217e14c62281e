"""Tests that a flapping pod cannot fill etcd with Events, and that new facts are still told."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.operator.samples import resource
from unmask_operator.controller.event_recorder import BURST, REFILL_SECONDS, SERIES_SECONDS, EventRecorder
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key, Obj
from unmask_operator.status.transitions import Event

KEY = Key("default", "demo")
START = datetime(2026, 1, 1, tzinfo=UTC)
FLAP = Event("Warning", "Unavailable", "the probe fails")


class Scene:
    """A recorder with a fake client, and a clock."""

    def __init__(self) -> None:
        self.written: list[Obj] = []
        self.now = START
        client: Any = self
        self.recorder = EventRecorder(client, "operator-0")

    async def create(self, obj: Obj) -> Obj:
        self.written.append(obj)
        if obj["reason"] == "Refused":
            raise ApiError(403, "Forbidden", "no")
        return obj

    def record(self, *events: Event, seconds: float = 0.0) -> None:
        self.now += timedelta(seconds=seconds)
        asyncio.run(self.recorder.record(resource(), events, self.now))

    @property
    def counts(self) -> list[int]:
        return [event.get("series", {}).get("count", 1) for event in self.written]


def test_a_pod_that_flaps_for_an_hour_makes_one_event_per_five_minutes_with_the_count():
    scene = Scene()
    for _ in range(900):
        scene.record(FLAP, seconds=4)
    assert len(scene.written) == 3600 / SERIES_SECONDS
    assert scene.counts[:2] == [1, 1 + SERIES_SECONDS / 4]
    assert scene.written[1]["eventTime"] == scene.written[0]["eventTime"]
    scene.record(seconds=SERIES_SECONDS)  # a reconcile without a change
    assert scene.counts[-1] == 900
    scene.record(FLAP, seconds=3 * SERIES_SECONDS)
    assert scene.counts[-1] == 1, "an Event after a long time begins a new series"


def test_a_resource_writes_a_burst_of_different_events_and_then_one_per_five_minutes():
    scene = Scene()
    for number in range(1000):
        scene.record(Event("Normal", "Scaled", f"to {number}"), seconds=1)
    assert BURST <= len(scene.written) <= BURST + 1000 / REFILL_SECONDS
    assert len(scene.recorder._series) <= len(scene.written)


def test_an_event_that_is_refused_fails_nothing():
    scene = Scene()
    scene.record(Event("Normal", "Refused", "no"), FLAP, FLAP)
    assert [event["reason"] for event in scene.written] == ["Refused", "Unavailable"]
