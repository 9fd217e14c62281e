"""Plans the objects of `spec.autoscaling` that depend on the observed state.

These are KEDA's ScaledObject, and the EndpointSlices by which the Service of an idle resource leads to the activator.
"""

import math

from unmask_operator.api import DiffusionLMService
from unmask_operator.kinds import AUTOSCALERS, SCALED_OBJECTS
from unmask_operator.objects import Obj, Ref, controller_uid, is_ready, number, serves
from unmask_operator.plan.observed import Observed
from unmask_operator.render.autoscaling import activator_slices, scaled_object
from unmask_operator.render.labels import engine_name

SCALE_DOWN_SECONDS = 300  # default of Kubernetes
LONGEST_SECONDS = 3600  # that the API allows
LOAD_TIME_FACTOR = 2  # as the Builtin autoscaler


def children(resource: DiffusionLMService, observed: Observed) -> list[Obj]:
    """Returns the ScaledObject of provider KEDA, or the EndpointSlices of the activator, or nothing.

    The EndpointSlices exist from shortly before the resource has 0 replicas until a pod is Ready again. While there are
    pods too, the activator forwards requests to them.
    """
    if made := scaled_object(resource, scale_down_seconds(observed)):
        return [made]
    scaling, activator = resource.spec.autoscaling, observed.activator
    if scaling is None or scaling.zero is None or resource.spec.suspend or activator is None:
        return []
    decided = observed.decision is not None and observed.decision.idle
    staying = (pod for pod in observed.pods if serves(pod) and not pod["metadata"].get("deletionTimestamp"))
    wakes = leads_to_activator(observed) and not any(map(is_ready, staying))
    if resource.spec.replicas and not decided and not wakes:
        return []
    return activator_slices(resource, activator.port, activator.addresses)


def waits_for_deletion(child: Obj, observed: Observed) -> bool:
    """Returns whether the scaler of the previous provider must be gone before `child` is sent.

    KEDA's webhook refuses a ScaledObject while a HorizontalPodAutoscaler has the same target, even in a dry run. In the
    other direction two HorizontalPodAutoscalers would scale the resource.
    """
    name = engine_name(observed.name)
    if Ref.of(child) in observed.children:
        return False
    match child["kind"]:
        case "ScaledObject":
            return bool(observed.own(AUTOSCALERS, name))
        case "HorizontalPodAutoscaler":
            return bool(observed.own(SCALED_OBJECTS, name)) or AUTOSCALERS.ref(f"keda-hpa-{name}") in observed.children
    return False


def scale_down_seconds(observed: Observed) -> int:
    """Returns the default stabilization window: at least twice the load time that Ready pods have shown.

    Without a Ready pod it is that of the live ScaledObject.
    """
    if not observed.longest_load:
        live = observed.own(SCALED_OBJECTS, engine_name(observed.name))
        return number(live.get("spec"), "cooldownPeriod", SCALE_DOWN_SECONDS)
    minutes = math.ceil(LOAD_TIME_FACTOR * observed.longest_load / 60)  # whole ones, so that it changes seldom
    return min(max(60 * minutes, SCALE_DOWN_SECONDS), LONGEST_SECONDS)


def leads_to_activator(observed: Observed) -> bool:
    """Returns whether an EndpointSlice with the activator's addresses exists."""
    uid = observed.resource["metadata"]["uid"]
    return any(ref.kind == "EndpointSlice" and controller_uid(o) == uid for ref, o in observed.children.items())
