"""Tests that the operator, killed after any single write for a resource, reaches the same state after a restart.

The test creates many resources, and the proxy holds the writes for the n-th resource after its n-th write.
When all resources are held, or have no more writes, one SIGKILL interrupts each of them at a different point.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, install, reset_lease
from tests.operator.live.objects import Obj, demo, labelled, wait_settled
from tests.operator.proxy import WRITES, FaultProxy
from unmask_operator.controller.manager import WORKERS
from unmask_operator.objects import API_VERSION, KIND, controller_uid

pytestmark = pytest.mark.cluster

FULL = {"networkPolicy": {}, "replicas": 2}  # creates one child of most kinds
EDITED = {"networkPolicy": None, "engine": {"maxNumReqs": 5}, "service": {"annotations": {"a": "b"}}}
POINTS = WORKERS  # number of resources; a held request occupies a worker
SENTINELS = 1000  # resources from this number on are sentinels, and have fewer writes than their number
_NAME = re.compile(r"\bpoint-(\d+)")
_TEMPLATE = re.compile(r'(?<="serving.unmask.dev/template": ")[0-9a-f]{16}')


class KillPoints:
    """Lets the first n writes for the resource `point-n` pass and holds all later writes, dry runs included.

    Attributes:
        passed: number of writes that have passed, by resource.
        held: the first held request, by resource.
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
    """Returns whether the operator has accepted the latest spec."""
    generation = resource["metadata"]["generation"]
    accepted = [c for c in resource.get("status", {}).get("conditions", ()) if c["type"] == "Accepted"]
    return bool(accepted) and accepted[0]["status"] == "True" and accepted[0]["observedGeneration"] == generation


def _without_digests(annotations: dict[str, str] | None) -> dict[str, str]:
    """Removes digests, which depend on the owner's uid."""
    return {k: v for k, v in (annotations or {}).items() if "/applied" not in k and "deployment.kubernetes.io" not in k}


class Fleet:
    """Manages the resources `point-0`, `point-1` and so on of one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace
        self._manifests = [demo(namespace, f"point-{number}", **FULL) for number in range(POINTS)]
        self._others = SENTINELS

    def each(self, act: Callable[[Obj], object]) -> None:
        for resource in self._manifests:
            act(resource)

    def settled(self) -> set[int]:
        return {_number(one) for one in self._resources() if settled(one)}

    def wait_quiet(self) -> None:
        """Waits until the operator has finished all writes that are not held. A sentinel's writes are never held."""
        self._others += 1
        wait_settled(self._kube, self._namespace, f"point-{self._others}")

    def _resources(self) -> list[Obj]:
        return [one for one in self._kube.list(API_VERSION, KIND, self._namespace) if _number(one) < POINTS]

    def gone(self) -> bool:
        left = self._kube.list(API_VERSION, KIND, self._namespace)
        return not left and not list(labelled(self._kube, self._namespace))

    def state(self) -> list[dict[str, Any]]:
        """Returns the conditions and children of each resource, without names, uids and other unique values."""
        resources = self._resources()
        owned = {one["metadata"]["uid"]: _number(one) for one in resources}
        found: list[dict[str, Any]] = [{} for _ in self._manifests]
        for one in resources:
            conditions = {c["type"]: (c["status"], c["reason"], c["message"]) for c in one["status"]["conditions"]}
            found[_number(one)]["conditions"] = conditions
        for obj in labelled(self._kube, self._namespace):
            if (number := owned.get(controller_uid(obj))) is None:
                continue  # it belongs to a sentinel
            name, stable = _renamed(obj["metadata"]["name"]), _essence(obj)
            assert (obj["kind"], name) not in found[number], "a resource has two children of the same kind and name"
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


def test_an_operator_killed_after_any_write_reaches_the_same_state(
    controlled_api_server: ApiServer, controlled_admin: Kube, controlled_namespace: str
) -> None:
    api, kube, namespace, points = controlled_api_server, controlled_admin, controlled_namespace, KillPoints()
    install(api, kube, namespace, [namespace])
    fleet = Fleet(kube, namespace)

    def resume() -> None:
        operator.kill()
        proxy.hold = lambda method, path, body: False
        reset_lease(kube, namespace)
        operator.start()

    def kill_at_every_point(act: Callable[[Obj], object]) -> None:
        points.reset()
        proxy.hold = points
        fleet.each(act)
        every = set(range(POINTS))
        kube.wait("each is held or done", lambda: fleet.settled() | points.held.keys() == every)
        assert POINTS - 1 not in points.held, "the last resource is held: it needs more writes than there are resources"
        fleet.wait_quiet()  # writes after the status
        assert len(points.held) >= 6, "fewer than six resources were held at a write"
        resume()
        kube.wait("all are done", lambda: len(fleet.settled()) == POINTS)

    def all_as_the_undisturbed() -> dict[str, Any]:
        """Asserts that each resource equals the last one, which had no more writes when the operator was killed."""
        with contextlib.suppress(TimeoutError):  # the assertion below reports the difference
            kube.wait("the same state", fleet.uniform)
        *others, undisturbed = fleet.state()
        for number, one in enumerate(others):
            assert one == undisturbed, f"point-{number}"
        return undisturbed

    with (
        FaultProxy(api) as proxy,
        OperatorProcess(api, namespace, [namespace], server=proxy.url) as operator,
    ):
        kill_at_every_point(kube.create)
        created = all_as_the_undisturbed()
        kill_at_every_point(lambda resource: kube.patch(resource, {"spec": EDITED}))
        edited = all_as_the_undisturbed()
        assert ("NetworkPolicy", "point-engine") in created.keys() - edited.keys()
        points.reset()
        proxy.hold = points
        fleet.each(kube.delete)  # the garbage collector deletes the children
        fleet.wait_quiet()
        assert not [number for number in points.passed if number < POINTS]
        resume()
        kube.wait("all is gone", fleet.gone)
