"""The whole status of a resource: a pure function of what is known and what is planned."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from unmask_operator.objects import SERVICE_LABEL, Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan
from unmask_operator.render.labels import model_config, url
from unmask_operator.render.model_revision import key_of, recorded
from unmask_operator.status import admission
from unmask_operator.status.condition import Verdict, no
from unmask_operator.status.conditions import (
    adapters_loaded,
    basic,
    kstatus,
    rollout_complete,
    scaling_ready,
    scheduled,
    settings_consistent,
)
from unmask_operator.status.limits import conform
from unmask_operator.status.pods import pod_status
from unmask_operator.status.status_input import Facts, number, section

CONDITIONS = {
    "Accepted": basic.accepted,
    "Scheduled": scheduled.verdict,
    "ModelLoaded": basic.model_loaded,
    "RolloutComplete": rollout_complete.verdict,
    "AdaptersLoaded": adapters_loaded.verdict,
    scaling_ready.TYPE: scaling_ready.verdict,
    "UpToDate": basic.up_to_date,
    "Protected": basic.protected,
    settings_consistent.TYPE: settings_consistent.verdict,
    "Available": basic.available,
}


def status(observed: Observed, plan: Plan) -> Obj:
    """The new status. Equal inputs give an equal status: a reconcile that finds no news has nothing to write.

    Members that do not apply are left out, so the old status must be replaced and not merged.
    """
    facts = Facts.gather(observed, plan)
    metadata = observed.service["metadata"]
    port = number(section(facts.spec, "service"), "port", 80)
    address = url(metadata["name"], metadata["namespace"], port)
    if "service" in plan.unread:  # and the Service stays as it is
        address = section(observed.service, "status").get("url", address)
    new: dict[str, Any] = {
        "observedGeneration": metadata["generation"],
        "conditions": _conditions(facts),
        "replicas": number(facts.status, "replicas"),
        "readyReplicas": facts.ready_pods,  # the conditions count these too
        "updatedReplicas": number(facts.status, "updatedReplicas"),
        "selector": f"{SERVICE_LABEL}={metadata['name']}",
        "url": address,
        "modelName": _model_name(facts, metadata["name"]),
        "model": _model(facts),
        "resolvedImage": _image(facts),
        "currentRevision": _revision(facts),
        "modelLoad": _model_load(facts),
        "adapters": adapters_loaded.entries(facts) or None,
        **_autoscaling(facts),
    }
    return conform({member: value for member, value in new.items() if value is not None})


def _conditions(facts: Facts) -> list[Obj]:
    verdicts: dict[str, Verdict] = {}
    for kind, judge in CONDITIONS.items():
        found = judge(facts)
        if problems := facts.problems(kind):
            found = no(problems[0].reason, "; ".join(dict.fromkeys(problem.message for problem in problems)))
        if found:
            verdicts[kind] = found
    verdicts["Ready"] = basic.ready(verdicts, facts.suspended)
    if found := kstatus.stalled(facts, verdicts["Accepted"], verdicts["Ready"]):
        verdicts[kstatus.TYPE] = found
    service = facts.observed.service
    old = {c["type"]: c for c in section(service, "status").get("conditions") or ()}
    return [
        {
            "type": kind,
            "status": verdict.status,
            "observedGeneration": service["metadata"]["generation"],
            "lastTransitionTime": _since(old.get(kind), verdict, facts.observed.now),
            "reason": verdict.reason,
            "message": verdict.message,
        }
        for kind, verdict in verdicts.items()
    ]


def _since(old: Mapping[str, Any] | None, verdict: Verdict, now: datetime) -> str:
    """When the condition's status last changed; a new reason does not count."""
    return str(old["lastTransitionTime"]) if old and old["status"] == verdict.status else _stamp(now)


def _stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _model_name(facts: Facts, default: str) -> str:
    name = section(facts.spec, "model").get("name")
    return name if isinstance(name, str) and name else default


def _template(facts: Facts) -> Obj:
    """Of the Deployment as planned, or as it is where nothing is planned; {} without one."""
    return admission.planned_template(facts.plan) or section(section(facts.deployment, "spec"), "template")


def _model(facts: Facts) -> Obj | None:
    ref = Ref("v1", "ConfigMap", model_config(facts.observed.service["metadata"]["name"]))
    commits = next((recorded(child) for child in facts.plan.children if Ref.of(child) == ref), {})
    template = _template(facts)
    key = key_of(template) if template else None
    return {"revision": commits[key]} if key and key in commits else None


def _image(facts: Facts) -> str | None:
    """The engine's image as pods run it. Admission may have changed the planned one, in the Deployment or in pods."""
    planned = _template(facts)
    live = section(section(facts.deployment, "spec"), "template")
    template = live if live and admission.is_of(live, planned) else planned
    return admission.running_image(facts.pods, template)


def _revision(facts: Facts) -> str | None:
    """The newest one once it is rolled out; until then, and while a write of it is refused, the one before."""
    if facts.deployment and not facts.idle and facts.rolled_out and not facts.problems("Accepted"):
        return facts.revision
    return section(facts.observed.service, "status").get("currentRevision")


def _model_load(facts: Facts) -> Obj | None:
    if facts.trouble:
        return None  # what a pod said before it came to an end is no progress
    if load := facts.slowest_load:
        return {"phase": load.phase, "percent": round(load.percent)}
    if facts.pods and all(pod_status.is_started(pod) for pod in facts.pods):
        return {"phase": "loaded", "percent": 100}
    return None


def _autoscaling(facts: Facts) -> Obj:
    """The builtin autoscaler's word; a new leader, whose autoscaler has not looked yet, keeps what was said last."""
    scaling = section(facts.spec, "autoscaling")
    if not scaling or scaling.get("provider", "Builtin") != "Builtin":
        return {}
    old = section(facts.observed.service, "status")
    kept: Obj = {member: old[member] for member in ("lastScaleTime", "autoscaling") if member in old}
    if facts.suspended:
        kept.pop("autoscaling", None)
    decision = facts.observed.decision
    if decision is None:
        return kept
    if decision.last_scale_time:
        kept["lastScaleTime"] = _stamp(decision.last_scale_time)
    return {**kept, "autoscaling": {"desired": decision.desired, "reason": decision.reason}}
