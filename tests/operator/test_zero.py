"""Tests of scale to zero in the plan, in the status and its Events, and of the addresses and ports of the activator."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.fake_api import FakeApi
from tests.operator.pod_states import check, judge
from tests.operator.samples import SETTINGS, apply, child, edit, kinds, make, observe, resource
from unmask_operator.api.autoscaling import ACTIVATOR_PORTS
from unmask_operator.controller.activators import PATIENCE_SECONDS, Activators
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import SERVICE_LABEL, Key, Obj, Ref
from unmask_operator.plan.observed import Activator, Decision, Observed
from unmask_operator.status import status
from unmask_operator.status.transitions import transitions

ZERO: Obj = {"minReplicas": 0, "maxReplicas": 3, "zero": {}}
ACTIVATOR = Activator(20_007, {"10.0.0.2": "n2", "10.0.0.1": "n1"})
SLICE = Ref("discovery.k8s.io/v1", "EndpointSlice", "demo-activator")
DEPLOYMENT = Ref("apps/v1", "Deployment", "demo")
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
SLEEPS = Decision(0, "asleep", True, idle=True)
AWAKE = Decision(1, "fits", True)


def pod(ready: bool = True, **meta: Any) -> Obj:
    return {
        "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
        "metadata": {"name": "demo-1", "uid": "p1", "labels": {}, "creationTimestamp": "2026-01-01T00:00:00Z", **meta},
        "status": {"phase": "Running", "conditions": [READY] if ready else [],
                   "containerStatuses": [{"name": "main", "started": ready, "state": {"running": {}}}]},
    }  # fmt: skip


def state(replicas: int, pods: Sequence[Obj] = (), decision: Decision | None = None, routed: bool = False) -> Observed:
    """Returns a service after its children were written. `routed`: with the EndpointSlice."""
    observed = observe(resource(replicas=replicas, autoscaling=ZERO), pods=pods, activator=ACTIVATOR)
    observed = replace(observed, decision=SLEEPS if routed else None)
    observed = replace(apply(observed, make(observed)), decision=decision)
    if not routed:
        observed = replace(observed, children={r: o for r, o in observed.children.items() if r != SLICE})
    counts = {"replicas": len(pods), "updatedReplicas": len(pods), "readyReplicas": len(pods), "observedGeneration": 1}
    observed.children[DEPLOYMENT]["status"] = counts
    observed.children[DEPLOYMENT]["metadata"]["generation"] = 1
    name = next(ref.name for ref in observed.children if ref.kind == "ControllerRevision")
    observed.resource["status"] = {"currentRevision": name}
    return observed


@pytest.mark.parametrize(
    ("observed", "routed"),
    [
        (state(1, [pod()], AWAKE), False),
        (state(1, [pod()], Decision(1, "", True, idle=True)), True),  # just before the last pod ends
        (state(0, [], SLEEPS, routed=True), True),
        (state(0, [], None), True),  # a new leader, or a person has scaled it
        (state(1, [], AWAKE, routed=True), True),  # a pod starts
        (state(1, [pod(ready=False)], AWAKE, routed=True), True),
        (state(1, [pod(deletionTimestamp="2026-01-01T00:00:00Z")], AWAKE, routed=True), True),
        (state(1, [pod()], AWAKE, routed=True), False),  # it is awake
        (state(1, [pod(ready=False)], AWAKE), False),  # the first start, and a pod that fails
        (replace(state(0, [], SLEEPS, routed=True), activator=None), False),
        (replace(state(0, [], SLEEPS, routed=True), activator=Activator(1, {})), False),
        (edit(state(0, [], SLEEPS, routed=True), suspend=True), False),
        (edit(state(0, [], SLEEPS, routed=True), autoscaling={"maxReplicas": 3}), False),
    ],
)
def test_when_the_service_leads_to_the_activator(observed: Observed, routed: bool) -> None:
    made = make(observed)
    assert ("EndpointSlice" in kinds(made)) == routed
    assert (SLICE in made.delete) == (not routed and SLICE in observed.children)


def test_the_endpoint_slices() -> None:
    observed = replace(state(0), activator=Activator(20_007, {"10.0.0.2": "n2", "10.0.0.1": "", "fd00::1": "n1"}))
    ipv4, ipv6 = (one for one in make(observed).children if one["kind"] == "EndpointSlice")
    labels = ipv4["metadata"]["labels"]
    assert labels["kubernetes.io/service-name"] == "demo"
    assert labels["endpointslice.kubernetes.io/managed-by"] == "unmask-operator"
    assert ipv4["ports"] == [{"name": "http", "port": 20_007, "protocol": "TCP", "appProtocol": "http"}]
    found = [(endpoint["addresses"], endpoint.get("nodeName")) for endpoint in ipv4["endpoints"]]
    assert found == [(["10.0.0.1"], None), (["10.0.0.2"], "n2")]
    assert (ipv6["metadata"]["name"], ipv6["addressType"]) == ("demo-activator-ipv6", "IPv6")
    assert [e["addresses"] for e in ipv6["endpoints"]] == [["fd00::1"]]


def test_only_a_service_that_scales_to_zero_admits_the_activator() -> None:
    settings = replace(SETTINGS, activator_selector={"app": "activator"})

    def admitted(**spec: Any) -> list[Any]:
        rules = child(make(observe(resource(networkPolicy={}, **spec)), settings), "NetworkPolicy")["spec"]["ingress"]
        return [peer["podSelector"]["matchLabels"] for peer in rules[0]["from"] if "podSelector" in peer]

    assert {"app": "activator"} in admitted(autoscaling=ZERO)
    assert {"app": "activator"} not in admitted(autoscaling={"maxReplicas": 3})


GONE = Decision(1, "no pod of the activator is Ready", False, cause="ActivatorUnavailable")
BROKEN = {**pod(ready=False), "status": {"phase": "Pending", "conditions": [], "containerStatuses": [
    {"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}}  # fmt: skip


@pytest.mark.parametrize(
    ("observed", "lines"),
    [
        (state(1, [pod()], AWAKE), ["Ready True Ready", "Available True Serving"]),
        (state(0, [], SLEEPS, routed=True), ["Ready,Available True Asleep", "ScalingReady True Active",
         "Stalled absent"]),
        (state(0, [], SLEEPS), ["Ready,Available False NoReplicas"]),
        (state(1, [pod(ready=False)], AWAKE, routed=True), ["Ready,Available False Waking", "Stalled absent"]),
        (state(1, [BROKEN], AWAKE, routed=True), ["Ready False ImagePullBackOff no such image"]),
        (state(1, [pod()], GONE), ["Ready True Ready", "ScalingReady False ActivatorUnavailable"]),
        (edit(state(0, [], SLEEPS, routed=True), suspend=True), ["Ready,Available False Suspended"]),
    ],
)  # fmt: skip
def test_the_conditions(observed: Observed, lines: list[str]) -> None:
    check(judge(observed), *lines)


def test_the_status_and_events_of_a_night() -> None:
    """Clients that wait for Ready see a healthy service while it sleeps. Nothing of it is a warning."""
    night = [
        state(1, [pod()], AWAKE),
        state(0, [], SLEEPS, routed=True),
        state(1, [pod(ready=False)], AWAKE, routed=True),
        state(1, [pod()], AWAKE),
    ]
    seen, events = dict[str, Any](), []
    for step, observed in enumerate(night):
        old = {**observed.resource["status"], **seen}
        now = observed.now + timedelta(seconds=20 * step)
        new = status(at := replace(observed, now=now, resource={**observed.resource, "status": old}), make(at))
        events += [(event.type, event.reason) for event in transitions(old, new)] if seen else []
        assert new["autoscaling"]["activatorPort"] == ACTIVATOR.port
        assert new["autoscaling"].get("asleep", False) == (step == 1)
        seen = new
    assert events == [("Normal", "Asleep"), ("Normal", "Waking"), ("Normal", "Woken")]


def test_an_endpoint_slice_is_created_and_deleted_once() -> None:
    """No watch reports them."""
    api = FakeApi(replace(state(0, [], SLEEPS), pods=()))
    for _ in range(2):
        api.reconcile()
    assert [obj["kind"] for obj in api.written("create")].count("EndpointSlice") == 1
    api.observed = replace(api.observed, decision=AWAKE)
    api.edit(replicas=1)
    api.put(pod(namespace="default", labels={SERVICE_LABEL: "demo"}))
    for _ in range(2):
        api.reconcile()
    assert [obj["kind"] for obj in api.written("delete")].count("EndpointSlice") == 1


class Cluster:
    """The operator's view of the activator's pods.

    Attributes:
        ready: addresses and nodes of the Ready pods.
        lists: number of lists.
    """

    def __init__(self, **resources: Obj) -> None:
        self.resources = {Key("default", name): obj for name, obj in resources.items()}
        self.ready, self.lists, self.time, self.changed = {"10.0.0.1": "n1"}, 0, 0.0, list[Key]()
        self.error: ApiError | None = None
        self.restart()

    def restart(self, activator: str = "act") -> None:
        client: Any = self
        settings = replace(SETTINGS, activator=activator)
        self.known = Activators(
            client, settings, lambda: self.resources.items(), lambda key: {}, self.changed.append, lambda: self.time
        )

    async def list(self, kind: Any, namespace: str, selector: str) -> Any:
        assert (namespace, selector) == ("unmask-system", "kubernetes.io/service-name=act")
        self.lists += 1
        if self.error:
            raise self.error
        ready = [
            {"addresses": [ip], "nodeName": node, "conditions": {"ready": True}} for ip, node in self.ready.items()
        ]
        return [{"endpoints": [*ready, {"addresses": ["10.0.0.9"], "conditions": {"ready": False}}]}], 1

    def poll(self, seconds: float = 0.0) -> None:
        self.time += seconds
        asyncio.run(self.known.poll())

    def observe(self, name: str) -> Activator | None:
        key = Key("default", name)
        return asyncio.run(self.known.observe(key, self.resources[key]))


def test_the_activators_pods_are_listed_only_for_services_that_scale_to_zero() -> None:
    cluster = Cluster(a=resource("a"))
    cluster.poll()
    assert (cluster.observe("a"), cluster.lists) == (None, 0)
    cluster.resources[Key("default", "a")] = resource("a", autoscaling=ZERO)
    found = cluster.observe("a")
    assert found is not None
    assert found.addresses == {"10.0.0.1": "n1"}
    cluster.ready = {"10.0.0.2": "n2"}
    cluster.poll()
    cluster.poll()
    assert cluster.changed == [Key("default", "a")]
    cluster.restart(activator="")
    assert cluster.observe("a") is None
    assert "activator.enabled" in cluster.known.routing(Key("default", "a")).problem


def test_a_service_sleeps_on_while_the_activator_is_away_for_a_moment() -> None:
    cluster, key = Cluster(a=resource("a", autoscaling=ZERO)), Key("default", "a")
    assert cluster.known.routing(key).problem == ""  # a new leader does not know it yet
    cluster.poll()
    cluster.error = ApiError(500, "InternalError", "etcd")
    cluster.poll(2 * PATIENCE_SECONDS)
    assert cluster.known.routing(key).problem == ""
    cluster.error, cluster.ready = None, {}
    cluster.poll()
    assert "no pod of the activator is Ready" in cluster.known.routing(key).problem
    cluster.ready = {"10.0.0.1": "n1"}
    cluster.poll()
    assert cluster.known.routing(key).problem == ""


def test_an_operator_that_may_not_list_the_activators_pods_says_so() -> None:
    cluster, key = Cluster(a=resource("a", autoscaling=ZERO)), Key("default", "a")
    cluster.error = ApiError(0, "Unreachable", "no answer")
    with pytest.raises(ApiError):
        cluster.observe("a")
    cluster.error = ApiError(403, "Forbidden", "endpointslices is forbidden")
    assert cluster.observe("a") == Activator(ACTIVATOR_PORTS[0], {})
    cluster.time += 2 * PATIENCE_SECONDS
    assert "no pod of the activator is Ready" in cluster.known.routing(key).problem


def test_each_service_has_a_port_of_its_own_that_a_new_leader_keeps() -> None:
    cluster = Cluster(**{f"s{n}": resource(f"s{n}", autoscaling=ZERO) for n in range(300)})

    def ports() -> dict[Key, int]:
        return {key: found.port for key in cluster.resources if (found := cluster.observe(key.name))}

    first = ports()
    assert len(set(first.values())) == 300
    assert set(first.values()) <= set(ACTIVATOR_PORTS)
    names = sorted(cluster.resources)
    for key in names:
        cluster.resources[key]["status"] = {"autoscaling": {"activatorPort": first[key]}}
    cluster.resources[names[0]]["status"] = {}  # one that was restored from a backup gets a free port
    cluster.resources[names[1]]["status"] = {"autoscaling": {"activatorPort": first[names[2]]}}
    cluster.restart()
    second = ports()
    assert len(set(second.values())) == 300
    assert [key for key in names[3:] if second[key] != first[key]] == []
