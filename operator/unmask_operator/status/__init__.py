"""Computes the status of a resource: a pure function of the observed state and the plan."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from unmask_operator.kinds import CONFIG_MAPS, SERVICES
from unmask_operator.objects import ROLE_LABEL, SERVICE_LABEL, Obj, Ref, number, section
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan
from unmask_operator.render.labels import model_config, url
from unmask_operator.render.model import key_of, recorded
from unmask_operator.status import admission
from unmask_operator.status.condition import Condition, false
from unmask_operator.status.conditions import (
    adapters_loaded,
    basic,
    kstatus,
    model_cached,
    rollout_complete,
    route_ready,
    scaling_ready,
    scheduled,
    settings_consistent,
)
from unmask_operator.status.limits import conform
from unmask_operator.status.pods import pod_status
from unmask_operator.status.status_input import StatusInput

CONDITIONS = {
    "Accepted": basic.accepted,
    model_cached.TYPE: model_cached.evaluate,
    "Scheduled": scheduled.evaluate,
    "ModelLoaded": basic.model_loaded,
    "RolloutComplete": rollout_complete.evaluate,
    "AdaptersLoaded": adapters_loaded.evaluate,
    scaling_ready.TYPE: scaling_ready.evaluate,
    route_ready.TYPE: route_ready.evaluate,
    "UpToDate": basic.up_to_date,
    "Protected": basic.protected,
    settings_consistent.TYPE: settings_consistent.evaluate,
    "Available": basic.available,
}


def status(observed: Observed, plan: Plan) -> Obj:
    """Returns the new status. Equal inputs give an equal status, so that a reconcile without changes writes nothing.

    Members that do not apply are left out. The new status replaces the old one and is not merged with it.
    """
    inputs = StatusInput.gather(observed, plan)
    metadata = observed.resource["metadata"]
    port = number(section(inputs.spec, "service"), "port", 80)
    address = url(f"{metadata['name']}.{metadata['namespace']}.svc", port)
    if "service" in plan.unread:  # the Service is not changed
        address = section(observed.resource, "status").get("url", address)
    new: dict[str, Any] = {
        "observedGeneration": metadata["generation"],
        "conditions": _conditions(inputs),
        "replicas": number(inputs.status, "replicas"),
        "readyReplicas": inputs.ready_pods,  # the same count as in the conditions
        "updatedReplicas": number(inputs.status, "updatedReplicas"),
        "selector": f"{SERVICE_LABEL}={metadata['name']}{f',{ROLE_LABEL}=leader' if inputs.nodes > 1 else ''}",
        "url": address,
        "addresses": [*_external(inputs), {"name": "internal", "url": address}],
        "modelName": str(section(inputs.spec, "model").get("name") or metadata["name"]),
        "model": _model(inputs),
        "modelCache": model_cached.entry(inputs),
        "resolvedImage": _image(inputs),
        "currentRevision": _revision(inputs),
        "modelLoad": _model_load(inputs),
        "adapters": adapters_loaded.entries(inputs) or None,
        **_autoscaling(inputs),
    }
    return conform({member: value for member, value in new.items() if value is not None})


def _conditions(inputs: StatusInput) -> list[Obj]:
    found_conditions: dict[str, Condition] = {}
    for kind, evaluate in CONDITIONS.items():
        found = evaluate(inputs)
        if problems := inputs.problems(kind):
            found = false(problems[0].reason, "; ".join(dict.fromkeys(problem.message for problem in problems)))
        if found:
            found_conditions[kind] = found
    found_conditions["Ready"] = basic.ready(inputs, found_conditions)
    if found := kstatus.stalled(inputs, found_conditions["Accepted"], found_conditions["Ready"]):
        found_conditions[kstatus.TYPE] = found
    resource = inputs.observed.resource
    old = {c["type"]: c for c in section(resource, "status").get("conditions") or ()}
    return [
        {
            "type": kind,
            "status": condition.status,
            "observedGeneration": resource["metadata"]["generation"],
            "lastTransitionTime": _since(old.get(kind), condition, inputs.observed.now),
            "reason": condition.reason,
            "message": condition.message,
        }
        for kind, condition in found_conditions.items()
    ]


def _since(old: Mapping[str, Any] | None, condition: Condition, now: datetime) -> str:
    """Returns the time of the last change of the condition's status. A new reason is no change."""
    return str(old["lastTransitionTime"]) if old and old["status"] == condition.status else _stamp(now)


def _stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _template(inputs: StatusInput) -> Obj:
    """Returns the pod template of the planned Deployment, else of the live one, else {}."""
    return admission.planned_template(inputs.plan) or section(inputs.deployment, "spec", "template")


def _external(inputs: StatusInput) -> list[Obj]:
    """Returns the addresses that the live Service has from its load balancer."""
    live = inputs.observed.own(SERVICES, inputs.observed.name)
    spec = section(live, "spec")
    if spec.get("type") != "LoadBalancer":
        return []
    port = number(next(iter(spec.get("ports") or ()), {}), "port", 80)
    ingress = section(live, "status", "loadBalancer").get("ingress") or ()
    hosts = (one.get("hostname") or one.get("ip") for one in ingress)
    return [{"name": "external", "url": url(str(host), port)} for host in hosts if host]


def _model(inputs: StatusInput) -> Obj | None:
    ref = CONFIG_MAPS.ref(model_config(inputs.observed.name))
    commits = next((recorded(child) for child in inputs.plan.children if Ref.of(child) == ref), {})
    if inputs.plan.fetch:
        return {"revision": inputs.plan.fetch.commit} if inputs.plan.fetch.commit else None
    template = _template(inputs)
    key = key_of(template) if template else None
    return {"revision": commits[key]} if key and key in commits else None


def _image(inputs: StatusInput) -> str | None:
    """Returns the engine's image as pods run it. Admission may have changed the planned one."""
    planned, live = _template(inputs), section(inputs.deployment, "spec", "template")
    template = live if live and admission.is_of(live, planned) else planned
    return admission.running_image(inputs.pods, template)


def _revision(inputs: StatusInput) -> str | None:
    """Returns the newest revision once it is rolled out, else the previous current revision."""
    if inputs.deployment and not inputs.desired_zero and inputs.rolled_out and not inputs.problems("Accepted"):
        return inputs.revision
    return section(inputs.observed.resource, "status").get("currentRevision")


def _model_load(inputs: StatusInput) -> Obj | None:
    if inputs.trouble:
        return None  # the last report of a failed pod is no progress
    if load := inputs.slowest_load:
        return {"phase": load.phase, "percent": round(load.percent)}
    if inputs.engines and all(pod_status.is_started(pod) for pod in inputs.engines):
        return {"phase": "loaded", "percent": 100}
    return None


def _autoscaling(inputs: StatusInput) -> Obj:
    """Returns the builtin autoscaler's decision, or the old status while a new leader has none."""
    scaling = section(inputs.spec, "autoscaling")
    if not scaling or scaling.get("provider", "Builtin") != "Builtin":
        return {}
    old = section(inputs.observed.resource, "status")
    status: Obj = {member: old[member] for member in ("lastScaleTime", "autoscaling") if member in old}
    if inputs.suspended:
        status.pop("autoscaling", None)
    decision, activator = inputs.observed.decision, inputs.observed.activator
    port = {"activatorPort": activator.port} if activator else {}
    if decision is None:
        if port and not inputs.suspended:
            status["autoscaling"] = {**status.get("autoscaling", {}), **port}
        return status
    if decision.last_scale_time:
        status["lastScaleTime"] = _stamp(decision.last_scale_time)
    asleep = {"asleep": True} if inputs.asleep else {}
    return {**status, "autoscaling": {"desired": decision.desired, "reason": decision.reason, **asleep, **port}}
