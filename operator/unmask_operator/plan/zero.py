"""Plans the EndpointSlices of a resource that scales to zero: when its Service leads to the activator."""

from unmask_operator.api import DiffusionLMService
from unmask_operator.objects import Obj, condition, controller_uid
from unmask_operator.plan.observed import Observed
from unmask_operator.render.activator import slices


def children(resource: DiffusionLMService, observed: Observed) -> list[Obj]:
    """Returns the EndpointSlices from shortly before the resource has 0 replicas until a pod is Ready again.

    While both exist, the activator forwards requests to the pods.
    """
    scaling, activator = resource.spec.autoscaling, observed.activator
    if scaling is None or scaling.zero is None or resource.spec.suspend or activator is None:
        return []
    decided = observed.decision is not None and observed.decision.idle
    wakes = leads_to_activator(observed) and not any(map(_is_ready, observed.pods))
    if resource.spec.replicas and not decided and not wakes:
        return []
    return slices(resource, activator.port, activator.addresses)


def leads_to_activator(observed: Observed) -> bool:
    """Returns whether an EndpointSlice with the activator's addresses exists."""
    uid = observed.resource["metadata"]["uid"]
    return any(ref.kind == "EndpointSlice" and controller_uid(o) == uid for ref, o in observed.children.items())


def _is_ready(pod: Obj) -> bool:
    return condition(pod, "Ready").get("status") == "True" and not pod["metadata"].get("deletionTimestamp")
