"""Tests of optional fields of `spec.service` on a real API server: set, changed and removed, also with the type."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster import ApiError, Kube
from tests.operator.live.objects import demo, read, wait_condition

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]

Obj = dict[str, Any]


@pytest.fixture(scope="module")
def dual_stack(admin: Kube) -> None:
    """Skips the test on a cluster with one address family."""
    spec = {"ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}]}
    probe = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "probe", "namespace": "default"}, "spec": spec}
    try:
        admin.create(probe, dryRun="All")
    except ApiError as error:
        pytest.skip(f"the cluster has one address family: {error}")


def service(kube: Kube, resource: Obj) -> Obj:
    return kube.get("v1", "Service", resource["metadata"]["name"], resource["metadata"]["namespace"])


def edit(kube: Kube, resource: Obj, fields: Obj) -> None:
    """Replaces `spec.service` and waits until the operator has accepted it."""
    before = (read(kube, resource)["spec"].get("service") or {}).keys()
    kube.patch(resource, {"spec": {"service": {**dict.fromkeys(before - fields.keys()), **fields}}})
    wait_condition(kube, resource, "Accepted", "True")


# Successive edits of `spec.service`, each with the expected fields of the Service.
SEQUENCES: dict[str, list[tuple[Obj, Obj]]] = {
    "externalTrafficPolicy is removed before the type changes": [
        ({"type": "NodePort", "externalTrafficPolicy": "Local"}, {"externalTrafficPolicy": "Local"}),
        ({"type": "NodePort"}, {"externalTrafficPolicy": "Cluster"}),
        ({}, {"type": "ClusterIP", "externalTrafficPolicy": None}),
    ],
    "externalTrafficPolicy is removed with the type": [
        ({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}, {"externalTrafficPolicy": "Local"}),
        ({"type": "NodePort", "externalTrafficPolicy": "Local"}, {"type": "NodePort", "healthCheckNodePort": None}),
        ({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}, {"externalTrafficPolicy": "Local"}),
        ({}, {"type": "ClusterIP", "externalTrafficPolicy": None, "healthCheckNodePort": None}),
    ],
    "sessionAffinity": [
        ({"sessionAffinity": "ClientIP"}, {"sessionAffinity": "ClientIP"}),
        ({"sessionAffinity": "None"}, {"sessionAffinity": "None", "sessionAffinityConfig": None}),
        ({"sessionAffinity": "ClientIP"}, {"sessionAffinity": "ClientIP"}),
        ({}, {"sessionAffinity": "None", "sessionAffinityConfig": None}),
    ],
}
DUAL: dict[str, list[tuple[Obj, Obj]]] = {
    "ipFamilyPolicy alone": [
        ({"ipFamilyPolicy": "PreferDualStack"}, {"ipFamilies": ["IPv4", "IPv6"]}),
        ({"ipFamilyPolicy": "SingleStack"}, {"ipFamilies": ["IPv4"]}),
        ({"ipFamilyPolicy": "RequireDualStack"}, {"ipFamilies": ["IPv4", "IPv6"]}),
    ],
    "families in an order of their own": [
        (
            {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
            {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        ),
        ({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}, {"ipFamilies": ["IPv6"]}),
    ],
    "one family, then both": [
        ({"ipFamilies": ["IPv6"]}, {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}),
        ({"ipFamilyPolicy": "PreferDualStack"}, {"ipFamilies": ["IPv6", "IPv4"]}),
    ],
    "the first family with a dual-stack policy": [
        ({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]}, {"ipFamilies": ["IPv6", "IPv4"]}),
        (
            {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"], "sessionAffinity": "ClientIP"},
            {"ipFamilies": ["IPv6", "IPv4"], "sessionAffinity": "ClientIP"},
        ),
        ({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}, {"ipFamilies": ["IPv6"]}),
    ],
    "both, then nothing is asked for": [
        ({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]}, {"ipFamilies": ["IPv4", "IPv6"]}),
        ({}, {"type": "ClusterIP"}),
    ],
}


def follow(kube: Kube, namespace: str, steps: list[tuple[Obj, Obj]]) -> None:
    (fields, expected), *edits = steps
    resource = kube.create(demo(namespace, service=fields))
    wait_condition(kube, resource, "Accepted", "True")
    check(kube, resource, expected)
    for fields, expected in edits:
        edit(kube, resource, fields)
        check(kube, resource, expected)


def check(kube: Kube, resource: Obj, expected: Obj) -> None:
    spec = service(kube, resource)["spec"]
    assert {name: spec.get(name) for name in expected} == expected


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_field_of_the_service_is_set_changed_and_removed(admin: Kube, namespace: str, name: str) -> None:
    follow(admin, namespace, SEQUENCES[name])


@pytest.mark.usefixtures("dual_stack")
@pytest.mark.parametrize("name", DUAL)
def test_families_of_the_service_are_set_changed_and_removed(admin: Kube, namespace: str, name: str) -> None:
    follow(admin, namespace, DUAL[name])


@pytest.mark.usefixtures("dual_stack")
def test_a_change_of_the_first_family_is_refused_with_the_servers_message(admin: Kube, namespace: str) -> None:
    resource = admin.create(demo(namespace, service={"ipFamilies": ["IPv4"]}))
    wait_condition(admin, resource, "Accepted", "True")
    admin.patch(resource, {"spec": {"service": {"ipFamilies": ["IPv6"]}}})
    wait_condition(admin, resource, "Accepted", "False", says="ipFamilies[0]")
    assert service(admin, resource)["spec"]["ipFamilies"] == ["IPv4"]
    edit(admin, resource, {"ipFamilies": ["IPv4"]})
