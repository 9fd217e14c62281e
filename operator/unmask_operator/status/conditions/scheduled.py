"""Scheduled: the pods could be created and each has found a node. Of replicas that scaling adds ScalingReady tells."""

import re

from unmask_operator.objects import Obj
from unmask_operator.status.condition import Verdict, no, yes
from unmask_operator.status.pods import pod_status
from unmask_operator.status.pods.event_messages import ONE_AT_A_TIME
from unmask_operator.status.scheduling import gpus
from unmask_operator.status.scheduling.scheduler_message import explain, has_fix, parse_reasons
from unmask_operator.status.status_input import Facts, section


def verdict(facts: Facts) -> Verdict | None:
    if facts.idle or facts.absent:
        return None
    if found := obstacle(facts):
        return yes("Scheduled", "the pods that serve have nodes") if facts.grows else found
    if any(pod_status.is_scheduled(pod) for pod in facts.pods):
        return yes("Scheduled", "every pod has a node")
    deleted = next(filter(None, map(pod_status.deleted_from_lost_node, facts.observed.pods)), None)
    return no("Pending", f"no pod has a node yet{f'; {deleted}' if deleted else ''}")


def obstacle(facts: Facts) -> Verdict | None:
    """Why pods are not created or find no node; None while nothing stands in the way."""
    failure = pod_status.condition(facts.deployment, "ReplicaFailure")
    if failure.get("status") == "True":
        return no("PodCreationRefused", str(failure.get("message") or failure.get("reason")))
    progressing = pod_status.condition(facts.deployment, "Progressing")
    if progressing.get("status") == "False" and progressing.get("reason") == "ReplicaSetCreateError":
        return no("PodCreationRefused", str(progressing.get("message") or progressing["reason"]))
    if facts.paused and not facts.pods and not facts.rolled_out:
        return no("DeploymentPaused", f"no pod is created: {facts.paused}")
    for pod in facts.pods:
        sentence = pod_status.unschedulable(pod)
        if sentence is None:
            continue
        return _claim(pod, sentence) or gpus.shortage(facts, pod, sentence) or _unschedulable(facts, pod, sentence)
    return None


def _unschedulable(facts: Facts, pod: Obj, sentence: str) -> Verdict:
    """The scheduler's reasons with the field or the command that helps, then its sentence."""
    reasons = parse_reasons(sentence)
    reasons = [reason for reason in reasons if not reason.is_control_plane] or reasons
    if not any(map(has_fix, reasons)):
        return no("Unschedulable", sentence)
    excluded = gpus.relevant_excluded_nodes(facts, pod)
    explained = explain(reasons, has_gpu=gpus.gpu_resource(facts) is not None, excluded=excluded)
    contended = any(reason.resource for reason in reasons)
    hint = f"; the old pods serve on: {gpus.REPLACE_HINT}" if contended and gpus.is_rolling(facts) else ""
    return no("Unschedulable", f"{explained}{hint} ({sentence})")


def _claim(pod: Obj, sentence: str) -> Verdict | None:
    """The scheduler's sentence about a claim, with the field or the command that helps; None for other sentences."""
    if missing := re.search(r'persistentvolumeclaim "([^"]+)" not found', sentence):
        return no(
            "PersistentVolumeClaimNotFound",
            f"PersistentVolumeClaim {missing[1]} does not exist in this namespace: create it, or correct "
            "spec.model.uri or the volume of spec.podTemplate that names it",
        )
    if "unbound immediate PersistentVolumeClaims" in sentence:
        volumes = section(pod, "spec").get("volumes") or ()
        claims = [v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v]
        return no(
            "PersistentVolumeClaimUnbound",
            f"a PersistentVolumeClaim has no volume yet: {', '.join(claims)}; kubectl describe pvc says why",
        )
    if "ReadWriteOncePod access mode" in sentence:
        return no("PersistentVolumeClaimInUse", f"{ONE_AT_A_TIME} ({sentence})")
    return None
