"""Scheduled: the pods were created and have nodes. ScalingReady covers replicas that scaling adds."""

import re
from collections.abc import Iterator

from unmask_operator.objects import Obj, condition, seconds, section
from unmask_operator.status.condition import Condition, false, true
from unmask_operator.status.pods import pod_status
from unmask_operator.status.pods.event_messages import ONE_AT_A_TIME
from unmask_operator.status.scheduling import gpus
from unmask_operator.status.scheduling.scheduler_message import explain, has_fix, parse_reasons
from unmask_operator.status.status_input import StatusInput

UNSEEN_SECONDS = 30.0  # a scheduler handles a pod within seconds
DEFAULT_SCHEDULER = "default-scheduler"
QUEUED = "WaitingForQueue"  # a condition's reason
_KUEUE = "kueue.x-k8s.io/"


def evaluate(inputs: StatusInput) -> Condition | None:
    if inputs.desired_zero or inputs.never_created:
        return None
    if found := obstacle(inputs):
        return true("Scheduled", "the pods that serve have nodes") if inputs.scaling_up else found
    if any(pod_status.is_scheduled(pod) for pod in inputs.pods):
        return true("Scheduled")
    if inputs.trouble and not inputs.pods:
        return inputs.trouble  # the pods had nodes and have failed
    deleted = next(filter(None, map(pod_status.deleted_from_lost_node, inputs.observed.pods)), None)
    return false("Pending", f"no pod has a node yet{f'; {deleted}' if deleted else ''}")


def obstacle(inputs: StatusInput) -> Condition | None:
    """Returns why pods are not created or not scheduled, or None."""
    failure = condition(inputs.deployment, "ReplicaFailure")
    if failure.get("status") == "True":
        return false("PodCreationRefused", str(failure.get("message") or failure.get("reason")))
    progressing = condition(inputs.deployment, "Progressing")
    if progressing.get("status") == "False" and progressing.get("reason") == "ReplicaSetCreateError":
        return false("PodCreationRefused", str(progressing.get("message") or progressing["reason"]))
    if inputs.paused and not inputs.pods and not inputs.rolled_out:
        return false("DeploymentPaused", f"no pod is created: {inputs.paused}")
    for pod in inputs.pods:
        if unseen := _unseen(inputs, pod):
            return unseen
        sentence = pod_status.unschedulable(pod)
        if sentence is None:
            continue
        found = (
            _queued(pod)
            or claim_trouble(pod, sentence)
            or gpus.shortage(inputs, pod, sentence)
            or _unschedulable(inputs, pod, sentence)
        )
        if name := inputs.observed.preempted:
            return false(found.reason, f"pod {name} was preempted by a pod of higher priority; {found.message}")
        return found
    return None


def _unseen(inputs: StatusInput, pod: Obj) -> Condition | None:
    """Returns the condition for a pod that no scheduler has handled for `UNSEEN_SECONDS`, or None."""
    age = seconds(pod["metadata"]["creationTimestamp"], inputs.observed.now)
    if not pod_status.is_unseen(pod) or age < UNSEEN_SECONDS:
        return None
    scheduler = section(pod, "spec").get("schedulerName") or DEFAULT_SCHEDULER
    field = "" if scheduler == DEFAULT_SCHEDULER else ", or correct spec.podTemplate.spec.schedulerName"
    return false("NoScheduler", pod=pod_status.name(pod), scheduler=scheduler, field=field)


def _queued(pod: Obj) -> Condition | None:
    """Returns the condition for a pod that Kueue holds back with a scheduling gate, or None."""
    gates = section(pod, "spec").get("schedulingGates") or ()
    if not any(str(gate.get("name")).startswith(_KUEUE) for gate in gates):
        return None
    queue = section(pod["metadata"], "labels").get(f"{_KUEUE}queue-name")
    return false(QUEUED, pod=pod_status.name(pod), queue=f", which waits in queue {queue}" if queue else "")


def _unschedulable(inputs: StatusInput, pod: Obj, sentence: str) -> Condition:
    """Returns the scheduler's reasons, each with the fix, then its message."""
    reasons = parse_reasons(sentence)
    reasons = [reason for reason in reasons if not reason.is_control_plane] or reasons
    if not any(map(has_fix, reasons)):
        return false("Unschedulable", sentence)
    excluded = gpus.relevant_excluded_nodes(inputs, pod)
    explained = explain(reasons, has_gpu="gpu" in inputs.spec, excluded=excluded)
    contended = any(reason.resource for reason in reasons)
    hint = f"; the old pods still serve: {gpus.REPLACE_HINT}" if contended and gpus.is_rolling(inputs) else ""
    return false("Unschedulable", f"{explained}{hint} ({sentence})")


def claim_trouble(pod: Obj, sentence: str) -> Condition | None:
    """Returns the condition for a message about a PersistentVolumeClaim, with the fix; None for other messages."""
    if missing := re.search(r'persistentvolumeclaim "([^"]+)" not found', sentence):
        return false("PersistentVolumeClaimNotFound", name=missing[1])
    if missing := re.search(
        r'resourceclaim(template)? "([^"]+)" not found|could not find ResourceClaim "([^"]+)"', sentence
    ):
        kind, name = ("ResourceClaimTemplate" if missing[1] else "ResourceClaim"), missing[2] or missing[3]
        return false("ResourceClaimNotFound", kind=kind, name=name)
    if "unbound immediate PersistentVolumeClaims" in sentence:
        return false("PersistentVolumeClaimUnbound", names=", ".join(_claims(pod)))
    if "ReadWriteOncePod access mode" in sentence:
        return false("PersistentVolumeClaimInUse", f"{ONE_AT_A_TIME} ({sentence})")
    return None


def _claims(pod: Obj) -> Iterator[str]:
    """Yields the names of the pod's claims, including those that Kubernetes creates for ephemeral volumes."""
    for volume in section(pod, "spec").get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"]
        elif "ephemeral" in volume:
            yield f"{pod_status.name(pod)}-{volume['name']}"
