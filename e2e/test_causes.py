"""Tests that `Ready` reports why an engine does not run, with the original error, and recovers after a fix."""

from __future__ import annotations

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.services import condition, demo, get, patch, pods, wait_condition


def quota(namespace: str, memory: str) -> Obj:
    meta = {"name": "team", "namespace": namespace}
    hard = {"requests.memory": memory}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}}


def test_an_exceeded_quota_is_reported(kube: Kube, namespace: str) -> None:
    small = kube.create(quota(namespace, "512Mi"))
    kube.wait(
        "the quota's count",
        lambda: kube.get("v1", "ResourceQuota", "team", namespace).get("status", {}).get("used"),
    )
    kube.create(demo(namespace))
    refused = wait_condition(kube, namespace, "Ready", "False", reason="PodCreationRefused")
    assert "exceeded quota: team, requested: requests.memory=1Gi" in refused["message"]
    assert "limited: requests.memory=512Mi" in refused["message"]
    assert pods(kube, namespace) == []

    kube.patch(small, {"spec": {"hard": {"requests.memory": "2Gi"}}})
    wait_condition(kube, namespace, "Scheduled")  # a pod was created; other tests cover its start


def test_a_missing_claim_is_named(kube: Kube, namespace: str) -> None:
    kube.create(demo(namespace, spec={"model": {"uri": "pvc://weights/llada2"}}))
    missing = wait_condition(kube, namespace, "Ready", "False", reason="PersistentVolumeClaimNotFound")
    assert "PersistentVolumeClaim weights does not exist in this namespace" in missing["message"]
    assert "spec.model.uri" in missing["message"]

    claim = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    meta = {"name": "weights", "namespace": namespace}
    kube.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim})
    unbound = wait_condition(kube, namespace, "Ready", "False", reason="PersistentVolumeClaimUnbound")
    assert "has no volume yet: weights" in unbound["message"]


@pytest.mark.smoke
def test_the_engines_error_for_an_invalid_block_size_is_reported(kube: Kube, namespace: str) -> None:
    kube.create(demo(namespace, spec={"engine": {"blockSize": 48}}))
    fatal = "is neither a multiple nor a divisor of the block size 48"
    wait_condition(kube, namespace, "ModelLoaded", "False", reason="CrashLoopBackOff", says=fatal)
    service = get(kube, namespace)  # both conditions must stay the same while the kubelet restarts the container
    loaded, ready = condition(service, "ModelLoaded"), condition(service, "Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "CrashLoopBackOff", loaded["message"])

    patch(kube, namespace, {"engine": {"blockSize": None}})
    wait_condition(kube, namespace, "Ready")


@pytest.mark.parametrize(("policy", "reason"), [("Never", "ErrImageNeverPull"), ("IfNotPresent", "ImagePullBackOff")])
def test_an_image_that_is_not_there_is_named(kube: Kube, namespace: str, policy: str, reason: str) -> None:
    image = "registry.invalid/unmask-runtime:9.9.9"  # a host name that never resolves
    kube.create(demo(namespace, spec={"image": image, "imagePullPolicy": policy}))
    named = wait_condition(kube, namespace, "Ready", "False", reason=reason)
    assert image in named["message"]
    wait_condition(kube, namespace, "ModelLoaded", "False", reason=reason)


@pytest.mark.smoke
def test_a_missing_secret_is_named(kube: Kube, namespace: str) -> None:
    kube.create(demo(namespace, spec={"auth": {"apiKeySecretRef": {"name": "keys", "key": "keys"}}}))
    named = wait_condition(kube, namespace, "Ready", "False", reason="FailedMount")
    assert 'secret "keys" not found' in named["message"]


def test_a_volume_that_cannot_be_mounted_is_named(kube: Kube, namespace: str) -> None:
    """Only the pod's Events have the cause."""
    volume = {"name": "ca", "configMap": {"name": "company-ca"}}
    mount = {"name": "main", "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}]}
    template = {"spec": {"volumes": [volume], "containers": [mount]}}
    kube.create(demo(namespace, spec={"podTemplate": template}))
    says = 'configmap "company-ca" not found'
    wait_condition(kube, namespace, "Ready", "False", reason="FailedMount", says=says)


def test_a_model_that_takes_longer_than_its_probe_allows_is_named(kube: Kube, namespace: str) -> None:
    """The engine exits normally on the kubelet's SIGTERM, so only the pod's Events have the cause."""
    hasty = {"periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1}
    slow = {"requests": {"cpu": "20m"}, "limits": {"cpu": "20m"}}  # so slow that a late probe also fails
    kube.create(demo(namespace, spec={"startupProbe": hasty, "drainTimeoutSeconds": 1, "resources": slow}))
    named = wait_condition(kube, namespace, "Ready", "False", reason="StartupProbeFailed")
    assert "spec.startupProbe" in named["message"]
    assert "Startup probe failed: " in named["message"]
