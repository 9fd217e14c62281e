"""Tests of drift detection: added values are no drift, and a missing or changed value always is."""

import copy
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask_operator.objects import quantity
from unmask_operator.plan.drift import LIST_KEYS, differs, field_name, replaced, with_secondary_family

SPREAD, PORT, CPU = "topologySpreadConstraints", "containerPort", "cpu"
PEER = {"podSelector": {"matchLabels": {"a": "b"}}}
RULE = {"ports": [{"protocol": "TCP", "port": 1}]}
EXISTS = {"key": "a", "operator": "Exists"}
SOFT = {"topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1}
ZONE = [{"topologyKey": "zone", "maxSkew": 1}, {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
NOTHING: dict[str, Any] = {}


def limit(member: str, value: Any) -> dict[str, Any]:
    return {"limits": {member: value}}


# Pairs of desired and live values.
SAME: list[tuple[Any, Any]] = [
    # entries and members that others added, in any order
    ({"containers": [{"name": "a", "x": 1}]}, {"containers": [{"name": "b"}, {"name": "a", "x": 1, "y": 2}]}),
    ({SPREAD: [SOFT]}, {SPREAD: [{"topologyKey": "zone"}, SOFT]}),
    *(({member: [{key: "a"}]}, {member: [{key: "b"}, {key: "a"}]}) for member, (key, *_) in LIST_KEYS.items()),
    ({"from": [PEER], "selector": {"a": "b"}}, {"from": [copy.deepcopy(PEER)], "selector": {"a": "b"}}),
    (limit(CPU, 2), limit(CPU, "2")), ({"x": None}, NOTHING),
]  # fmt: skip
# Desired values, and the forms in which the API server stores them. The answer to a dry run has the same form.
FORMS: list[tuple[Any, Any]] = [
    # empty values that it drops
    ({"env": [{"name": "B", "value": ""}]}, {"env": [{"name": "B"}]}),
    ({"x": {"initialDelaySeconds": 0, "privileged": False, "y": None, "z": []}}, {"x": {}}),
    *(({member: {}}, NOTHING) for member in ("data", "annotations", "matchLabels", "nodeSelector", "limits")),
    ({"from": []}, NOTHING),
    ({"podSelector": {"matchLabels": {}}}, {"podSelector": {}}),
    ({"podSelector": {"matchExpressions": [{**EXISTS, "values": []}]}},
     {"podSelector": {"matchExpressions": [EXISTS]}}),
    # empty values that it replaces by a default
    ({"x": {"protocol": "", "path": ""}}, {"x": {"protocol": "TCP", "path": "/"}}),
    ({"x": {"periodSeconds": 0}}, {"x": {"periodSeconds": 10}}),
    ({"rbd": {"pool": ""}}, {"rbd": {"pool": "rbd"}}),
    (limit(CPU, 2), limit(CPU, "2000m")), (limit("memory", "4Gi"), limit("memory", "4096Mi")),
]  # fmt: skip
DIFFERENT: list[tuple[Any, Any]] = [
    ({"containers": [{"name": "a", "x": 1}]}, {"containers": [{"name": "a", "x": 2}]}),
    ({"ingress": [RULE]}, {"ingress": [RULE, {}]}),
    ({"args": ["--port", "8000"]}, {"args": ["8000", "--port"]}),
    ({"volumes": [{"name": "tmp", "emptyDir": {}}]}, {"volumes": [{"name": "tmp", "hostPath": {"path": "/"}}]}),
    ({SPREAD: [SOFT]}, {SPREAD: [{**SOFT, "whenUnsatisfiable": "DoNotSchedule"}]}),
    ({SPREAD: [SOFT]}, {SPREAD: [{"topologyKey": "host"}, {**SOFT, "maxSkew": 2}]}),
    ({SPREAD: ZONE}, {SPREAD: [ZONE[1], {**ZONE[0], "maxSkew": 2}]}),
    # keys of a wrong type, which the API server rejects later
    *(({SPREAD: [{"topologyKey": key}]}, {SPREAD: [{"topologyKey": "host"}]}) for key in ([], {}, ["x"], None, 1.5)),
    *(({"x": {member: value}}, {"x": {}}) for member, value in (("hostUsers", False), ("replicas", 0), ("disk", {}))),
    ({SPREAD: [SOFT]}, {SPREAD: [{**SOFT, "whenUnsatisfiable": "DoNotSchedule"}, SOFT]}),
    # labels with the names of members that have defaults
    *(({m: {n: ""}}, {m: {n: "other"}}) for m in ("labels", "nodeSelector", "matchLabels") for n in ("user", "path")),
    ({"x": {"protocol": "TCP"}}, {"x": {"protocol": ""}}),
    ({"env": [{"name": "A", "value": ""}]}, {"env": [{"name": "A", "value": "x"}]}),
    # selectors and peers are compared exactly
    ({"from": [PEER]}, {"from": [PEER, {"namespaceSelector": {}}]}),
    ({"from": [PEER]}, {"from": [{**PEER, "namespaceSelector": {}}]}),
    ({"selector": {"a": "b"}}, {"selector": {"a": "b", "c": "d"}}),
    *(({"podSelector": {"matchLabels": one} if one else {}}, {"podSelector": PEER["podSelector"]})
      for one in ({}, None)),
    ({"namespaceSelector": {"matchExpressions": [EXISTS]}}, {"namespaceSelector": {}}),
    (limit(CPU, 2), limit(CPU, "2001m")), ({"x": True}, {"x": "true"}),
    ({"env": [{"name": "A", "value": "1000m"}]}, {"env": [{"name": "A", "value": "1"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("desired", "live"), SAME, ids=str)
def test_what_others_add_is_no_drift(desired: Any, live: Any) -> None:
    assert not differs(desired, live)
    assert replaced(desired, live) == []


@pytest.mark.parametrize(("desired", "stored"), FORMS, ids=str)
def test_the_api_servers_form_of_a_value_is_not_replaced_by_admission(desired: Any, stored: Any) -> None:
    assert differs(desired, stored), "a write that would repair the value is left out without a dry run"
    assert replaced(desired, stored) == []


def test_values_that_admission_replaces_or_removes_are_named() -> None:
    desired = {
        "containers": [{"name": "a", "image": "x", "env": [{"name": "E", "value": "1"}]}],
        **limit("memory", "1Gi"),
    }
    stored = {"containers": [{"name": "a", "image": "y", "env": []}], **limit("memory", "2Gi")}
    assert [field_name(path) for path in replaced(desired, stored)] == [
        "containers[a].image", "containers[a].env", "limits.memory"]  # fmt: skip


@pytest.mark.parametrize(("desired", "live"), DIFFERENT, ids=str)
def test_a_missing_or_changed_value_is_drift(desired: Any, live: Any) -> None:
    assert differs(desired, live)


def test_the_secondary_family_of_a_dual_stack_service_is_sent_again() -> None:
    live = {"spec": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}}
    desired = {"spec": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"]}}
    assert with_secondary_family(desired, live) == live
    assert with_secondary_family({"spec": {"ipFamilies": ["IPv6"]}}, live)["spec"] == {"ipFamilies": ["IPv6", "IPv4"]}
    for spec in ({"ipFamilies": ["IPv4"]}, {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}):
        other = {"spec": {**desired["spec"], **spec}}
        assert with_secondary_family(other, live) == other
    assert with_secondary_family({"data": {}}, live) == {"data": {}}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("500m", "0.5"), ("2", "2"), (2, "2"), ("1.5Gi", str(1024**3 * 3 // 2)), ("1e3", "1000"), ("3k", "3000")),
        *((text, None) for text in ("", "Gi", "four", "nan", True, None)),
    ],
)
def test_quantity(text: Any, number: str | None) -> None:
    assert quantity(text) == (None if number is None else Decimal(number))


values = st.sampled_from(["a", "b", "c", "500m"])
members = st.sampled_from(["x", "y", "limits", "replicas", "args", "env", "enableServiceLinks"])
scalars = st.one_of(st.booleans(), st.integers(0, 3), values)
keyed = st.lists(
    st.fixed_dictionaries({"name": values}, optional={"value": values}), max_size=3, unique_by=lambda e: e["name"]
)
objects = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.dictionaries(members.filter(lambda m: m != "env"), inner, max_size=4),
        st.lists(inner, max_size=3),
        st.fixed_dictionaries({"env": keyed}),
    ),
    max_leaves=12,
)


def grown(value: Any) -> Any:
    """Returns `value` as an API server with defaults and injecting webhooks returns it."""
    if isinstance(value, dict):
        return {**{k: grow_list(k, v) if isinstance(v, list) else grown(v) for k, v in value.items()}, "zz": "default"}
    return [grown(v) for v in value] if isinstance(value, list) else value


def grow_list(member: str, entries: list[Any]) -> list[Any]:
    more = [{"name": "injected"}] if member in LIST_KEYS else []
    return [*more, *(grown(e) for e in reversed(entries))] if more else [grown(e) for e in entries]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    elif path:
        yield path


@given(objects)
def test_an_object_never_differs_from_itself_grown(value: Any) -> None:
    assert not differs(value, copy.deepcopy(value))
    assert not differs(value, grown(value))


@given(objects, st.data())
def test_a_changed_leaf_always_differs(value: Any, data: st.DataObject) -> None:
    paths = list(leaves(value))
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    changed = copy.deepcopy(value)
    target = changed
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = "another"
    assert differs(value, changed)
    assert differs({"spec": {"x": value}}, {"spec": {"x": changed, "y": 1}})
