"""Renders claims of Dynamic Resource Allocation for the GPUs of pods."""

from unmask_operator.api import DiffusionLMService
from unmask_operator.kinds import CLAIM_TEMPLATES
from unmask_operator.objects import Obj, digest
from unmask_operator.render.labels import child

_CLAIM = "gpu"  # name of the claim of gpu.deviceClassName in the pod, and of its request


def pod_claims(resource: DiffusionLMService) -> list[Obj]:
    """Returns `resourceClaims` of the pods; empty without claims."""
    gpu = resource.spec.gpu
    if gpu and gpu.resource_claims:
        return [claim.model_dump(by_alias=True, exclude_none=True) for claim in gpu.resource_claims]
    if (spec := _claim_spec(resource)) is None:
        return []
    return [{"name": _CLAIM, "resourceClaimTemplateName": _template_name(resource, spec)}]


def claim_template(resource: DiffusionLMService) -> Obj | None:
    """Renders the ResourceClaimTemplate of gpu.deviceClassName; None without the field.

    Its spec is immutable, and pods of an older revision still refer to theirs, so a change renders another object.
    """
    if (spec := _claim_spec(resource)) is None:
        return None
    return child(resource, CLAIM_TEMPLATES, _template_name(resource, spec), spec={"spec": spec})


def templates_of(template: Obj) -> set[str]:
    """Returns the names of the ResourceClaimTemplates that a pod template refers to."""
    claims = template["spec"].get("resourceClaims") or ()
    return {str(name) for claim in claims if (name := claim.get("resourceClaimTemplateName"))}


def _claim_spec(resource: DiffusionLMService) -> Obj | None:
    gpu = resource.spec.gpu
    if gpu is None or gpu.device_class_name is None:
        return None
    count = {"allocationMode": "ExactCount", "count": resource.spec.gpus_per_pod}
    exactly = {"deviceClassName": gpu.device_class_name, **count}
    return {"devices": {"requests": [{"name": _CLAIM, "exactly": exactly}]}}


def _template_name(resource: DiffusionLMService, spec: Obj) -> str:
    return f"{resource.name}-gpu-{digest(spec)[:8]}"
