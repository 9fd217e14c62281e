"""Tests of the autoscaler's loop: polling intervals, writes of replicas, and failures."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.autoscaler.simulation import START
from tests.wait import TIMEOUT
from unmask_operator.autoscaler.loop import LONGEST_SLEEP, Autoscaler, ready_addresses
from unmask_operator.objects import Obj
from unmask_operator.plan.observed import Decision


def _service(replicas: int, **autoscaling: Any) -> Obj:
    scaling = {"pollingIntervalSeconds": 15, "maxReplicas": 5, "targets": {"queuedRequestsPerReplica": 10}}
    return {"metadata": {"name": "s"}, "spec": {"replicas": replicas, "autoscaling": scaling | autoscaling}}


def _ready(name: str, address: str, seconds: float = 0.0, ready: str = "True") -> Obj:
    times = {"PodScheduled": START, "Ready": START + timedelta(seconds=seconds)}
    conditions = [{"type": k, "status": ready, "lastTransitionTime": t.isoformat()} for k, t in times.items()]
    main = {"name": "main", "state": {"running": {"startedAt": START.isoformat()}}}
    status = {"podIP": address, "conditions": conditions, "containerStatuses": [main]}
    return {"metadata": {"name": name}, "spec": {"nodeName": "n", "containers": [{"name": "main"}]}, "status": status}


class World:
    """The loop with a clock, and by service the waiting requests of each pod (None: no pod answers)."""

    def __init__(self, services: dict[str, Obj], **load: float | None) -> None:
        self.all, self.load, self.now = services, load, START
        self.refuse, self.loaded, self.extra_metrics, self.before_scrape = False, 0.0, {}, None
        self.writes, self.decisions, self.looks = [], [], []
        shell = (services.items, services.get, self.pods, self.scale, self.decisions.append)
        self.autoscaler = Autoscaler(*shell, self.scrape, lambda: self.now)

    def pods(self, key: str) -> list[Obj]:
        return [_ready(f"{key}-{n}", f"{key}#{n}", self.loaded) for n in range(self.all[key]["spec"]["replicas"])]

    async def scale(self, key: str, replicas: int) -> None:
        if self.refuse:
            raise OSError("no way")
        self.writes.append((key, replicas))
        self.all[key]["spec"]["replicas"] = replicas

    async def scrape(self, addresses: Mapping[str, str], targets: Collection[str]) -> Any:
        key = next(iter(addresses)).rsplit("-", 1)[0]
        self.looks.append(key)
        if self.before_scrape:
            await self.before_scrape(key)
        load = self.load[key]
        if load is None:
            return {}, dict.fromkeys(addresses, "gone")
        return {pod: dict.fromkeys(targets, load) | self.extra_metrics for pod in addresses}, {}

    def tick(self, seconds: float = 0) -> float:
        self.now += timedelta(seconds=seconds)
        return asyncio.run(self.autoscaler.tick())

    def decision(self, key: str) -> Decision | None:
        return self.autoscaler.decision(key)


def test_each_service_at_its_own_interval() -> None:
    services = {"a": _service(1), "b": _service(1, pollingIntervalSeconds=4), "c": {"metadata": {}, "spec": {}}}
    world = World(services, a=0, b=0)
    assert world.tick() == 4
    assert world.looks == ["a", "b"]
    assert world.tick(4) == 4
    assert world.looks == ["a", "b", "b"]
    assert world.tick(3) == 1
    assert len(world.looks) == 3
    world.tick(8)
    assert sorted(world.looks[3:]) == ["a", "b"]


def test_replicas_are_written_and_the_decision_is_reported_once() -> None:
    world = World({"a": _service(1)}, a=35)
    world.tick()
    assert world.writes == [("a", 4)]
    assert world.decision("a") == Decision(4, "scaled up for queuedRequestsPerReplica", True, START)
    world.load["a"] = 10
    for _ in range(5):
        world.tick(15)
    assert world.writes == [("a", 4)]
    assert world.decisions == ["a", "a"]  # scaled up, then unchanged
    assert world.decision("a").last_scale_time == START


def test_a_failed_write_is_reported_and_retried() -> None:
    world = World({"a": _service(1)}, a=20)
    world.refuse = True
    world.tick()
    assert world.decision("a") == Decision(2, "cannot write spec.replicas: no way", False, None)
    world.refuse = False
    world.tick(15)
    assert world.writes == [("a", 2)]


def test_a_new_leader_reports_missing_metrics_only_after_a_minute() -> None:
    world = World({"a": _service(1)}, a=None)
    for _ in range(5):
        world.tick(15)
        assert world.decision("a") is None
    world.tick(15)
    assert not world.decision("a").healthy
    assert world.decision("a").reason.endswith("a-0: gone")
    world.load["a"] = 0
    world.tick(15)
    assert world.decision("a").healthy
    assert world.decisions == ["a", "a"]


def test_a_service_that_cannot_be_read_does_not_stop_the_others() -> None:
    broken = _service(1, behavior={"scaleUp": {"policies": [{"type": "Pods"}]}})
    odd = {"metadata": {}, "spec": {"autoscaling": "yes"}}
    going = _service(1)
    going["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    world = World({"bad": broken, "odd": odd, "going": going, "bug": _service(1), "a": _service(1)}, a=20)
    assert world.tick() == LONGEST_SLEEP
    assert world.looks == ["bug", "a"]  # the scrape of the former raises a KeyError
    assert world.writes == [("a", 2)]
    assert world.decision("bad") is None


def test_decisions_of_suspended_services_and_of_those_with_an_hpa_are_dropped() -> None:
    world = World({"a": _service(2)}, a=10)
    world.tick()
    assert world.decision("a").desired == 2
    world.all["a"]["spec"]["suspend"] = True
    assert world.tick(1) == LONGEST_SLEEP
    assert world.decision("a") is None
    world.all["a"]["spec"]["suspend"] = False
    world.tick(1)
    assert len(world.looks) == 2
    world.all["a"]["spec"]["autoscaling"]["provider"] = "HPA"
    world.tick(15)
    assert world.decision("a") is None


@pytest.mark.parametrize("edit", [{"suspend": True}, None])
def test_a_decision_about_a_service_that_changed_during_its_scrape_is_dropped(edit: Obj | None) -> None:
    world = World({"a": _service(1)}, a=35)

    async def change(key: str) -> None:
        if edit:
            world.all[key]["spec"] |= edit
        else:
            world.all[key] = {**world.all[key], "metadata": {"name": "s", "uid": "another"}}

    world.before_scrape = change
    world.tick()
    assert world.writes == []
    assert world.decision("a") is None


@pytest.mark.parametrize(
    ("loaded", "metrics", "minutes"),
    [
        (600, {}, 20),  # twice the load time that the status shows
        (3000, {"load_seconds": 60}, 5),  # the pod became Ready again: its metrics have the load time
    ],
)
def test_the_load_time_of_the_pods_lengthens_the_stable_window(loaded: float, metrics: Obj, minutes: int) -> None:
    world = World({"a": _service(3, pollingIntervalSeconds=60)}, a=0)
    world.loaded, world.extra_metrics = loaded, metrics
    for _ in range(minutes):
        world.tick(60)
    assert world.writes == []
    world.tick(60)
    assert world.writes == [("a", 1)]


def test_only_pods_that_take_traffic_are_read() -> None:
    pods = [_ready("a", "10.0.0.1"), _ready("b", "10.0.0.2", ready="False"), {"metadata": {"name": "c"}}]
    assert ready_addresses(pods) == {"a": "10.0.0.1"}


def test_a_service_whose_pods_answer_slowly_delays_no_other() -> None:
    """Only one scrape of the slow service runs at a time, and a later tick uses its result."""
    world = World({"slow": _service(1), "quick": _service(1)}, slow=35, quick=35)

    async def go() -> None:
        answer = asyncio.Event()

        async def wait(key: str) -> None:
            if key == "slow":
                await answer.wait()

        world.before_scrape = wait
        for _ in range(2):
            await world.autoscaler.tick(timeout=0.05)
            world.now += timedelta(seconds=15)
        assert world.decision("quick")
        assert world.decision("slow") is None
        assert world.looks.count("slow") == 1
        answer.set()
        await world.autoscaler.tick()
        assert world.decision("slow")

    asyncio.run(go())


def test_the_end_of_leadership_ends_every_scrape() -> None:
    async def go() -> None:
        world, begun, ended = World({"a": _service(1)}, a=35), asyncio.Event(), asyncio.Event()

        async def wait(key: str) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        world.before_scrape = wait
        run = asyncio.create_task(world.autoscaler.run())
        await begun.wait()
        run.cancel()
        await asyncio.wait_for(ended.wait(), TIMEOUT)

    asyncio.run(go())
