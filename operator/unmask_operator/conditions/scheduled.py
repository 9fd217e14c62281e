"""Scheduled: the pods could be created and each has found a node."""

from __future__ import annotations

from unmask_operator.conditions import gpus
from unmask_operator.conditions import pods as pod_facts
from unmask_operator.conditions.facts import Facts
from unmask_operator.conditions.verdict import Verdict, no, yes

# what the scheduler's sentence speaks of -> reason
_CAUSES = {
    "persistentvolumeclaim": ("not found", "PersistentVolumeClaimNotFound"),
    "unbound immediate PersistentVolumeClaims": ("", "PersistentVolumeClaimUnbound"),
}


def verdict(facts: Facts) -> Verdict | None:
    if facts.idle or facts.absent:
        return None
    return obstacle(facts) or (
        yes("Scheduled", "every pod has a node")
        if any(pod_facts.is_scheduled(pod) for pod in facts.pods)
        else no("Pending", "no pod has a node yet")
    )


def obstacle(facts: Facts) -> Verdict | None:
    """Why pods are not created or find no node; None while nothing stands in the way."""
    failure = facts.deployment_condition("ReplicaFailure")
    if failure.get("status") == "True":
        return no("PodCreationRefused", str(failure.get("message") or failure.get("reason")))
    for pod in facts.pods:
        sentence = pod_facts.unschedulable(pod)
        if sentence is None:
            continue
        if short := gpus.shortage(facts, pod, sentence):
            return no("InsufficientGPU", short)
        for words, (more, reason) in _CAUSES.items():
            if words in sentence and more in sentence:
                return no(reason, f"{sentence.rstrip('.')} (spec.model.uri, or a volume of spec.podTemplate, names it)")
        return no("Unschedulable", sentence)
    return None
