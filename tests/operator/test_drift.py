"""Tests of drift detection: added and normalized values are no drift, and a missing or changed value always is."""

import copy
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask_operator.objects import quantity
from unmask_operator.plan.drift import LIST_KEYS, clashes, differs, with_secondary_family

SPREAD, PORT, CPU = "topologySpreadConstraints", "containerPort", "cpu"
PEER = {"podSelector": {"matchLabels": {"a": "b"}}}
RULE = {"ports": [{"protocol": "TCP", "port": 1}]}
EXISTS = {"key": "a", "operator": "Exists"}
SOFT = {"topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1}
ZONE = [{"topologyKey": "zone", "maxSkew": 1}, {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
TCP, UDP = ({PORT: 53, "protocol": protocol} for protocol in ("TCP", "UDP"))
NOTHING: dict[str, Any] = {}


def limit(member: str, value: Any) -> dict[str, Any]:
    return {"limits": {member: value}}


# Pairs of desired and live values.
SAME: list[tuple[Any, Any]] = [
    # entries and members that others added, in any order
    ({"containers": [{"name": "a", "x": 1}]}, {"containers": [{"name": "b"}, {"name": "a", "x": 1, "y": 2}]}),
    ({SPREAD: [SOFT]}, {SPREAD: [{**SOFT, "whenUnsatisfiable": "DoNotSchedule"}, SOFT]}),
    ({SPREAD: ZONE}, {SPREAD: [{"topologyKey": "host"}, *reversed(ZONE)]}),
    ({"ports": [{PORT: 53}]}, {"ports": [UDP, TCP]}), ({"ports": [TCP, UDP]}, {"ports": [{PORT: 9}, UDP, TCP]}),
    *(({member: [{key: "a"}]}, {member: [{key: "b"}, {key: "a"}]}) for member, (key, *_) in LIST_KEYS.items()),
    # empty values that the API server drops
    ({"env": [{"name": "B", "value": ""}]}, {"env": [{"name": "B"}]}),
    ({"x": {"initialDelaySeconds": 0, "privileged": False, "y": None, "z": []}}, {"x": {}}),
    *(({member: {}}, NOTHING) for member in ("data", "annotations", "matchLabels", "nodeSelector", "limits")),
    ({"from": []}, NOTHING),
    ({"podSelector": {"matchLabels": {}}}, {"podSelector": {}}),
    ({"podSelector": {"matchExpressions": [{**EXISTS, "values": []}]}},
     {"podSelector": {"matchExpressions": [EXISTS]}}),
    ({"from": [PEER], "selector": {"a": "b"}}, {"from": [copy.deepcopy(PEER)], "selector": {"a": "b"}}),
    # empty values that it replaces by a default
    ({"x": {"protocol": "", "path": ""}}, {"x": {"protocol": "TCP", "path": "/"}}),
    ({"x": {"periodSeconds": 0}}, {"x": {"periodSeconds": 10}}),
    ({"rbd": {"pool": ""}}, {"rbd": {"pool": "rbd"}}),
    # quantities: equal, or rounded up
    (limit(CPU, 2), limit(CPU, "2000m")), (limit("memory", "4Gi"), limit("memory", "4096Mi")),
    (limit(CPU, "1500u"), limit(CPU, "2m")), (limit(CPU, 0.0001), limit(CPU, "1m")),
    (limit(CPU, "9999999999Ei"), limit(CPU, str(2**63 - 1))), ({"sizeLimit": "0.1n"}, {"sizeLimit": "1n"}),
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
    # false and 0 that are not the default
    *(({"x": {member: False}}, {"x": {}}) for member in ("automountServiceAccountToken", "allowPrivilegeEscalation")),
    ({"replicas": 0}, NOTHING), ({"x": {"emptyDir": {}}}, {"x": {}}),
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
    # quantities, only in their members, and out of range
    (limit(CPU, 2), limit(CPU, "2001m")), (limit(CPU, "1m"), limit(CPU, "0.1m")),
    (limit(CPU, "1e400"), limit(CPU, "1")),
    ({"env": [{"name": "A", "value": "1000m"}]}, {"env": [{"name": "A", "value": "1"}]}),
    *((limit("memory", text), limit("memory", "4Gi")) for text in ("1e9999999", "9.5E+99999999", "1e-9999999")),
    *((limit("memory", "4Gi"), limit("memory", text)) for text in ("1e9999999", "x")),
]  # fmt: skip


@pytest.mark.parametrize(("desired", "live"), SAME, ids=str)
def test_what_the_api_server_and_others_add_is_no_drift(desired: Any, live: Any) -> None:
    assert not differs(desired, live)


@pytest.mark.parametrize(("desired", "live"), DIFFERENT, ids=str)
def test_a_missing_or_changed_value_is_drift(desired: Any, live: Any) -> None:
    assert differs(desired, live)


def test_the_secondary_family_of_a_dual_stack_service_is_an_addition() -> None:
    live = {"spec": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}}
    desired = {"spec": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"]}}
    assert not differs(desired, live)
    assert with_secondary_family(desired, live) == live
    assert with_secondary_family({"spec": {"ipFamilies": ["IPv6"]}}, live)["spec"] == {"ipFamilies": ["IPv6", "IPv4"]}
    for spec in ({"ipFamilies": ["IPv4"]}, {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}):
        other = {"spec": {**desired["spec"], **spec}}
        assert differs(other, live)
        assert with_secondary_family(other, live) == other
    assert with_secondary_family({"data": {}}, live) == {"data": {}}


def test_ports_of_one_number_with_another_protocol_clash() -> None:
    changed = [UDP, {**TCP, "protocol": "SCTP"}]
    (clash,) = clashes({"kind": "Pod", "spec": {"ports": [TCP, UDP]}}, {"spec": {"ports": changed}})
    assert clash == ("/spec/ports", changed, [TCP, UDP])


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
