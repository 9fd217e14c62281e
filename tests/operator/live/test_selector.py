"""Tests of an operator with a label selector: it reconciles only matching resources, also after labels change."""

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, install
from tests.operator.live.objects import demo, read, wait_condition

pytestmark = pytest.mark.cluster


def test_a_service_is_reconciled_while_its_labels_match(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    install(api_server, admin, namespace, [namespace])
    first, second = demo(namespace, "first"), demo(namespace, "second")
    first["metadata"]["labels"] = {"track": "canary"}
    for resource in (first, second):
        admin.create(resource)
    with OperatorProcess(api_server, namespace, [namespace], selector="track=canary"):
        wait_condition(admin, first, "Accepted", "True")
        assert "status" not in read(admin, second)
        admin.patch(first, {"metadata": {"labels": {"track": None}}})
        admin.patch(second, {"metadata": {"labels": {"track": "canary"}}})
        wait_condition(admin, second, "Accepted", "True")
        for resource in (first, second):
            admin.patch(resource, {"spec": {"service": {"annotations": {"a": "b"}}}})
        wait_condition(admin, second, "Accepted", "True")
        seen = [admin.get("v1", "Service", name, namespace)["metadata"] for name in ("first", "second")]
        assert [metadata.get("annotations", {}).get("a") for metadata in seen] == [None, "b"]
