"""Tests that the operator puts a service to sleep behind the activator, and that the activator wakes it by itself."""

from typing import Any

import httpx
import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import ActivatorProcess, OperatorProcess, activator_pod, reset_lease
from tests.operator.live.objects import demo, read, wait_condition
from tests.wait import TIMEOUT
from unmask_operator.kinds import ENDPOINT_SLICES

pytestmark = pytest.mark.cluster

ZERO = {"minReplicas": 0, "maxReplicas": 2, "zero": {"holdSeconds": 1}}
SLICE = (ENDPOINT_SLICES.api_version, ENDPOINT_SLICES.kind, "night-activator")


def test_a_service_sleeps_and_is_woken_also_without_an_operator(
    api_server: ApiServer, admin: Kube, namespace: str, operator: OperatorProcess
) -> None:
    activator_pod(admin, namespace)
    resource = admin.create(demo(namespace, "night", replicas=0, autoscaling=ZERO))
    wait_condition(admin, resource, "Ready", "True", "Asleep")
    wait_condition(admin, resource, "ScalingReady", "True")
    scaling = read(admin, resource)["status"]["autoscaling"]
    assert scaling["asleep"]
    found = admin.get(*SLICE, namespace)
    assert ([port["port"] for port in found["ports"]], found["endpoints"][0]["addresses"]) == (
        [scaling["activatorPort"]],
        ["192.0.2.1"],
    )
    with ActivatorProcess(api_server, admin, namespace) as activator:
        url = f"http://127.0.0.1:{scaling['activatorPort']}/v1"
        options: Any = {"timeout": TIMEOUT, "trust_env": False}
        assert [one["id"] for one in httpx.get(f"{url}/models", **options).json()["data"]] == ["night"]
        assert read(admin, resource)["spec"]["replicas"] == 0
        operator.kill()
        assert httpx.post(f"{url}/completions", json={}, **options).status_code == 503  # no pod ever runs here
        assert read(admin, resource)["spec"]["replicas"] == 1
        assert httpx.post(f"{url}/completions", json={}, **options).status_code == 503
        labels = f'{{name="night",namespace="{namespace}"}}'
        assert activator.metric(f"unmask_activator_wakes_total{labels}") == 1
        assert "forbidden" not in activator.log()
        reset_lease(admin, namespace)
        operator.start()
        wait_condition(admin, resource, "Ready", "False", "Waking")
        deployment = admin.get("apps/v1", "Deployment", "night", namespace)
        assert deployment["spec"]["replicas"] == 1
        assert admin.find(*SLICE, namespace), "requests are held until a pod is Ready"
