"""Tests of the autoscaler's loop: polling intervals, writes of replicas, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tests.operator.autoscaler.simulation import START
from tests.wait import TIMEOUT
from unmask_operator.autoscaler.history import Reading
from unmask_operator.autoscaler.loop import LONGEST_SLEEP, Autoscaler, ready_addresses
from unmask_operator.objects import Obj


def _service(replicas: int, **autoscaling: Any) -> Obj:
    scaling = {
        "pollingIntervalSeconds": 15,
        "minReplicas": 1,
        "maxReplicas": 5,
        "targets": {"queuedRequestsPerReplica": 10},
        **autoscaling,
    }
    return {"metadata": {"name": "s"}, "spec": {"replicas": replicas, "autoscaling": scaling}}


def _ready(name: str, address: str, seconds: float = 0.0, ready: str = "True") -> Obj:
    times = {"PodScheduled": START, "Ready": START + timedelta(seconds=seconds)}
    conditions = [{"type": k, "status": ready, "lastTransitionTime": t.isoformat()} for k, t in times.items()]
    spec = {"nodeName": "n", "containers": [{"name": "main"}]}
    main = {"name": "main", "state": {"running": {"startedAt": START.isoformat()}}}
    status = {"podIP": address, "conditions": conditions, "containerStatuses": [main]}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


class World:
    """Fake of the loop's environment, with a clock and a load per pod address."""

    def __init__(self, services: dict[str, Obj]) -> None:
        self.all = services
        self.now = START
        self.load: dict[str, float] = {}
        self.refuse = False
        self.loaded = 0.0  # seconds from scheduling until Ready, by the pods' status
        self.extra_metrics: dict[str, float] = {}  # further metrics of each pod
        self.writes: list[tuple[str, int]] = []
        self.decisions: list[str] = []
        self.looks: list[str] = []

    def services(self) -> Iterable[tuple[str, Obj]]:
        return self.all.items()

    def pods(self, key: str) -> list[Obj]:
        return [_ready(f"{key}-{n}", f"{key}#{n}", self.loaded) for n in range(self.all[key]["spec"]["replicas"])]

    async def scale(self, key: str, replicas: int) -> None:
        if self.refuse:
            raise OSError("no way")
        self.writes.append((key, replicas))
        self.all[key]["spec"]["replicas"] = replicas

    def decided(self, key: str) -> None:
        self.decisions.append(key)

    async def scrape(
        self, addresses: Mapping[str, str], targets: Collection[str]
    ) -> tuple[dict[str, Reading], dict[str, str]]:
        self.looks += [pod.rsplit("-", 1)[0] for pod in addresses][:1]
        found: dict[str, Reading] = {
            pod: dict.fromkeys(targets, self.load[a]) | self.extra_metrics
            for pod, a in addresses.items()
            if a in self.load
        }
        return found, {pod: "gone" for pod in addresses if pod not in found}

    def clock(self) -> datetime:
        return self.now


def _autoscaler(world: World, scrape: Any = None) -> Autoscaler:
    shell = (world.services, world.all.get, world.pods, world.scale, world.decided)
    return Autoscaler(*shell, scrape or world.scrape, world.clock)  # type: ignore[arg-type]


def _tick(world: World, autoscaler: Autoscaler, seconds: float = 0) -> float:
    world.now += timedelta(seconds=seconds)
    return asyncio.run(autoscaler.tick())


def test_each_service_at_its_own_interval() -> None:
    world = World({"a": _service(1), "b": _service(1, pollingIntervalSeconds=4), "c": {"metadata": {}, "spec": {}}})
    world.load = {"a#0": 0, "b#0": 0}
    autoscaler = _autoscaler(world)
    assert _tick(world, autoscaler) == 4
    assert world.looks == ["a", "b"]
    assert _tick(world, autoscaler, 4) == 4
    assert world.looks == ["a", "b", "b"]
    assert _tick(world, autoscaler, 3) == 1
    assert len(world.looks) == 3
    _tick(world, autoscaler, 8)
    assert sorted(world.looks[3:]) == ["a", "b"]


def test_replicas_are_written_and_the_decision_is_reported_once() -> None:
    world = World({"a": _service(1)})
    world.load = {f"a#{n}": 35 for n in range(9)}
    autoscaler = _autoscaler(world)
    _tick(world, autoscaler)
    assert world.writes == [("a", 4)]
    decision = autoscaler.decision("a")
    assert decision is not None
    assert (decision.desired, decision.last_scale_time) == (4, START)
    assert decision.reason == "scaled up for queuedRequestsPerReplica"
    world.load = {f"a#{n}": 10 for n in range(9)}
    for _ in range(5):
        _tick(world, autoscaler, 15)
    assert world.writes == [("a", 4)]
    assert world.decisions == ["a", "a"]  # scaled up, then unchanged
    assert autoscaler.decision("a").last_scale_time == START  # type: ignore[union-attr]


def test_a_failed_write_is_reported_and_retried() -> None:
    world = World({"a": _service(1)})
    world.load = {f"a#{n}": 20 for n in range(9)}
    world.refuse = True
    autoscaler = _autoscaler(world)
    _tick(world, autoscaler)
    decision = autoscaler.decision("a")
    assert decision is not None
    assert not decision.healthy
    assert decision.reason == "cannot write spec.replicas: no way"
    assert decision.last_scale_time is None
    world.refuse = False
    _tick(world, autoscaler, 15)
    assert world.writes == [("a", 2)]


def test_a_new_leader_reports_missing_metrics_only_after_a_minute() -> None:
    world = World({"a": _service(1)})
    autoscaler = _autoscaler(world)
    for _ in range(5):
        _tick(world, autoscaler, 15)
        assert autoscaler.decision("a") is None
    _tick(world, autoscaler, 15)
    decision = autoscaler.decision("a")
    assert decision is not None
    assert not decision.healthy
    assert decision.reason.endswith("a-0: gone")
    world.load = {"a#0": 0}
    _tick(world, autoscaler, 15)
    assert autoscaler.decision("a").healthy  # type: ignore[union-attr]
    assert world.decisions == ["a", "a"]


def test_a_service_that_cannot_be_read_does_not_stop_the_others() -> None:
    broken = _service(1, behavior={"scaleUp": {"policies": [{"type": "Pods"}]}})
    world = World({"bad": broken, "odd": {"metadata": {}, "spec": {"autoscaling": "yes"}}, "a": _service(1)})
    world.load = {"a#0": 20}
    autoscaler = _autoscaler(world)
    _tick(world, autoscaler)
    assert world.writes == [("a", 2)]
    assert autoscaler.decision("bad") is None


def test_an_exception_in_one_scrape_does_not_stop_the_others() -> None:
    world = World({"a": _service(1), "b": _service(1)})
    world.load = {"b#0": 20}

    async def scrape(
        addresses: Mapping[str, str], targets: Collection[str]
    ) -> tuple[dict[str, Reading], dict[str, str]]:
        if "a-0" in addresses:
            raise RuntimeError("a bug")
        return await world.scrape(addresses, targets)

    autoscaler = _autoscaler(world, scrape)
    assert _tick(world, autoscaler) == LONGEST_SLEEP
    assert world.writes == [("b", 2)]


def test_decisions_of_suspended_services_and_of_those_with_an_hpa_are_dropped() -> None:
    world = World({"a": _service(2)})
    world.load = {f"a#{n}": 10 for n in range(9)}
    autoscaler = _autoscaler(world)
    _tick(world, autoscaler)
    assert autoscaler.decision("a") is not None
    world.all["a"]["spec"]["suspend"] = True
    assert _tick(world, autoscaler, 1) == LONGEST_SLEEP
    assert autoscaler.decision("a") is None
    world.all["a"]["spec"]["suspend"] = False
    _tick(world, autoscaler, 1)
    assert len(world.looks) == 2
    world.all["a"]["spec"]["autoscaling"]["provider"] = "HPA"
    _tick(world, autoscaler, 15)
    assert autoscaler.decision("a") is None


def test_the_load_time_that_a_pod_shows_lengthens_the_stable_window() -> None:
    """Checks that three replicas with a load time of ten minutes stay for 20 minutes without load."""
    world = World({"a": _service(3, pollingIntervalSeconds=60)})
    world.load = {f"a#{n}": 0 for n in range(3)}
    world.loaded = 600
    autoscaler = _autoscaler(world)
    for _ in range(20):
        _tick(world, autoscaler, 60)
    assert world.writes == []
    _tick(world, autoscaler, 60)
    assert world.writes == [("a", 1)]


def test_the_load_time_in_the_metrics_overrides_that_of_the_pod_status() -> None:
    """Checks that the load time of one minute in the metrics is used if pods became Ready again after 50 minutes.

    Five minutes without load then suffice for scaling down.
    """
    world = World({"a": _service(3, pollingIntervalSeconds=60)})
    world.load = {f"a#{n}": 0 for n in range(3)}
    world.loaded, world.extra_metrics = 3000, {"load_seconds": 60}
    autoscaler = _autoscaler(world)
    for _ in range(7):
        _tick(world, autoscaler, 60)
    assert world.writes == [("a", 1)]


def test_only_pods_that_take_traffic_are_read() -> None:
    pods = [
        _ready("a", "10.0.0.1"),
        _ready("b", "10.0.0.2", ready="False"),
        {"metadata": {"name": "c"}},
    ]
    assert ready_addresses(pods) == {"a": "10.0.0.1"}


def test_a_service_whose_pods_answer_slowly_delays_no_other() -> None:
    """Checks that only one scrape of the slow service runs at a time, and that a later tick uses its result."""
    world = World({"slow": _service(1), "quick": _service(1)})
    world.load = {"slow#0": 35, "quick#0": 35}
    begun = []

    async def go() -> None:
        answer = asyncio.Event()

        async def scrape(addresses: Mapping[str, str], targets: Collection[str]) -> Any:
            if any(pod.startswith("slow") for pod in addresses):
                begun.append(world.now)
                await answer.wait()
            return await world.scrape(addresses, targets)

        autoscaler = _autoscaler(world, scrape)
        for _ in range(2):
            await autoscaler.tick(timeout=0.05)
            world.now += timedelta(seconds=15)
        assert autoscaler.decision("quick") is not None
        assert autoscaler.decision("slow") is None
        assert len(begun) == 1
        answer.set()
        await autoscaler.tick()
        assert autoscaler.decision("slow") is not None

    asyncio.run(go())


def test_the_end_of_leadership_ends_every_scrape() -> None:
    world = World({"a": _service(1)})
    world.load = {"a#0": 35}

    async def go() -> bool:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def scrape(addresses: Mapping[str, str], targets: Collection[str]) -> Any:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        run = asyncio.create_task(_autoscaler(world, scrape).run())
        await begun.wait()
        run.cancel()
        await asyncio.wait((run,))
        await asyncio.wait_for(ended.wait(), TIMEOUT)
        return not world.writes

    assert asyncio.run(go())
