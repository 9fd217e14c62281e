"""Reports changes that other clients and admission make to children: fields in conflict, and containers of pods."""

from collections import defaultdict

from unmask_operator.objects import Obj, Ref, section
from unmask_operator.plan.observed import FieldConflict, Observed
from unmask_operator.plan.plan import Plan, Problem
from unmask_operator.render.groups import WORKLOADS, pod_template
from unmask_operator.render.labels import MAIN, all_containers, template_digest
from unmask_operator.status.condition import few
from unmask_operator.status.messages import MESSAGES

FIELD_CONFLICT = "FieldConflict"  # a condition's reason


def conflicts(observed: Observed) -> list[Problem]:
    """Returns one problem per child and field manager. They belong to UpToDate: live objects differ from the plan."""
    grouped: dict[tuple[Ref, bool, str, bool], list[str]] = defaultdict(list)
    for one in observed.conflicts:
        grouped[one.ref, bool(one.field), one.manager, one.by_admission].append(one.field)
    return [
        Problem("UpToDate", FIELD_CONFLICT, _sentence(FieldConflict(ref, few(fields), manager, by_admission)))
        for (ref, _, manager, by_admission), fields in sorted(grouped.items())
    ]


def _sentence(conflict: FieldConflict) -> str:
    child = f"{conflict.ref.kind} {conflict.ref.name}"
    if not conflict.field:
        return MESSAGES["FieldConflict, deleted"].format(child=child)
    if conflict.by_admission:
        return MESSAGES["FieldConflict, by admission"].format(child=child, fields=conflict.field)
    scaled = conflict.ref.kind in WORKLOADS and conflict.field == "spec.replicas"
    unnamed = "a client without a field manager, or another operator,"
    client = f"field manager {conflict.manager}" if conflict.manager else unnamed
    row = "FieldConflict, replicas" if scaled else "FieldConflict"
    return MESSAGES[row].format(child=child, client=client, fields=conflict.field)


def pods_sentence(pods: tuple[Obj, ...], deployment: Obj, plan: Plan) -> str:
    """Returns the message of UpToDate: the pods match the template, or which containers and images differ.

    Admission may change pods and the Deployment's template. Other clients may add containers to the template.
    """
    live = section(deployment, "spec", "template")
    changes = pod_changes((live, *pods), planned_template(plan) or live)
    more = f", except for changes by admission or another client: {few(changes, '; ')}" if changes else ""
    return f"the pods match the template that this operator renders{more}"


def planned_template(plan: Plan) -> Obj:
    """Returns the pod template of the planned workload, or {}."""
    return next((pod_template(child) for child in plan.children if child["kind"] in WORKLOADS), {})


def pod_changes(pods: tuple[Obj, ...], template: Obj) -> list[str]:
    """Returns the differences between the containers of pods and the template of these pods, one phrase each.

    Pods of another template are skipped.
    """
    planned = _containers(template)
    found = []
    for live in (_containers(pod) for pod in pods if is_of(pod, template)):
        for name, image in live.items():
            if name not in planned:
                found.append(f"container {name} ({image}) was added")
            elif image != planned[name]:
                found.append(f"container {name} has the image {image} instead of {planned[name]}")
        found += [f"container {name} was removed" for name in sorted(planned.keys() - live.keys())]
    return list(dict.fromkeys(found))


def running_image(pods: tuple[Obj, ...], template: Obj) -> str | None:
    """Returns the engine's image in the first, newest pod of this template, else the image in the template."""
    running = next((pod for pod in pods if is_of(pod, template)), template)
    return _containers(running).get(MAIN)


def is_of(pod: Obj, template: Obj) -> bool:
    """Returns whether a pod is made from a template: both have the same digest as a label."""
    return template_digest(pod) == template_digest(template)


def _containers(pod: Obj) -> dict[str, str]:
    """Returns the images by container name, including init containers."""
    return {str(c["name"]): str(c.get("image") or "") for c in all_containers(section(pod, "spec"))}
