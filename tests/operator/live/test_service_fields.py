"""Tests of `spec.service` on a real API server: address families that are set, changed and removed, and addresses."""

from typing import Any

import pytest

from e2e.cluster import ApiError, Kube
from tests.operator.live.objects import accepted, demo, read, wait_condition
from unmask_operator.kinds import DLMS

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]

Obj = dict[str, Any]
BOTH, REVERSED = {"ipFamilies": ["IPv4", "IPv6"]}, {"ipFamilies": ["IPv6", "IPv4"]}
V4, V6 = {"ipFamilies": ["IPv4"]}, {"ipFamilies": ["IPv6"]}
SINGLE, PREFER, REQUIRE = ({"ipFamilyPolicy": name} for name in ("SingleStack", "PreferDualStack", "RequireDualStack"))
DUAL: dict[str, list[tuple[Obj, Obj]]] = {
    "ipFamilyPolicy alone": [(PREFER, BOTH), (SINGLE, V4), (REQUIRE, BOTH)],
    "the first family with a dual-stack policy": [(REQUIRE | V6, REVERSED), (PREFER | V6, REVERSED), (SINGLE | V6, V6)],
}  # fmt: skip


@pytest.fixture(scope="module")
def dual_stack(admin: Kube) -> None:
    """Skips the test on a cluster with one address family."""
    meta = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "probe", "namespace": "default"}}
    try:
        admin.create({**meta, "spec": {**REQUIRE, "ports": [{"port": 80}]}}, dryRun="All")
    except ApiError as error:
        pytest.skip(f"the cluster has one address family: {error}")


def edit(kube: Kube, resource: Obj, fields: Obj) -> None:
    """Replaces `spec.service` and waits until the operator has accepted it."""
    before = (read(kube, resource)["spec"].get("service") or {}).keys()
    kube.patch(resource, {"spec": {"service": {**dict.fromkeys(before - fields.keys()), **fields}}})
    wait_condition(kube, resource, "Accepted", "True")


def follow(kube: Kube, namespace: str, steps: list[tuple[Obj, Obj]]) -> None:
    resource = kube.create(demo(namespace, service=steps[0][0]))
    for fields, expected in steps:
        edit(kube, resource, fields)
        spec = kube.get("v1", "Service", "demo", namespace)["spec"]
        assert {name: spec.get(name) for name in expected} == expected


@pytest.mark.usefixtures("dual_stack")
@pytest.mark.parametrize("name", DUAL)
def test_families_of_the_service_are_set_changed_and_removed(admin: Kube, namespace: str, name: str) -> None:
    follow(admin, namespace, DUAL[name])


@pytest.mark.usefixtures("dual_stack")
def test_a_change_of_the_first_family_is_refused_with_the_servers_message(admin: Kube, namespace: str) -> None:
    resource = accepted(admin, demo(namespace, service=V4))
    admin.patch(resource, {"spec": {"service": V6}})
    wait_condition(admin, resource, "Accepted", "False", says="ipFamilies[0]")
    assert admin.get("v1", "Service", "demo", namespace)["spec"]["ipFamilies"] == ["IPv4"]
    edit(admin, resource, V4)


def test_the_addresses_of_a_load_balancer_are_in_the_status_and_in_the_table(admin: Kube, namespace: str) -> None:
    resource = accepted(admin, demo(namespace, service={"type": "LoadBalancer", "port": 8080}))
    inside = f"http://demo.{namespace}.svc:8080/v1"
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"

    def expect(*urls: str) -> None:
        def there() -> bool:
            return [one["url"] for one in read(admin, resource)["status"]["addresses"]] == list(urls)

        admin.wait(f"the addresses {urls}", there)
        answer = admin.request("GET", DLMS.path(namespace, "demo"), accept=table)
        columns = [(column["name"], column["priority"]) for column in answer["columnDefinitions"]]
        assert answer["rows"][0]["cells"][columns.index(("URL", 0))] == urls[0]

    expect(inside)
    service = admin.get("v1", "Service", "demo", namespace)
    ingress = [{"ip": "203.0.113.7"}, {"ip": "2001:db8::7"}, {"hostname": "lb.example.com", "ip": "203.0.113.8"}]
    admin.patch(service, {"status": {"loadBalancer": {"ingress": ingress}}}, subresource="status")
    hosts = ("203.0.113.7", "[2001:db8::7]", "lb.example.com")
    expect(*(f"http://{host}:8080/v1" for host in hosts), inside)
    admin.patch(resource, {"spec": {"service": {"type": "ClusterIP", "port": 80}}})
    expect(f"http://demo.{namespace}.svc/v1")
