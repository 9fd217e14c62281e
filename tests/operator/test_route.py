"""Tests of the HTTPRoute and the InferencePool of a resource, and of the condition RouteReady."""

from dataclasses import replace
from typing import Any

import pytest

from tests.operator.pod_states import check, judge
from tests.operator.samples import child, edit, kinds, make, observe, patch, resource, running, settled, template
from unmask_operator.kinds import HTTP_ROUTES, INFERENCE_POOLS
from unmask_operator.objects import Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.settings import Settings
from unmask_operator.status import status
from unmask_operator.status.conditions.basic import NEEDED
from unmask_operator.status.transitions import Event, transitions

ROUTES, POOLS = HTTP_ROUTES.api, INFERENCE_POOLS.api

GATEWAY = {"name": "public", "namespace": "infra"}
OWN = {"group": "", "kind": "Service", "name": "demo", "port": 80, "weight": 1}


def route(**fields: Any) -> Obj:
    return {"route": {"parentRefs": [GATEWAY], **fields}}


def rule(**spec: Any) -> Obj:
    """Returns the only rule of the rendered HTTPRoute."""
    (found,) = child(make(observe(resource(**spec))), "HTTPRoute")["spec"]["rules"]
    return found


def test_the_route_passes_v1_to_the_service_for_longer_than_the_engines_timeout() -> None:
    rendered = child(make(observe(resource(**route()))), "HTTPRoute")
    parent = {**GATEWAY, "group": "gateway.networking.k8s.io", "kind": "Gateway"}
    assert rendered["metadata"]["name"] == "demo"
    assert rendered["spec"] == {
        "parentRefs": [parent],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
                "backendRefs": [OWN],
                "timeouts": {"request": "620s"},
            }
        ],
    }


HEADERS = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-debug"]}}
POOL_BACKEND = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "demo", "port": 8000}
CANARY = {"group": "", "kind": "Service", "name": "canary", "port": 81, "weight": 1}


@pytest.mark.parametrize(
    ("spec", "member", "expected"),
    [
        ({**route(), "service": {"port": 8080}}, "backendRefs", [{**OWN, "port": 8080}]),
        ({**route(weight=9), "inferencePool": {}}, "backendRefs", [{**POOL_BACKEND, "weight": 9}]),
        (route(weight=9, backends=[{"service": "canary", "weight": 1, "port": 81}]), "backendRefs",
         [{**OWN, "weight": 9}, CANARY]),
        (route(filters=[HEADERS]), "filters", [HEADERS]),
        (route(timeouts={"request": "5m", "backendRequest": "1m"}), "timeouts",
         {"request": "5m", "backendRequest": "1m"}),
        ({**route(), "engine": {"extraArgs": ["--request-timeout=30"]}}, "timeouts", {"request": "50s"}),
        ({**route(), "engine": {"extraArgs": ["--request-timeout", "30.5"]}}, "timeouts", {"request": "51s"}),
        ({**route(), "engine": {"extraArgs": ["--request-timeout=0"]}}, "timeouts", {"request": "0s"}),
        ({**route(), "engine": {"extraArgs": ["--request-timeout=1e9"]}}, "timeouts", {"request": "99999s"}),
        ({**route(), "image": "other:1", "engine": {"extraArgs": ["--request-timeout=soon"]}}, "timeouts",
         {"request": "620s"}),
    ],
)  # fmt: skip
def test_the_rule_follows_the_spec(spec: Obj, member: str, expected: object) -> None:
    assert rule(**spec)[member] == expected


def test_labels_and_annotations_of_the_route_take_precedence_over_common_ones() -> None:
    spec = route(labels={"team": "b"}, annotations={"a": "2"}, hostnames=["*.example.com"])
    made = make(observe(resource(commonLabels={"team": "a"}, commonAnnotations={"a": "1"}, **spec)))
    rendered = child(made, "HTTPRoute")
    assert (rendered["metadata"]["labels"]["team"], rendered["metadata"]["annotations"]) == ("b", {"a": "2"})
    assert rendered["spec"]["hostnames"] == ["*.example.com"]


@pytest.mark.parametrize(
    ("pool", "picker"),
    [
        ({}, None),
        ({"endpointPickerRef": {"name": "epp"}}, {"port": {"number": 9002}, "failureMode": "FailOpen"}),
        ({"endpointPickerRef": {"name": "epp", "port": 9, "failureMode": "FailClose"}},
         {"port": {"number": 9}, "failureMode": "FailClose"}),
    ],
)  # fmt: skip
def test_the_pool_has_all_pods_and_its_picker(pool: Obj, picker: Obj | None) -> None:
    spec = child(make(observe(resource(inferencePool=pool))), "InferencePool")["spec"]
    assert spec["selector"] == {"matchLabels": {"serving.unmask.dev/service": "demo"}}
    assert spec["targetPorts"] == [{"number": 8000}]
    expected = picker and {"group": "", "kind": "Service", "name": "epp", **picker}
    assert spec.get("endpointPickerRef") == expected


def test_only_pods_of_a_pool_are_labelled_for_endpoint_pickers() -> None:
    observed = running(**route())
    plain = template(make(observed))
    assert plain == template(make(running())), "a route replaced the pods"
    labels = template(make(edit(observed, inferencePool={})))["metadata"]["labels"]
    added = {key: text for key, text in labels.items() if key not in plain["metadata"]["labels"]}
    assert added == {"llm-d.ai/engine-type": "unmask"}


def test_the_route_and_the_pool_are_deleted_with_their_sections() -> None:
    observed = running(**route(), inferencePool={})
    assert settled(make(observed), observed)
    made = make(edit(observed, route=None, inferencePool=None))
    assert {ref.kind for ref in made.delete} == {"HTTPRoute", "InferencePool"}


def test_a_route_stays_while_the_pods_are_pinned_and_another_section_cannot_be_read() -> None:
    observed = running(**route(), inferencePool={})
    made = make(edit(observed, monitoring={"unknown": 1}))
    assert {"HTTPRoute", "InferencePool"} <= set(kinds(made))
    assert [ref.kind for ref in made.delete] == ["ControllerRevision"]


@pytest.mark.parametrize(
    ("known", "settings", "reason", "parts"),
    [
        (
            {POOLS},
            Settings(gateway=True),
            "MissingCRD",
            ["spec.route", "httproutes.gateway.networking.k8s.io"],
        ),
        ({ROUTES}, Settings(gateway=True), "MissingCRD", ["spec.inferencePool", "inferencepools.inference."]),
        (
            {ROUTES, POOLS},
            Settings(),
            "NotEnabled",
            ["gateway.enabled", "spec.route", "spec.inferencePool"],
        ),
    ],
)
def test_what_a_route_lacks_is_named(known: set[str], settings: Settings, reason: str, parts: list[str]) -> None:
    observed = observe(resource(**route(), inferencePool={}), apis=frozenset(known))
    found = judge(observed, make(observed, settings))["RouteReady"]
    assert (found["status"], found["reason"]) == ("False", reason)
    for part in parts:
        assert part in found["message"]


def reported(observed: Observed, kind: str, *parents: Obj) -> Observed:
    """Returns the observed state after controllers have written the status of the HTTPRoute or InferencePool."""
    ref = next(ref for ref in observed.children if ref.kind == kind)
    live = observed.children[ref]
    changed = {**live, "metadata": {**live["metadata"], "generation": 2}, "status": {"parents": list(parents)}}
    return replace(observed, children={**observed.children, ref: changed})


def parent(*conditions: tuple[str, str, str], generation: int = 2, **ref: Any) -> Obj:
    listed = [
        {"type": kind, "status": state, "reason": reason, "message": f"on {kind}", "observedGeneration": generation}
        for kind, state, reason in conditions
    ]
    return {"parentRef": {**GATEWAY, **ref}, "controllerName": "example.com/gateway", "conditions": listed}


OK = (("Accepted", "True", "Accepted"), ("ResolvedRefs", "True", "ResolvedRefs"))
REFUSED = (("Accepted", "False", "NotAllowedByListeners"), ("ResolvedRefs", "True", "ResolvedRefs"))
UNRESOLVED = (("Accepted", "True", "Accepted"), ("ResolvedRefs", "False", "BackendNotFound"))
NO_PICKER = (("Accepted", "False", "EndpointPickerRefMissing"),)
TWO = {"parentRefs": [GATEWAY, {"name": "inner", "sectionName": "https"}]}


@pytest.mark.parametrize(
    ("spec", "parents", "expected"),
    [
        (route(), [], "Unknown Waiting Gateway infra/public ... class runs"),
        (route(), [parent(*OK)], "True Accepted ^accepted by Gateway infra/public"),
        (route(), [parent(*OK, generation=1)], "Unknown Waiting HTTPRoute demo"),
        (route(), [parent(OK[0])], "Unknown Waiting infra/public"),
        (route(), [parent(*OK, name="another")], "Unknown Waiting infra/public"),
        (route(), [parent(*REFUSED)], "False NotAllowedByListeners on Accepted ... allowedRoutes"),
        (route(), [parent(*UNRESOLVED)], "False BackendNotFound on ResolvedRefs ... spec.route.backends"),
        (route(), [parent(("Accepted", "False", "Vendor"))], "False Vendor on Accepted"),
        (TWO, [parent(*OK)], "Unknown Waiting Gateway default/inner (https) ... !infra"),
        (TWO, [parent(*OK), parent(*REFUSED, name="inner", namespace="default", sectionName="https")],
         "False NotAllowedByListeners default/inner"),
        (route(paths=["/"]), [parent(*OK)], "True Accepted /metrics"),
        ({**route(), "networkPolicy": {"from": [{"podSelector": {}}]}}, [parent(*OK)], "True Accepted Policy.from"),
        ({**route(), "networkPolicy": {"from": [{"namespaceSelector": {}}]}}, [parent(*OK)], "True Accepted !network"),
    ],
)  # fmt: skip
def test_the_condition_has_what_the_gateways_report(spec: Obj, parents: list[Obj], expected: str) -> None:
    spec = spec if "route" in spec else {"route": spec}
    check(judge(reported(running(**spec), "HTTPRoute", *parents)), f"RouteReady {expected}")


@pytest.mark.parametrize(
    ("spec", "parents", "expected"),
    [
        ({}, [], "True Accepted created"),
        ({}, [parent(*OK)], "True Accepted infra/public"),
        ({}, [parent(*NO_PICKER)], "False EndpointPickerRefMissing spec.inferencePool.endpointPickerRef"),
        (route(), [parent(*NO_PICKER)], "False EndpointPickerRefMissing infra/public"),
    ],
)
def test_the_condition_covers_the_pool(spec: Obj, parents: list[Obj], expected: str) -> None:
    observed = reported(running(inferencePool={}, **spec), "InferencePool", *parents)
    if spec:
        observed = reported(observed, "HTTPRoute", parent(*OK))
    check(judge(observed), f"RouteReady {expected}")


def test_the_condition_is_absent_without_a_route_and_not_part_of_ready() -> None:
    check(judge(running()), "RouteReady absent")
    assert "RouteReady" not in NEEDED


def test_a_route_of_another_owner_is_a_conflict() -> None:
    foreign = {"apiVersion": HTTP_ROUTES.api_version, "kind": "HTTPRoute", "metadata": {"name": "demo"}}
    observed = running(**route())
    found = judge(replace(observed, children={**observed.children, Ref.of(foreign): foreign}))["Accepted"]
    assert (found["reason"], "HTTPRoute demo" in found["message"]) == ("NameConflict", True)


def test_events_tell_when_gateways_accept_and_refuse_a_route() -> None:
    waiting = running(**route())

    def after(*parents: Obj) -> Obj:
        observed = reported(waiting, "HTTPRoute", *parents)
        return status(observed, make(observed))

    accepted, refused = after(parent(*OK)), after(parent(*REFUSED))
    started = status(waiting, make(waiting))
    assert Event("Normal", "RouteAccepted", "accepted by Gateway infra/public") in transitions(started, accepted)
    (event,) = transitions(accepted, refused)
    assert (event.type, event.reason) == ("Warning", "RouteRefused")
    assert event.message.startswith("NotAllowedByListeners: ")
    assert transitions(refused, started) == []


def test_filters_with_a_null_are_the_same_as_without_it() -> None:
    assert rule(**route(filters=[{**HEADERS, "urlRewrite": None}]))["filters"] == [HEADERS]


def test_the_pod_template_may_set_another_engine_type() -> None:
    metadata = {"metadata": {"labels": {"llm-d.ai/engine-type": "mine"}}}
    made = make(observe(resource(inferencePool={}, podTemplate={**patch()["podTemplate"], **metadata})))
    assert template(made)["metadata"]["labels"]["llm-d.ai/engine-type"] == "mine"
