"""What is told of a namespace to people who may not read its Secrets."""

from __future__ import annotations

from e2e.cluster.install import NAMESPACE as OPERATOR
from e2e.services import LABEL, kubectl

_KINDS = "dlms,deployments,replicasets,pods,services,controllerrevisions,events"


def everything_told(namespace: str) -> str:
    """Its objects and Events, the engines' logs and the operator's."""
    told = kubectl("get", _KINDS, "--output=yaml", namespace=namespace)
    told += kubectl("logs", "--selector", LABEL, "--tail=-1", namespace=namespace)
    return told + kubectl("logs", "--selector=app.kubernetes.io/name=unmask-operator", "--tail=-1", namespace=OPERATOR)
