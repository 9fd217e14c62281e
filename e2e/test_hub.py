"""Tests of a private model on a hub: the token from a Secret, the progress in the status, and the error messages."""

from __future__ import annotations

import base64
import secrets

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.scripts import CHECKPOINT, PORT, Client, script_pod, serve, text
from e2e.services import POD_TIMEOUT, condition, demo, get, is_ready, patch, pods, wait_condition
from e2e.visible_text import visible_text


def private(namespace: str, **model: object) -> Obj:
    """Returns a service for the stub's private model.

    HF_ENDPOINT is usually set by the chart for all services. Here only this service uses the stub.
    """
    env = [
        {"name": "HF_ENDPOINT", "value": "http://hub"},
        {"name": "HF_HUB_DOWNLOAD_TIMEOUT", "value": "600"},  # in seconds: the stub sends one file at a time
    ]
    spec = {
        "model": {"uri": "hf://org/private", "tokenSecretRef": {"name": "hub-token", "key": "token"}} | model,
        "podTemplate": {"spec": {"containers": [{"name": "main", "env": env}]}},
    }
    return demo(namespace, spec=spec)


def start_hub(kube: Kube, namespace: str, token: str, *more: str) -> None:
    """Starts the stub as http://hub.

    Args:
        token: The token that it accepts.
        more: Further arguments of the stub: "held" stops downloads halfway.
    """
    meta = {"name": "hub", "namespace": namespace}
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"TOKEN": token}})
    pod = script_pod(kube, namespace, "hub", CHECKPOINT, str(PORT), "1e9", *more)
    pod["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": "hub"}}]
    serve(kube, pod)


def keep(kube: Kube, namespace: str, **values: str) -> None:
    """Creates or updates the Secret hub-token with these members."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    meta = {"name": "hub-token", "namespace": namespace}
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})


@pytest.mark.smoke
def test_a_private_model_is_fetched_with_a_token(kube: Kube, namespace: str) -> None:
    token = f"hf_{secrets.token_hex(12)}"
    start_hub(kube, namespace, token, "held")
    keep(kube, namespace, token=token)
    kube.create(private(namespace, revision="v1"))

    def partly_loaded() -> Obj | None:
        service = get(kube, namespace)
        load = service.get("status", {}).get("modelLoad", {"phase": "", "percent": 0})
        return service if load["phase"] == "download" and 0 < load["percent"] < 100 else None

    service = kube.wait("the progress of the download", partly_loaded, timeout=POD_TIMEOUT)
    loading = condition(service, "ModelLoaded")
    percent = service["status"]["modelLoad"]["percent"]
    assert (loading["reason"], loading["message"]) == ("Loading", f"the model is being loaded: download, {percent} %")
    kube.request("POST", kube.path("v1", "Pod", namespace, f"hub:{PORT}", "proxy") + "/release")
    wait_condition(kube, namespace)
    assert "42" in text(Client(kube, namespace).ask())
    assert token not in visible_text(kube, namespace)

    # Without a pinned revision, new pods use the newest one, which this runtime cannot load. The old pod keeps serving.
    patch(kube, namespace, {"model": {"revision": None}})
    wait_condition(kube, namespace, "ModelLoaded", "False", reason="CrashLoopBackOff", says="'nobody_has_it'")
    assert condition(get(kube, namespace), "Available")["status"] == "True"
    assert token not in visible_text(kube, namespace)


def test_the_error_for_each_refusal_names_the_setting_of_the_token(kube: Kube, namespace: str) -> None:
    right, wrong = (f"hf_{secrets.token_hex(12)}" for _ in range(2))
    start_hub(kube, namespace, right)
    kube.create(private(namespace, revision="v1", tokenSecretRef=None))
    asked = "or it needs a token; check its name, or set HF_TOKEN"
    wait_condition(kube, namespace, "ModelLoaded", "False", reason="CrashLoopBackOff", says=asked)

    patch(kube, namespace, {"model": {"tokenSecretRef": {"name": "hub-token", "key": "token"}}})
    missing = {"reason": "CreateContainerConfigError", "kind": "ModelLoaded", "status": "False"}
    wait_condition(kube, namespace, says='secret "hub-token" not found', **missing)
    keep(kube, namespace, other="x")
    wait_condition(kube, namespace, says="couldn't find key token in Secret", **missing)
    keep(kube, namespace, token=wrong)
    refused = "the hub does not accept the token in HF_TOKEN (of a DiffusionLMService: spec.model.tokenSecretRef)"
    wait_condition(kube, namespace, "ModelLoaded", "False", reason="CrashLoopBackOff", says=refused)
    wait_condition(kube, namespace, "Ready", "False", reason="CrashLoopBackOff", says=refused)
    newest = max(pods(kube, namespace), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    # A corrected token needs no edit of the service, because the container restarts with the new content of the Secret.
    keep(kube, namespace, token=right)
    wait_condition(kube, namespace)
    ready = [pod for pod in pods(kube, namespace) if is_ready(pod)]
    assert [pod["metadata"]["uid"] for pod in ready] == [newest["metadata"]["uid"]]
    shown = visible_text(kube, namespace)
    assert refused in shown  # in the log of the previous container
    assert right not in shown
    assert wrong not in shown
