"""The ServiceAccount of the engine's pods: an identity for clouds and policies, without permissions or a token."""

from __future__ import annotations

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import Obj
from unmask_operator.render.names import child, engine


def serviceaccount(service: DiffusionLMService) -> Obj:
    made = child(service, "v1", "ServiceAccount", engine(service.name), automountServiceAccountToken=False)
    if service.spec.service_account.annotations:
        made["metadata"]["annotations"] = dict(service.spec.service_account.annotations)
    return made
