"""What others made of the objects that the operator wrote: fields in conflict, and changed containers of pods."""

from collections import defaultdict
from collections.abc import Iterator

from unmask_operator.objects import TEMPLATE_LABEL, Obj, Ref
from unmask_operator.plan.observed import FieldConflict, Observed
from unmask_operator.plan.plan import Plan, Problem
from unmask_operator.render.labels import MAIN

FIELD_CONFLICT = "FieldConflict"  # a condition's reason
NAMED = 4  # fields, or changes of pods, that a message names


def conflicts(observed: Observed) -> list[Problem]:
    """One problem per child and field manager. Their condition is UpToDate: what runs is not what was planned."""
    grouped: dict[tuple[Ref, bool, str, bool], list[str]] = defaultdict(list)
    for one in observed.conflicts:
        grouped[one.ref, bool(one.field), one.manager, one.by_admission].append(one.field)
    return [
        Problem("UpToDate", FIELD_CONFLICT, _sentence(FieldConflict(ref, _few(fields), manager, by_admission)))
        for (ref, _, manager, by_admission), fields in sorted(grouped.items())
    ]


def _sentence(conflict: FieldConflict) -> str:
    child = f"{conflict.ref.kind} {conflict.ref.name}"
    if not conflict.field:
        return (
            f"{child}: another client keeps deleting it, and it is created again each time; make that client, such as "
            "a GitOps tool that prunes, leave the children of this resource alone"
        )
    if conflict.by_admission:
        return (
            f"{child}: an admission webhook changes {conflict.field} whenever it is written, or the API server itself "
            "does; exempt the object from the webhook, or set in this resource what it writes"
        )
    other = f"field manager {conflict.manager}" if conflict.manager else "a client without a field manager"
    advice = "make it leave the object alone, or set the value in this resource"
    if conflict.ref.kind == "Deployment" and conflict.field == "spec.replicas":
        advice = (
            "delete what scales the Deployment, such as a HorizontalPodAutoscaler of it, and scale this resource "
            "(spec.autoscaling, or its scale subresource)"
        )
    return f"{child}: {other} keeps changing {conflict.field}, which is repaired at growing intervals; {advice}"


def pods_sentence(pods: tuple[Obj, ...], deployment: Obj, plan: Plan) -> str:
    """Says that the pods are as planned, or which containers and images of theirs others changed.

    Admission changes pods, or the template of the Deployment, to which other clients add containers too.
    """
    live = (deployment.get("spec") or {}).get("template") or {}
    changes = pod_changes((live, *pods), planned_template(plan) or live)
    if not changes:
        return "the pods are as this operator makes them"
    return (
        "the pods are as this operator makes them, but for what admission or another client changed: "
        f"{_few(changes, '; ')}"
    )


def planned_template(plan: Plan) -> Obj:
    """The pod template of the planned Deployment; {} if none is planned."""
    planned = next((child for child in plan.children if child["kind"] == "Deployment"), {})
    return (planned.get("spec") or {}).get("template") or {}


def pod_changes(pods: tuple[Obj, ...], template: Obj) -> list[str]:
    """What differs in the containers of pods from the template that they are made from, a phrase each."""
    planned = _containers(template)
    found: dict[str, None] = {}
    for pod in pods:
        if not is_of(pod, template):
            continue
        live = _containers(pod)
        for name, image in live.items():
            if name not in planned:
                found[f"container {name} ({image}) was added"] = None
            elif image != planned[name]:
                found[f"container {name} has the image {image} instead of {planned[name]}"] = None
        for name in sorted(planned.keys() - live.keys()):
            found[f"container {name} was removed"] = None
    return list(found)


def running_image(pods: tuple[Obj, ...], template: Obj) -> str | None:
    """The engine's image in the newest pod of this template; the template's where there is none."""
    running = next((pod for pod in pods if is_of(pod, template)), template)
    return _containers(running).get(MAIN)


def is_of(pod: Obj, template: Obj) -> bool:
    """Whether a pod is made from a template, by the digest that both have as a label."""
    return _digest(pod) == _digest(template)


def _digest(obj: Obj) -> str | None:
    label = ((obj.get("metadata") or {}).get("labels") or {}).get(TEMPLATE_LABEL)
    return str(label) if label is not None else None


def _containers(pod: Obj) -> dict[str, str]:
    """Images by the names of containers, init containers included."""
    return {str(c["name"]): str(c.get("image") or "") for c in _each(pod)}


def _each(pod: Obj) -> Iterator[Obj]:
    spec = pod.get("spec") or {}
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def _few(names: list[str], separator: str = ", ") -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return separator.join(names[:NAMED]) + more
