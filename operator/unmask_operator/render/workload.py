"""Renders the Deployment of the engine's pods, or the LeaderWorkerSet of their groups."""

from collections.abc import Mapping
from typing import Any

from unmask_operator.api import DiffusionLMService
from unmask_operator.kinds import DEPLOYMENTS
from unmask_operator.objects import Obj, number, section
from unmask_operator.render.groups import leader_worker_set
from unmask_operator.render.labels import child, main_container, selector
from unmask_operator.render.pod import RenderedPod

_PROBE_PERIOD, _PROBE_FAILURES = 10, 3  # Kubernetes' own defaults
_PROGRESS_SLACK = 600  # seconds for scheduling and image pull, in addition to the startup budget
_LONGEST_DEADLINE = 2**31 - 1  # of the API, which means no deadline


def replicas(resource: DiffusionLMService) -> int:
    """Returns the desired number of pods: 0 while suspended, else `replicas` within the autoscaler's bounds."""
    spec = resource.spec
    if spec.suspend:
        return 0
    if spec.autoscaling:
        return max(spec.autoscaling.min_replicas, min(spec.replicas, spec.autoscaling.max_replicas))
    return spec.replicas


def workload(resource: DiffusionLMService, pod: RenderedPod) -> Obj:
    template = pod.template
    if pod.worker:
        made = leader_worker_set(resource, template, pod.worker, replicas(resource))
    else:
        made = _deployment(resource, template)
    made["metadata"]["labels"] = {**_recommended(template), **made["metadata"]["labels"]}
    return made


def _deployment(resource: DiffusionLMService, template: Obj) -> Obj:
    rollout = resource.spec.rollout_strategy
    spec = {
        "replicas": replicas(resource),
        "selector": {"matchLabels": selector(resource.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "minReadySeconds": 5,
        "progressDeadlineSeconds": progress_deadline(template),
        "revisionHistoryLimit": 3,
        "template": template,
    }
    return child(resource, DEPLOYMENTS, resource.name, spec=spec)


def _recommended(template: Obj) -> Obj:
    """Returns recommended labels that only the workload has: in the pod template they would replace running pods."""
    image = str(main_container(template["spec"]).get("image"))
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    version = {"app.kubernetes.io/version": tag} if 0 < len(tag) <= 63 and tag[-1].isalnum() else {}
    return {"app.kubernetes.io/part-of": "unmask", **version}


def progress_deadline(pod: Mapping[str, Any]) -> int:
    """Returns the seconds within which a pod, or a pod of a template, must become Ready."""
    return min(startup_budget(pod) + _PROGRESS_SLACK, _LONGEST_DEADLINE)


def startup_budget(template: Mapping[str, Any]) -> int:
    """Returns the seconds that the startup probe allows the engine's container; 0 without a probe."""
    probe = section(main_container(template["spec"]), "startupProbe")
    if not probe:
        return 0
    checks = number(probe, "failureThreshold", _PROBE_FAILURES) * number(probe, "periodSeconds", _PROBE_PERIOD)
    return number(probe, "initialDelaySeconds") + checks
