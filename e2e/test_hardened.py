"""Tests of the restricted Pod Security level for engines and the operator, and of API keys from a Secret."""

from __future__ import annotations

import base64
import json
import re
import secrets

import pytest

from e2e.cluster import Kube
from e2e.cluster.install import NAMESPACE as OPERATOR
from e2e.cluster.install import RELEASE
from e2e.cluster.kube import ApiError, Obj
from e2e.scripts import Client, python_pod, text
from e2e.services import demo, is_ready, kubectl, pods, wait_condition
from e2e.visible_text import visible_text

# Run inside the engine's container.
LOOK = """
import json, os, pathlib

def writable(place):
    try:
        (pathlib.Path(place) / "probe").write_text("x")
        return True
    except OSError as error:
        return error.strerror

status = dict(line.split(":", 1) for line in open("/proc/1/status").read().splitlines())
print(json.dumps({
    "uids": status["Uid"].split(), "capabilities": {k: int(status[k], 16) for k in status if k.startswith("Cap")},
    "no_new_privileges": status["NoNewPrivs"].strip(), "seccomp": status["Seccomp"].strip(),
    "root": writable("/"), "app": writable("/opt/unmask/app"), "tmp": writable("/tmp"),
    "account": os.path.exists("/var/run/secrets/kubernetes.io"),
    "variables": sorted(name for name in os.environ if name.startswith(("UNMASK_", "DEMO_"))),
}))
"""


@pytest.fixture
def restricted(kube: Kube, namespace: str) -> str:
    """Returns a namespace that enforces the restricted Pod Security level and has a Service named `unmask`."""
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    kube.patch(kube.get("v1", "Namespace", namespace), level)
    meta = {"name": "unmask", "namespace": namespace}
    spec = {"selector": {"app": "unmask"}, "ports": [{"port": 8000}]}
    kube.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})
    loose = python_pod(namespace, "loose", [], securityContext={"privileged": True})

    def refused() -> bool:
        try:
            kube.create(loose, dryRun="All")
        except ApiError as error:
            return bool(re.search("violates PodSecurity .*privileged", error.message))
        return False

    kube.wait("the level to be enforced", refused)
    return namespace


def test_engines_run_under_the_restricted_level(kube: Kube, restricted: str) -> None:
    kube.create(demo(restricted))
    wait_condition(kube, restricted)
    found = json.loads(kubectl("exec", "deploy/demo", "--", "python", "-c", LOOK, namespace=restricted))
    assert "0" not in found["uids"]
    assert set(found["capabilities"].values()) == {0}
    assert (found["no_new_privileges"], found["seccomp"]) == ("1", "2")
    assert (found["root"], found["app"]) == ("Read-only file system", "Read-only file system")
    assert found["tmp"] is True
    assert not found["account"]
    assert found["variables"] == ["UNMASK_DEFAULT_HOST", "UNMASK_KERNEL_CACHE"]  # set by the image; none by a Service
    assert "42" in text(Client(kube, restricted).ask())


def test_the_operator_may_run_under_the_restricted_level(kube: Kube, restricted: str) -> None:
    template = kube.get("apps/v1", "Deployment", RELEASE, OPERATOR)["spec"]["template"]
    account = template["spec"]["serviceAccountName"]
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": restricted}})
    pod: Obj = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator", "namespace": restricted}}
    kube.create(pod | {"spec": template["spec"]}, dryRun="All")


def set_keys(kube: Kube, namespace: str, keys: str) -> None:
    meta = {"name": "demo-keys", "namespace": namespace}
    data = {"keys": base64.b64encode(keys.encode()).decode()}
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})


def lives(pod: Obj) -> tuple[str, list[int]]:
    """Returns a value that changes when the pod is replaced or one of its containers restarts."""
    return pod["metadata"]["uid"], [container["restartCount"] for container in pod["status"]["containerStatuses"]]


def test_api_keys_of_a_secret_rotate_without_a_restart(kube: Kube, namespace: str) -> None:
    old, new = secrets.token_hex(16), secrets.token_hex(16)
    set_keys(kube, namespace, old)
    kube.create(demo(namespace, spec={"auth": {"apiKeySecretRef": {"name": "demo-keys", "key": "keys"}}}))
    client = Client(kube, namespace)
    wait_condition(kube, namespace)
    for key in ("", new):
        status, answer = client.ask(key=key)
        assert status == 401
        assert answer["error"].keys() == {"message", "type", "param", "code"}
        assert answer["error"]["code"] == "invalid_api_key"
        assert client.send("http://demo/v1/models", key=key)[0] == 401
    assert "42" in text(client.ask(key=old))

    (before,) = pods(kube, namespace)
    set_keys(kube, namespace, new)
    # The kubelet updates the Secret's file in the pod within a minute or two. The engine reads it within seconds.
    kube.wait("the new key to open", lambda: client.send("http://demo/v1/models", key=new)[0] == 200, timeout=600)
    (after,) = pods(kube, namespace)
    assert is_ready(after)
    assert lives(after) == lives(before)
    assert "42" in text(client.ask(key=new))
    assert client.ask(key=old)[0] == 401
    shown = visible_text(kube, namespace)
    assert old not in shown
    assert new not in shown
