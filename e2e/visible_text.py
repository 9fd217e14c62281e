"""Collects the text about a namespace that is readable without access to its Secrets."""

from __future__ import annotations

from e2e.cluster import Kube
from e2e.cluster.install import NAMESPACE as OPERATOR
from e2e.cluster.install import RELEASE
from e2e.cluster.kube import ApiError
from e2e.pods import log
from e2e.services import LABEL, kubectl

_KINDS = "dlms,deployments,replicasets,pods,services,controllerrevisions,events"


def visible_text(kube: Kube, namespace: str) -> str:
    """Returns the namespace's objects and Events, and the logs of its engines and of the operator.

    The logs include those of previous containers.
    """
    objects = kubectl("get", _KINDS, "--output=yaml", namespace=namespace)
    return objects + _logs(kube, namespace, LABEL) + _logs(kube, OPERATOR, f"app.kubernetes.io/instance={RELEASE}")


def _logs(kube: Kube, namespace: str, selector: str) -> str:
    """Returns the logs of all selected pods that have any. Raises AssertionError if none has."""
    found = []
    for pod in kube.list("v1", "Pod", namespace, labelSelector=selector):
        for previous in (False, True):
            try:
                found.append(log(kube, namespace, pod["metadata"]["name"], previous=previous))
            except ApiError as error:
                if error.status not in (400, 404):  # 400: not started, or no previous container; 404: pod deleted
                    raise
    assert found, f"no logs of {selector} in namespace {namespace}"
    return "".join(found)
