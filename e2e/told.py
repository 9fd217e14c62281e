"""What is told of a namespace to people who may not read its Secrets."""

from __future__ import annotations

from e2e.cluster import Kube
from e2e.cluster.install import NAMESPACE as OPERATOR
from e2e.cluster.install import RELEASE
from e2e.cluster.kube import ApiError
from e2e.services import LABEL, kubectl

_KINDS = "dlms,deployments,replicasets,pods,services,controllerrevisions,events"


def everything_told(kube: Kube, namespace: str) -> str:
    """Its objects and Events, the engines' logs (of their lives before, too) and the operator's."""
    told = kubectl("get", _KINDS, "--output=yaml", namespace=namespace)
    return told + _logs(kube, namespace, LABEL) + _logs(kube, OPERATOR, f"app.kubernetes.io/instance={RELEASE}")


def _logs(kube: Kube, namespace: str, selector: str) -> str:
    """Of the pods that have any. AssertionError where none has: then nothing was looked through."""
    found = []
    for pod in kube.list("v1", "Pod", namespace, labelSelector=selector):
        path = kube.path("v1", "Pod", namespace, pod["metadata"]["name"], "log")
        for previous in (False, True):
            try:
                found.append(str(kube.request("GET", path, previous=previous)))
            except ApiError as error:
                if error.status not in (400, 404):  # it has not begun, or had no life before; it is gone
                    raise
    assert found, f"no logs of {selector} in namespace {namespace}"
    return "".join(found)
