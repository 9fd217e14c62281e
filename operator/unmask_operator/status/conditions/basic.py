"""What the conditions say, a function each; Scheduled, RolloutComplete and ScalingReady have files of their own."""

from collections.abc import Mapping

from unmask_operator.objects import RESTARTED_AT
from unmask_operator.status import admission
from unmask_operator.status.condition import Verdict, no, sentence, unknown, yes
from unmask_operator.status.conditions import rollout_complete, scheduled
from unmask_operator.status.pods import pod_status
from unmask_operator.status.status_input import Facts, number, section

# What Ready needs. AdaptersLoaded, ScalingReady, UpToDate, Protected and SettingsConsistent are left out: they name
# work to do while requests are served as the spec says, but for those of an adapter that cannot be.
NEEDED = ("Accepted", "Scheduled", "ModelLoaded", "RolloutComplete", "Available")


def accepted(facts: Facts) -> Verdict:
    """The spec can be had, and the API server took every object made of it."""
    refusals, failures = sorted(facts.observed.refusals.items()), sorted(facts.observed.failures.items())
    refused = "; ".join(f"{ref.kind} {ref.name} was refused: {reason}" for ref, reason in refusals)
    failed = "; ".join(f"{ref.kind} {ref.name}: {reason}" for ref, reason in failures)
    failed = f"the API server failed on {failed}; it is tried again" if failed else ""
    if refused:
        return no("Refused", f"{refused}; {failed}" if failed else refused)
    if failed:
        return unknown("ApiError", failed)
    valid = "the spec is valid and applied"
    if fields := ", ".join(facts.plan.ignored):
        valid += f", but for what this operator does not know and ignores: {fields}"
    if values := "; ".join(facts.plan.unread.values()):
        valid += f"; what is made of a value that it does not know stays as it is: {values}"
    return yes("Accepted", sentence(valid))


def model_loaded(facts: Facts) -> Verdict | None:
    """The engines of the newest template have their model in memory. Pods that are added by scaling may load while
    others serve; those of a rollout must be done."""
    if facts.idle or facts.absent:
        return None
    if facts.trouble:
        return facts.trouble
    started = [pod_status.is_started(pod) for pod in facts.pods]
    if any(started) and (all(started) or facts.rolled_out):
        return yes("Loaded", "the model is loaded")
    if load := facts.slowest_load:
        return no("Loading", f"the model is being loaded: {load.phase}, {load.percent:.0f} %")
    if any(pod_status.runs(pod) and not pod_status.is_started(pod) for pod in facts.pods):
        return no("Starting", "the engine's process has started and its start-up probe has not passed yet")
    initializing = next(filter(None, map(pod_status.initializing, facts.pods)), None)
    return no("Pending", f"the engine has not started yet{f': {initializing}' if initializing else ''}")


def up_to_date(facts: Facts) -> Verdict | None:
    """The pods are as this operator would make them today."""
    if facts.absent:
        return None
    rollout = None if facts.rolled_out else rollout_complete.verdict(facts)
    has_newest = number(facts.status, "updatedReplicas") > 0 and not facts.has_outdated_pods
    if rollout and facts.paused and not has_newest:
        return no("DeploymentPaused", f"the pods are not of the newest template: {facts.paused}")
    if not facts.plan.up_to_date:
        return no(
            "OperatorUpgraded",
            "this operator would make the pods otherwise and leaves them alone; the next edit that changes them, or a "
            f"new value of the annotation {RESTARTED_AT}, adopts the new form",
        )
    if rollout and facts.has_outdated_pods:
        return no(rollout.reason, f"some pods are of an older template: {rollout.message}")
    return yes("UpToDate", sentence(admission.pods_sentence(facts.pods, facts.deployment, facts.plan)))


def protected(facts: Facts) -> Verdict | None:
    """Clients of a service with an address of its own need a key. Of others the cluster's network decides."""
    if section(facts.spec, "service").get("type") != "LoadBalancer":
        return None
    if section(facts.spec, "auth"):
        return yes("KeyRequired", "clients need a key of spec.auth")
    return no(
        "NoAuth",
        "spec.service.type is LoadBalancer without spec.auth: whoever reaches the address is served; set spec.auth",
    )


def available(facts: Facts) -> Verdict:
    """At least one pod, of any revision, takes requests."""
    if facts.ready_pods:
        return yes("Serving", "at least one pod takes requests")
    if facts.suspended:
        return no("Suspended", "spec.suspend is true: no engine runs; set it to false to serve again")
    if facts.absent:
        return no("NotAccepted", "nothing runs, for the spec has not been accepted")
    if facts.desired == 0:
        return no("NoReplicas", "spec.replicas is 0: no engine is asked for")
    if found := scheduled.obstacle(facts) or facts.trouble:
        return found
    if cause := rollout_complete.unready(facts):
        return cause
    return no("NoReadyPods", "no pod is Ready")


def ready(others: Mapping[str, Verdict], suspended: bool) -> Verdict:
    """All that serving needs. It carries the reason of the first condition that does not hold."""
    if suspended and others["Accepted"].status == "True":
        return Verdict("False", "Suspended", "spec.suspend is true: no engine runs; set it to false to serve again")
    for condition in NEEDED:
        found = others.get(condition)
        if found and found.status != "True":
            return Verdict("False", found.reason, found.message)
    return yes("Ready", "the service takes requests")
