"""Tests of the model cache: one download for all pods of a service, interrupted and refused ones, and edits under load.

The volumes are directories of the node, and the hub is a stub that counts requests. They run last, because the operator
gets the permissions for Jobs and claims by an upgrade of its chart.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.host import audit_log
from e2e.load import ENOUGH, load
from e2e.release import NAMESPACE, Release, leader
from e2e.scripts import CHECKPOINT, PORT, python_pod, script_pod, serve
from e2e.services import POD_TIMEOUT, ask, condition, demo, engines, get, is_ready, kubectl, patch, pods, wait_condition
from e2e.test_hub import keep, private, start_hub

V1 = {"revision": "v1"}
FETCH_POD = "serving.unmask.dev/fetch=demo"
# Lets user 65532 write to a directory of the node.
_PREPARE = "import os, sys; os.chmod('/volume', 0o777)"


@pytest.fixture
def cached(release: Release) -> None:
    """Gives the operator the permissions of modelCache.enabled."""
    release.upgrade({"modelCache.enabled": True})


@pytest.fixture
def volumes(kube: Kube, namespace: str) -> Iterator[str]:
    """Yields a storage class with two empty volumes, which are directories of the node."""
    made = [volume(kube, namespace, name) for name in ("a", "b", "locked")]
    yield namespace
    for one in made:
        kube.delete(one)


@pytest.fixture
def small_disk(kube: Kube, namespace: str) -> Iterator[Path]:
    """Yields the directory of a volume on a file system of its own, in which a model does not fit."""
    if not audit_log().exists():
        pytest.skip("needs a node whose file systems are at hand: a cluster that `up` started")
    path = directory(namespace, "small")
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M,mode=777", "tmpfs", path], check=True)
    made = volume(kube, namespace, "small")
    yield path
    kube.delete(made)
    subprocess.run(["umount", "--lazy", path], check=True)


def directory(namespace: str, name: str) -> Path:
    return Path(f"/var/tmp/unmask-{namespace}-{name}")


def volume(kube: Kube, namespace: str, name: str) -> Obj:
    """Creates a volume that user 65532 may write to, unless its name is "locked"."""
    path = str(directory(namespace, name))
    spec: Obj = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": namespace if name != "locked" else f"{namespace}-locked",
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": path, "type": "DirectoryOrCreate"},
    }
    pod = python_pod(namespace, f"prepare-{name}", ["-c", _PREPARE])
    pod["spec"] |= {"restartPolicy": "Never", "securityContext": {"runAsUser": 0}}
    pod["spec"]["volumes"] = [{"name": "volume", "hostPath": spec["hostPath"]}]
    pod["spec"]["containers"][0] |= {
        "securityContext": {},
        "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
    }

    def prepared() -> bool:
        phase: str = kube.get("v1", "Pod", pod["metadata"]["name"], namespace)["status"]["phase"]
        return phase == "Succeeded"

    if name != "locked":
        kube.create(pod)
        kube.wait("the directory", prepared, timeout=POD_TIMEOUT)
    meta = {"name": f"{namespace}-{name}"}
    return kube.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec})


def service(namespace: str, *, replicas: int = 1, name: str = "demo", pvc: Obj | None = None, **model: object) -> Obj:
    """Returns a service for the stub's private model in a claim."""
    made = private(namespace, **V1 | model)
    made["metadata"]["name"] = name
    made["spec"] |= {
        "replicas": replicas,
        "modelCache": {"pvc": pvc or {"size": "1Gi", "storageClassName": namespace}},
    }
    return made


def hub(kube: Kube, namespace: str, method: str, path: str) -> Obj:
    return kube.request(method, kube.path("v1", "Pod", namespace, f"hub:{PORT}", "proxy") + path)


def requests(kube: Kube, namespace: str) -> dict[str, int]:
    """Returns how often the hub sent each file."""
    return dict(hub(kube, namespace, "GET", "/requests"))


def fetch_pods(kube: Kube, namespace: str) -> list[Obj]:
    return kube.list("v1", "Pod", namespace, labelSelector=FETCH_POD)


def begin(kube: Kube, namespace: str, *more: str) -> str:
    """Starts the hub and creates the Secret of its token. Returns the token."""
    token = f"hf_{secrets.token_hex(12)}"
    start_hub(kube, namespace, token, *more)
    keep(kube, namespace, token=token)
    return token


def wait_downloading(kube: Kube, namespace: str) -> None:
    def partly() -> bool:
        percent = get(kube, namespace).get("status", {}).get("modelCache", {}).get("percent", 0)
        return bool(0 < percent < 100)

    kube.wait("the progress of the download", partly, timeout=POD_TIMEOUT)


@pytest.mark.usefixtures("cached")
def test_two_replicas_read_one_copy_whose_download_was_killed_halfway(kube: Kube, namespace: str, volumes: str) -> None:
    token = begin(kube, namespace, "held")
    kube.create(service(namespace, replicas=2))
    wait_downloading(kube, namespace)
    assert pods(kube, namespace) == [], "an engine waits for the download"
    wait_condition(kube, namespace, "Ready", "False", reason="Downloading", says="download, ")
    (first,) = fetch_pods(kube, namespace)
    kube.delete(first)
    sent = requests(kube, namespace)
    hub(kube, namespace, "POST", "/release")
    wait_condition(kube, namespace)
    assert "42" in ask(kube, namespace)
    assert len([pod for pod in pods(kube, namespace) if is_ready(pod)]) == 2
    again = {name: count for name, count in requests(kube, namespace).items() if count > 1}
    assert again.keys() <= sent.keys()
    assert len(again) <= 4, f"complete files were downloaded again: {again}"
    for pod in pods(kube, namespace):
        assert "hub-token" not in str(pod["spec"])
        assert {"name": "HF_HUB_OFFLINE", "value": "1"} in pod["spec"]["containers"][0]["env"]
    assert token not in kubectl("get", "all,events", "-o", "yaml", namespace=namespace)
    assert condition(get(kube, namespace), "ModelCached")["reason"] == "Cached"

    # Another revision is downloaded first. A wrong byte of it is not served, and changes no pod.
    before, served = engines(kube, namespace), requests(kube, namespace)
    hub(kube, namespace, "POST", "/flip")
    patch(kube, namespace, {"model": {"revision": "main"}})
    wait_condition(kube, namespace, "ModelCached", "False", reason="FetchFailed", says="differed from the hub")
    assert engines(kube, namespace) == before
    assert condition(get(kube, namespace), "Available")["status"] == "True"

    # Back to the first revision: its copy is there.
    sent = requests(kube, namespace)
    patch(kube, namespace, {"model": V1})
    wait_condition(kube, namespace, "ModelCached")
    wait_condition(kube, namespace)
    assert requests(kube, namespace) == sent
    assert served.keys() <= sent.keys()
    assert engines(kube, namespace) == before


@pytest.mark.usefixtures("cached")
def test_a_restart_under_load_looks_at_the_copy_first_and_fails_no_request(
    kube: Kube, namespace: str, volumes: str
) -> None:
    begin(kube, namespace)
    kube.create(service(namespace))
    wait_condition(kube, namespace)
    old, sent = engines(kube, namespace), requests(kube, namespace)
    with load(kube, namespace) as running:
        kube.wait("some load", lambda: running.report().requests > ENOUGH // 10, timeout=POD_TIMEOUT)
        kubectl("annotate", "dlms", "demo", "serving.unmask.dev/restartedAt=now", namespace=namespace)
        kube.wait("new pods", lambda: not old.keys() & engines(kube, namespace).keys(), timeout=POD_TIMEOUT)
        running.served(at_least=ENOUGH)
    wait_condition(kube, namespace)
    assert requests(kube, namespace) == sent


@pytest.mark.usefixtures("cached")
def test_services_with_one_claim_make_one_copy_and_a_deleted_one_leaves_it(
    kube: Kube, namespace: str, volumes: str
) -> None:
    begin(kube, namespace, "held")
    meta = {"name": "shared", "namespace": namespace}
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": volumes,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    kube.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec})
    pvc = {"claimName": "shared", "subPath": "models"}
    first = kube.create(service(namespace, pvc=pvc))
    kube.create(service(namespace, name="other", pvc=pvc))
    wait_downloading(kube, namespace)
    hub(kube, namespace, "POST", "/release")
    for name in ("demo", "other"):
        wait_condition(kube, namespace, name=name)
    paths = {name: get(kube, namespace, name)["status"]["modelCache"] for name in ("demo", "other")}
    assert paths["demo"]["commit"] == paths["other"]["commit"]

    sent = requests(kube, namespace)
    kube.delete(first)
    kube.wait("the service is gone", lambda: not pods(kube, namespace) and not fetch_pods(kube, namespace))
    kube.create(service(namespace, pvc=pvc))
    wait_condition(kube, namespace)
    assert requests(kube, namespace) == sent, "a complete copy was downloaded again"


@pytest.mark.usefixtures("cached")
def test_a_service_deleted_during_its_download_leaves_nothing(kube: Kube, namespace: str, volumes: str) -> None:
    begin(kube, namespace, "held")
    made = kube.create(service(namespace))
    wait_downloading(kube, namespace)
    kube.delete(made)

    def gone() -> bool:
        return not fetch_pods(kube, namespace) and not kube.list("v1", "PersistentVolumeClaim", namespace)

    kube.wait("no pod and no claim", gone)


@pytest.mark.usefixtures("cached", "volumes")
def test_a_model_of_an_object_store_is_downloaded_by_the_job_alone(kube: Kube, namespace: str) -> None:
    pod = script_pod(kube, namespace, "buckets", CHECKPOINT, str(PORT))
    pod["spec"]["containers"][0]["env"] = [{"name": "ACCESS_KEY", "value": "reader"}]
    serve(kube, pod)

    def credentials(key: str) -> None:
        values = {"AWS_ENDPOINT_URL": "http://buckets", "AWS_ALLOW_HTTP": "true", "AWS_SECRET_ACCESS_KEY": "x"}
        meta = {"name": "bucket", "namespace": namespace}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta}
        kube.apply({**secret, "stringData": values | {"AWS_ACCESS_KEY_ID": key}})

    credentials("wrong")
    bucket = {"uri": "s3://models/org/name", "credentialsSecretRef": {"name": "bucket"}}
    pvc = {"size": "1Gi", "storageClassName": namespace}
    kube.create(demo(namespace, spec={"model": bucket, "replicas": 2, "modelCache": {"pvc": pvc}}))
    refused = "the store refuses the credentials"
    wait_condition(kube, namespace, "ModelCached", "False", reason="AccessDenied", says=refused)
    credentials("reader")
    kubectl("delete", "jobs", "--all", namespace=namespace)
    wait_condition(kube, namespace)
    assert "42" in ask(kube, namespace)
    sent = kube.request("GET", kube.path("v1", "Pod", namespace, f"buckets:{PORT}", "proxy") + "/requests")
    assert {*sent.values()} == {1}
    assert "AWS" not in str(pods(kube, namespace))
    assert not [one for pod in pods(kube, namespace) for one in pod["spec"]["containers"] if one.get("envFrom")]


@pytest.mark.usefixtures("cached", "volumes")
def test_an_operator_killed_during_a_download_starts_no_second_one(kube: Kube, namespace: str) -> None:
    begin(kube, namespace, "held")
    kube.create(service(namespace))
    wait_downloading(kube, namespace)
    (job,) = kube.list("batch/v1", "Job", namespace)
    killed = kube.wait("a leader", lambda: leader(kube))["metadata"]["name"]
    kubectl("delete", "pod", killed, "--grace-period=0", "--force", "--wait=false", namespace=NAMESPACE)
    hub(kube, namespace, "POST", "/release")
    wait_condition(kube, namespace, "ModelCached")
    wait_condition(kube, namespace)
    assert [one["metadata"]["uid"] for one in kube.list("batch/v1", "Job", namespace)] == [job["metadata"]["uid"]]
    assert {*requests(kube, namespace).values()} == {1}


@pytest.mark.usefixtures("cached")
def test_a_full_disk_is_reported_and_the_download_continues_when_it_has_space(
    kube: Kube, namespace: str, small_disk: Path
) -> None:
    begin(kube, namespace, "held")
    kube.create(service(namespace))

    def full(says: str) -> None:
        wait_condition(kube, namespace, "ModelCached", "False", reason="NotEnoughSpace", says=says)
        assert condition(get(kube, namespace), "Stalled")["reason"] == "NotEnoughSpace"
        assert pods(kube, namespace) == []

    def again() -> None:  # as the message of the condition says
        kubectl("delete", "jobs", "--all", namespace=namespace)

    full("GB of free space; enlarge the claim")
    assert not [name for name in requests(kube, namespace) if name.endswith(".safetensors")]
    subprocess.run(["mount", "-o", "remount,size=24M", small_disk], check=True)
    again()
    wait_downloading(kube, namespace)
    other = small_disk / "of-another-program"
    with pytest.raises(OSError, match="No space left"):  # it has all that is left
        other.write_bytes(bytes(24 * 2**20))
    hub(kube, namespace, "POST", "/release")
    full("No space left on device; enlarge the claim")
    other.unlink()
    again()
    wait_condition(kube, namespace)
    assert "42" in ask(kube, namespace)


@pytest.mark.usefixtures("cached")
def test_each_failure_is_one_sentence(kube: Kube, namespace: str, volumes: str) -> None:
    token = begin(kube, namespace)
    keep(kube, namespace, token="hf_wrong")
    kube.create(service(namespace, pvc={"claimName": "missing"}))
    refused = {"kind": "ModelCached", "status": "False"}
    wait_condition(kube, namespace, reason="ClaimNotFound", says="missing does not exist", **refused)
    wait_condition(kube, namespace, "Ready", "False", reason="ClaimNotFound")

    unbound = {"size": "1Gi", "storageClassName": "nobody-has-it"}
    patch(kube, namespace, {"modelCache": {"pvc": {"claimName": None, **unbound}}})
    wait_condition(kube, namespace, reason="ClaimPending", says="has no volume yet: demo-models", **refused)
    kube.delete(get(kube, namespace))
    kube.wait("the claim is gone", lambda: not kube.list("v1", "PersistentVolumeClaim", namespace))

    kube.create(service(namespace))
    wait_condition(kube, namespace, reason="AccessDenied", says="the hub does not accept the token", **refused)
    assert condition(get(kube, namespace), "Stalled")["reason"] == "AccessDenied"
    assert "FetchFailed" in kubectl("describe", "dlms", "demo", namespace=namespace)
    assert pods(kube, namespace) == []

    keep(kube, namespace, token=token)
    patch(kube, namespace, {"model": {"revision": "nobody"}})
    wait_condition(kube, namespace, reason="FetchFailed", says="the repository has no revision", **refused)
    locked = {"claimName": None, "size": "1Gi", "storageClassName": f"{namespace}-locked"}
    kube.delete(get(kube, namespace))
    kube.wait("the claim is gone", lambda: not kube.list("v1", "PersistentVolumeClaim", namespace))
    kube.create(service(namespace, pvc={key: value for key, value in locked.items() if value}))
    wait_condition(kube, namespace, reason="NotWritable", says="cannot be written by user 65532", **refused)
