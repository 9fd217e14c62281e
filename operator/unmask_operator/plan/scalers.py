"""Finds who writes `spec.replicas` beside the autoscaler, by the managedFields of the resource.

Scalers write through the scale subresource. A manifest writes the resource itself: it sets a number, or it has lost the
field, and the API server sets the default of the schema.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from unmask_operator.objects import FIELD_MANAGER, Obj, number, section
from unmask_operator.plan.observed import Observed
from unmask_operator.render.revision import Revision

DEFAULT = 1  # of spec.replicas in the schema
HPA_MANAGER = "kube-controller-manager"
KEDA_MANAGER = "keda"  # the first part of its user agent; a build of another name starts with it
WINDOW = timedelta(hours=1)


def kept_replicas(observed: Observed) -> int | None:
    """Returns the replicas of a Deployment that autoscaling keeps although `spec.replicas` fell to the default.

    A manifest that gets `autoscaling` leaves out `replicas`. Without the field in any manifest, the resource has the
    default, and pods that serve would end. None: there is nothing to keep.
    """
    spec, live = observed.resource.get("spec") or {}, observed.deployment
    scaling = spec.get("autoscaling")
    if not isinstance(scaling, dict) or spec.get("replicas") != DEFAULT or spec.get("suspend") is True:
        return None
    low, high = (number(scaling, member, DEFAULT) for member in ("minReplicas", "maxReplicas"))
    kept = min(number(live.get("spec"), "replicas", DEFAULT), high)
    return kept if kept > max(DEFAULT, low) and _is_lost(observed, scaling) else None


def _is_lost(observed: Observed, scaling: Obj) -> bool:
    """Returns whether no scaler wrote the default of `spec.replicas`."""
    resource = observed.resource
    newest = next(iter(observed.template_revisions), None)
    if isinstance(newest, Revision) and newest.spec is not None and not newest.spec.get("autoscaling"):
        return True  # autoscaling is new
    if writers := list(owners(resource)):
        return not any(owner.get("subresource") == "scale" for owner in writers)
    if scaling.get("provider", "Builtin") != "Builtin":
        return False  # the API server does not record writes of the scale if nobody owned the field before
    last = number(section(resource, "status", "autoscaling"), "desired", DEFAULT)
    return (observed.decision.desired if observed.decision else last) > DEFAULT


def other_scaler(observed: Observed) -> str:
    """Returns the field manager of a scaler, other than the one of `spec.autoscaling`, that wrote within `WINDOW`.

    "": none. `kubectl scale` is a person's. A write before the last edit may be that of the previous provider.
    """
    resource, now = observed.resource, observed.now
    edits = [o["metadata"] for ref, o in observed.children.items() if ref.kind == "ControllerRevision"]
    edited = max((str(meta.get("creationTimestamp") or "") for meta in edits), default="")
    provider = section(resource, "spec", "autoscaling").get("provider", "Builtin")
    own = (FIELD_MANAGER, HPA_MANAGER) if provider in ("HPA", "KEDA") else (FIELD_MANAGER,)
    for owner in owners(resource):
        manager, at = str(owner.get("manager") or ""), str(owner.get("time") or now.isoformat())
        is_person = manager == "kubectl" or manager.startswith("kubectl-")
        is_own = manager in own or (provider == "KEDA" and manager.startswith(KEDA_MANAGER))
        wrote = datetime.fromisoformat(at)
        recent = now - wrote < WINDOW and not (edited and wrote < datetime.fromisoformat(edited))
        if owner.get("subresource") == "scale" and not is_own and not is_person and recent:
            return manager
    return ""


def owners(resource: Obj) -> Iterator[Obj]:
    """Yields the entries of managedFields that own `spec.replicas`. The others in the cache are those of statuses."""
    for entry in resource["metadata"].get("managedFields") or ():
        if entry.get("subresource") != "status":
            yield entry
