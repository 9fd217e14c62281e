"""The operator killed after every single write of a resource's life: started again, it ends where it would have.

Many resources live side by side, and the proxy holds the operator's requests for the n-th one after its n-th write.
When all are held, or have no more writes to come, one SIGKILL meets each at a point of its own.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.cluster import ApiServer, Kube
from tests.operator.live.objects import Obj, demo, labelled, wait_settled
from tests.operator.live.process import OperatorProcess, install, reset_lease
from tests.operator.proxy import WRITES, FaultProxy
from unmask_operator.controller.manager import WORKERS
from unmask_operator.objects import API_VERSION, KIND, controller_uid

pytestmark = pytest.mark.cluster

FULL = {"networkPolicy": {}, "replicas": 2}  # makes one child of most kinds
EDITED = {"networkPolicy": None, "engine": {"maxNumReqs": 5}, "service": {"annotations": {"a": "b"}}}
POINTS = WORKERS  # resources, each held at its point: a held one keeps a worker
SENTINELS = 1000  # from here on resources are not of the fleet, and have fewer writes than their number
_NAME = re.compile(r"\bpoint-(\d+)")
_TEMPLATE = re.compile(r'(?<="serving.unmask.dev/template": ")[0-9a-f]{16}')


class KillPoints:
    """Lets the first n writes for the resource `point-n` pass, and then nothing more for it, trials included.

    Attributes:
        passed: how many writes have passed, by resource.
        held: by resource, the request that was held first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        with self._lock:
            self.passed: Counter[int] = Counter()
            self.held: dict[int, str] = {}

    def __call__(self, method: str, path: str, body: bytes) -> bool:
        if method not in WRITES or "/leases/" in path:
            return False
        found = _NAME.search(path) or _NAME.search(json.loads(body)["metadata"]["name"])
        assert found, path
        number = int(found[1])
        with self._lock:
            if self.passed[number] == number:
                self.held.setdefault(number, f"{method} {path.partition('?')[0]}")
                return True
            self.passed[number] += "dryRun" not in path
            return False


def settled(resource: Obj) -> bool:
    """Whether the operator is done with the latest spec."""
    generation = resource["metadata"]["generation"]
    accepted = [c for c in resource.get("status", {}).get("conditions", ()) if c["type"] == "Accepted"]
    return bool(accepted) and accepted[0]["status"] == "True" and accepted[0]["observedGeneration"] == generation


def _without_digests(annotations: dict[str, str] | None) -> dict[str, str]:
    """Without digests, which hold the owner's uid."""
    return {k: v for k, v in (annotations or {}).items() if "/applied" not in k and "deployment.kubernetes.io" not in k}


class Fleet:
    """The resources `point-0`, `point-1` and so on of one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace
        self._manifests = [demo(namespace, f"point-{number}", **FULL) for number in range(POINTS)]
        self._others = SENTINELS

    def create(self) -> None:
        for resource in self._manifests:
            self._kube.create(resource)

    def edit(self) -> None:
        for resource in self._manifests:
            self._kube.patch(resource, {"spec": EDITED})

    def delete(self) -> None:
        for resource in self._manifests:
            self._kube.delete(resource)

    def settled(self) -> set[int]:
        return {_number(one) for one in self._resources() if settled(one)}

    def wait_quiet(self) -> None:
        """Until the operator has written all that it does not wait for: a Gate lets so late a number pass."""
        self._others += 1
        wait_settled(self._kube, self._namespace, f"point-{self._others}")

    def _resources(self) -> list[Obj]:
        return [one for one in self._kube.list(API_VERSION, KIND, self._namespace) if _number(one) < POINTS]

    def gone(self) -> bool:
        left = self._kube.list(API_VERSION, KIND, self._namespace)
        return not left and not list(labelled(self._kube, self._namespace))

    def state(self) -> list[dict[str, Any]]:
        """Each resource's conditions and children, without what no two lives share, and as if all had one name."""
        resources = self._resources()
        owned = {one["metadata"]["uid"]: _number(one) for one in resources}
        found: list[dict[str, Any]] = [{} for _ in self._manifests]
        for one in resources:
            conditions = {c["type"]: (c["status"], c["reason"], c["message"]) for c in one["status"]["conditions"]}
            found[_number(one)]["conditions"] = conditions
        for obj in labelled(self._kube, self._namespace):
            if (number := owned.get(controller_uid(obj))) is None:
                continue  # of a sentinel
            name, stable = _renamed(obj["metadata"]["name"]), _essence(obj)
            assert (obj["kind"], name) not in found[number], "a child twice"
            found[number][obj["kind"], name] = json.loads(_renamed(json.dumps(stable)))
        return found

    def uniform(self) -> bool:
        first, *others = self.state()
        return all(one == first for one in others)


def _number(resource: Obj) -> int:
    return int(resource["metadata"]["name"].removeprefix("point-"))


def _renamed(text: str) -> str:
    return _TEMPLATE.sub("TEMPLATE", _NAME.sub("point", text))  # the digest covers the name


def _essence(obj: Obj) -> Obj:
    meta = obj["metadata"]
    stable = {k: v for k, v in obj.items() if k not in ("metadata", "status", "revision")}
    stable["metadata"] = {"labels": meta.get("labels"), "annotations": _without_digests(meta.get("annotations"))}
    if obj["kind"] == "Service":
        stable["spec"] = {k: v for k, v in obj["spec"].items() if not k.startswith("clusterIP")}
    return stable


@pytest.fixture
def kill_points(controlled_api_server: ApiServer) -> Iterator[tuple[FaultProxy, KillPoints]]:
    with FaultProxy(controlled_api_server) as proxy:
        yield proxy, KillPoints()


def test_killed_after_any_write_it_ends_where_it_would_have(
    controlled_api_server: ApiServer,
    controlled_admin: Kube,
    controlled_namespace: str,
    kill_points: tuple[FaultProxy, KillPoints],
) -> None:
    kube, namespace, (proxy, points) = controlled_admin, controlled_namespace, kill_points
    install(controlled_api_server, kube, namespace, [namespace])
    fleet = Fleet(kube, namespace)

    def kill_at_every_point(act: Callable[[], None]) -> None:
        points.reset()
        proxy.hold = points
        act()
        every = set(range(POINTS))
        kube.wait("each is held or done", lambda: fleet.settled() | points.held.keys() == every)
        assert POINTS - 1 not in points.held, "a life has more writes than there are resources"
        fleet.wait_quiet()  # what is written last, and after the status
        operator.kill()
        print(f"{act.__name__}: killed before", *(f"{n}: {points.held[n]}" for n in sorted(points.held)), sep="\n  ")
        assert len(points.held) >= 6, "there were fewer writes than there are children"
        proxy.hold = lambda method, path, body: False
        reset_lease(kube, namespace)
        operator.start()
        kube.wait("all are done", lambda: len(fleet.settled()) == POINTS)

    def all_as_the_undisturbed() -> dict[str, Any]:
        """The last one had no write more to come when the operator was killed."""
        with contextlib.suppress(TimeoutError):  # what differs is told below
            kube.wait("the same state", fleet.uniform)
        *others, undisturbed = fleet.state()
        for number, one in enumerate(others):
            assert one == undisturbed, f"point-{number}"
        return undisturbed

    with OperatorProcess(controlled_api_server, namespace, [namespace], server=proxy.url) as operator:
        kill_at_every_point(fleet.create)
        created = all_as_the_undisturbed()
        kill_at_every_point(fleet.edit)
        edited = all_as_the_undisturbed()
        assert ("NetworkPolicy", "point-engine") in created.keys() - edited.keys()
        points.reset()
        proxy.hold = points
        fleet.delete()  # is the garbage collector's work
        fleet.wait_quiet()
        operator.kill()
        assert not [number for number in points.passed if number < POINTS]
        proxy.hold = lambda method, path, body: False
        reset_lease(kube, namespace)
        operator.start()
        kube.wait("all is gone", fleet.gone)
