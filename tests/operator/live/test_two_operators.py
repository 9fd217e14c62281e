"""Tests of two releases that watch the same services with different default images."""

import time

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, install
from tests.operator.live.objects import accepted, demo, read, wait_condition

pytestmark = pytest.mark.cluster


def test_two_releases_stop_to_write_the_status_and_name_each_other(
    api_server: ApiServer, admin: Kube, namespace: str
) -> None:
    second = f"{namespace}-b"
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": second}})
    install(api_server, admin, namespace, [namespace])
    install(api_server, admin, second, [namespace])
    with OperatorProcess(api_server, namespace, [namespace]):
        resource = accepted(admin, demo(namespace))
        with OperatorProcess(api_server, second, [namespace], runtime_image="other.example.com/runtime:9"):
            says = wait_condition(admin, resource, "Accepted", "Unknown", "TwoOperators")["message"]
            assert all(f"{name}/unmask-operator" in says for name in (namespace, second))

            def is_left_alone() -> bool:
                version = read(admin, resource)["metadata"]["resourceVersion"]
                time.sleep(5)  # releases that do not stop write twice a second
                return read(admin, resource)["metadata"]["resourceVersion"] == version

            admin.wait("no more writes", is_left_alone)  # the last write of one may follow that of the other
            admin.patch(resource, {"spec": {"replicas": 3}})
            deployment = ("apps/v1", "Deployment", "demo", namespace)
            admin.wait("scaled", lambda: admin.get(*deployment)["spec"]["replicas"] == 3)
