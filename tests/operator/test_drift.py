"""Tests of drift detection.

Values that the API server adds or normalizes are no drift. A missing or changed value always is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask_operator.plan.drift import LIST_KEYS, clashes, differs, quantity, with_secondary_family

CONTAINER: dict[str, Any] = {
    "name": "main",
    "env": [{"name": "A", "value": "1000m"}, {"name": "B", "value": ""}],
    "resources": {"limits": {"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": "1"}},
    "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "initialDelaySeconds": 0},
    "securityContext": {"allowPrivilegeEscalation": False, "privileged": False},
}


def test_defaults_and_what_others_added_are_no_drift() -> None:
    live = copy.deepcopy(CONTAINER)
    live["terminationMessagePath"] = "/dev/termination-log"
    live["readinessProbe"]["httpGet"]["scheme"] = "HTTP"
    live["env"].insert(0, {"name": "INJECTED", "value": "x"})
    del live["env"][2]["value"], live["readinessProbe"]["initialDelaySeconds"], live["securityContext"]["privileged"]
    assert not differs({"containers": [CONTAINER]}, {"containers": [{"name": "sidecar"}, live]})


def test_quantities_are_compared_as_numbers_only_in_quantity_fields() -> None:
    live = copy.deepcopy(CONTAINER)
    live["resources"]["limits"] = {"cpu": "2000m", "memory": "4096Mi", "nvidia.com/gpu": "1"}
    assert not differs(CONTAINER, live)
    live["resources"]["limits"]["cpu"] = "2001m"
    assert differs(CONTAINER, live)
    assert differs(CONTAINER, {**CONTAINER, "env": [{"name": "A", "value": "1"}, {"name": "B"}]}), (
        "values of environment variables were compared as quantities"
    )


@pytest.mark.parametrize(
    ("desired", "live"),
    [
        ("0.1m", "1m"),
        ("1500u", "2m"),
        (0.0001, "1m"),
        ("9999999999Ei", str(2**63 - 1)),
        ("-1e400", "1"),
        ("1e400", "1"),
    ],
)
def test_a_quantity_may_be_rounded_up_by_the_api_server(desired: Any, live: str) -> None:
    rounded = live != "1"
    assert differs({"limits": {"cpu": desired}}, {"limits": {"cpu": live}}) is not rounded
    assert differs({"limits": {"cpu": "1m"}}, {"limits": {"cpu": "0.1m"}})
    assert not differs({"sizeLimit": "0.1n"}, {"sizeLimit": "1n"})


def test_a_missing_false_is_drift_if_it_is_not_the_default() -> None:
    assert differs(CONTAINER, {**CONTAINER, "securityContext": {"privileged": False}})
    assert differs({"automountServiceAccountToken": False}, {})
    assert differs({"replicas": 0}, {})


def test_a_volume_of_another_kind_is_drift() -> None:
    desired = {"volumes": [{"name": "tmp", "emptyDir": {}}]}
    assert differs(desired, {"volumes": [{"name": "tmp", "hostPath": {"path": "/"}}]})


def test_other_lists_are_compared_entry_by_entry() -> None:
    rule = {"ports": [{"protocol": "TCP", "port": 1}]}
    assert not differs({"ingress": [rule]}, {"ingress": [{**rule, "zz": "default"}]})
    assert differs({"ingress": [rule]}, {"ingress": [rule, {}]})
    assert differs({"args": ["--port", "8000"]}, {"args": ["8000", "--port"]})
    assert not differs({"from": []}, {})


def test_an_entry_with_another_second_key_is_an_addition() -> None:
    spread = {"topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1}
    desired = {"topologySpreadConstraints": [spread], "ports": [{"containerPort": 1}]}
    live = {
        "topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "DoNotSchedule"}, spread],
        "ports": [{"containerPort": 1, "protocol": "UDP"}, {"containerPort": 1, "protocol": "TCP"}],
    }
    assert not differs(desired, live)
    assert differs(desired, {**live, "topologySpreadConstraints": live["topologySpreadConstraints"][:1]})
    changed = [live["topologySpreadConstraints"][0], {**spread, "maxSkew": 2}]
    assert differs(desired, {**live, "topologySpreadConstraints": changed})


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


@pytest.mark.parametrize("key", [[], {}, ["x"], None, 1.5])
def test_keys_of_a_wrong_type_are_drift(key: object) -> None:
    """The podTemplate may have any key, and the API server rejects it later."""
    live = {"topologySpreadConstraints": [{"topologyKey": "host"}]}
    assert differs({"topologySpreadConstraints": [{"topologyKey": key}]}, live)


def test_selectors_and_peers_are_as_desired_and_have_no_other_fields() -> None:
    peer = {"podSelector": {"matchLabels": {"a": "b"}}}
    assert differs({"from": [peer]}, {"from": [peer, {"namespaceSelector": {}}]})
    assert differs({"from": [peer]}, {"from": [{**peer, "namespaceSelector": {}}]})
    assert differs({"selector": {"a": "b"}}, {"selector": {"a": "b", "c": "d"}})
    assert differs({"podSelector": {}}, {"podSelector": {"matchLabels": {"c": "d"}}})
    assert not differs(
        {"from": [peer], "selector": {"a": "b"}}, {"from": [copy.deepcopy(peer)], "selector": {"a": "b"}}
    )


def test_empty_requirements_of_a_selector_are_no_drift() -> None:
    requirement = {"key": "a", "operator": "Exists"}
    desired = {"namespaceSelector": {"matchLabels": {}, "matchExpressions": [{**requirement, "values": []}]}}
    assert not differs(desired, {"namespaceSelector": {"matchExpressions": [requirement]}})
    assert not differs({"podSelector": {"matchLabels": {}}}, {"podSelector": {}})
    assert differs(desired, {"namespaceSelector": {}})
    assert differs({"podSelector": {"matchLabels": {}}}, {"podSelector": {"matchLabels": {"c": "d"}}})


@pytest.mark.parametrize(
    ("member", "key"),
    [
        ("topologySpreadConstraints", "topologyKey"),
        ("hostAliases", "ip"),
        ("resourceClaims", "name"),
        ("schedulingGates", "name"),
        ("volumeDevices", "devicePath"),
    ],
)
def test_entries_that_others_added_to_a_list_by_key_are_no_drift(member: str, key: str) -> None:
    """Checks this because server-side apply keeps them, so a repair could never remove them."""
    own, foreign = {key: "a", "x": 1}, {key: "b", "x": 2}
    assert not differs({member: [own]}, {member: [foreign, own]})
    assert differs({member: [own]}, {member: [foreign]})
    assert differs({member: [own]}, {member: [{**own, "x": 2}]})


def test_ports_of_one_number_are_distinguished() -> None:
    both = [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]
    assert not differs({"ports": both}, {"ports": copy.deepcopy(both)})
    assert not differs({"ports": both}, {"ports": [{"containerPort": 9}, *reversed(both)]}), "others may add a port"
    changed = [both[1], {**both[0], "protocol": "SCTP"}]
    (clash,) = clashes({"kind": "Pod", "spec": {"ports": both}}, {"spec": {"ports": changed}})
    assert clash == ("/spec/ports", changed, both)


def test_constraints_of_one_topology_with_different_modes_are_distinguished() -> None:
    both = [{"topologyKey": "zone", "maxSkew": 1}, {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
    member = "topologySpreadConstraints"
    assert not differs({member: both}, {member: [{"topologyKey": "host"}, *reversed(both)]})
    assert differs({member: both}, {member: [both[1], {**both[0], "maxSkew": 2}]})


@pytest.mark.parametrize("member", ["labels", "annotations", "nodeSelector", "matchLabels"])
def test_an_empty_value_of_a_label_is_no_default(member: str) -> None:
    for name in ("user", "pool", "path", "protocol"):
        assert differs({member: {name: ""}}, {member: {name: "other"}})
    assert not differs({"rbd": {"pool": ""}}, {"rbd": {"pool": "rbd"}})


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", "0.5"), ("2", "2"), (2, "2"), ("1.5Gi", str(1024**3 * 3 // 2)), ("1e3", "1000"), ("3k", "3000")],
)
def test_quantity(text: Any, number: str) -> None:
    assert quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "Gi", "four", "nan", True, None])
def test_text_that_is_no_quantity_is_parsed_as_none(text: Any) -> None:
    assert quantity(text) is None


@pytest.mark.parametrize("text", ["1e9999999", "9.5E+99999999", "1e-9999999"])
def test_a_quantity_out_of_range_can_be_compared(text: str) -> None:
    """Checks this because the schema accepts any exponent. The API server rejects such a value later."""
    assert differs({"limits": {"memory": text}}, {"limits": {"memory": "4Gi"}})
    assert differs({"limits": {"memory": "4Gi"}}, {"limits": {"memory": text}})


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


@pytest.mark.parametrize("member", ["data", "binaryData", "annotations", "matchLabels", "nodeSelector"])
def test_an_empty_map_that_the_api_server_leaves_out_is_no_drift(member: str) -> None:
    assert not differs({"kind": "ConfigMap", member: {}}, {"kind": "ConfigMap"})
    assert differs({"kind": "ConfigMap", member: {"a": "b"}}, {"kind": "ConfigMap"})


@pytest.mark.parametrize(
    ("member", "empty", "default"),
    [("schedulerName", "", "default-scheduler"), ("protocol", "", "TCP"), ("periodSeconds", 0, 10), ("path", "", "/")],
)
def test_an_empty_value_that_the_api_server_sets_to_a_default_is_no_drift(
    member: str, empty: object, default: object
) -> None:
    assert not differs({"spec": {member: empty}}, {"spec": {member: default}})
    assert differs({"spec": {member: default}}, {"spec": {member: empty}})
    assert differs({"env": [{"name": "A", "value": ""}]}, {"env": [{"name": "A", "value": "x"}]})
