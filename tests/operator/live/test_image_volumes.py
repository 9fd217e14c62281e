"""Tests of oci:// models with API servers that know image volumes, and that drop them without a word."""

import pytest

from e2e.cluster import start_api_server
from e2e.cluster.operator_process import OperatorProcess, install
from tests.operator.live.objects import demo, read, wait_condition

pytestmark = pytest.mark.cluster
IMAGE = f"registry.example/team/llada2@sha256:{'0' * 64}"


@pytest.mark.parametrize("known", [True, False])
def test_pods_are_created_only_where_the_model_is_mounted(known: bool) -> None:
    with start_api_server(feature_gates=f"ImageVolume={str(known).lower()}") as server:
        admin = server.admin()
        install(server, admin, "default", ["default"])
        with OperatorProcess(server, "default", ["default"]):
            service = admin.create(demo("default", model={"uri": f"oci://{IMAGE}"}))
            if known:
                wait_condition(admin, service, "Accepted", "True")
                live = admin.get("apps/v1", "Deployment", "demo", "default")["spec"]["template"]["spec"]
                volume = {"name": "model", "image": {"reference": IMAGE, "pullPolicy": "IfNotPresent"}}
                assert volume in live["volumes"]
                (main,) = live["containers"]
                assert {"name": "model", "mountPath": "/mnt/model", "readOnly": True} in main["volumeMounts"]
                assert "--model=/mnt/model" in main["args"]
            else:
                reason = ("ImageVolumesUnavailable", "oci:// needs Kubernetes 1.35")
                wait_condition(admin, service, "Accepted", "False", *reason)
                assert not admin.find("apps/v1", "Deployment", "demo", "default")
                admin.patch(service, {"spec": {"model": {"uri": "demo://"}}})
                wait_condition(admin, read(admin, service), "Accepted", "True")
        admin.close()
