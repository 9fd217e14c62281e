"""The input of all conditions: the observed state and the plan, prepared once per reconcile."""

from dataclasses import dataclass
from typing import Self

from unmask_operator.api.service import without_nulls
from unmask_operator.objects import Obj, condition, is_ready, number, section, serves
from unmask_operator.plan.autoscaling import leads_to_activator
from unmask_operator.plan.observed import Load, Observed
from unmask_operator.plan.plan import Plan, Problem
from unmask_operator.render.labels import revision_name
from unmask_operator.render.revision import Revision, UnsupportedRevision
from unmask_operator.status import admission
from unmask_operator.status.condition import Condition
from unmask_operator.status.groups import crashing_worker, in_group
from unmask_operator.status.pods import event_messages, pod_status


@dataclass(frozen=True)
class StatusInput:
    observed: Observed
    plan: Plan
    spec: Obj  # as last read; it may be invalid
    deployment: Obj  # the live one; {} if the resource controls none
    desired: int  # number of engine pods
    pods: tuple[Obj, ...]  # the live ones, newest first
    trouble: Condition | None  # of the newest pod with a problem, among pods of the Deployment's current template

    @classmethod
    def gather(cls, observed: Observed, plan: Plan) -> Self:
        resource, deployment = observed.resource, observed.deployment
        desired = plan.replicas if plan.children or deployment else 0
        by_name = sorted(observed.pods, key=pod_status.name)  # so that the order is stable
        newest_first = sorted(by_name, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), reverse=True)
        live = tuple(pod for pod in newest_first if pod_status.is_live(pod))
        trouble = _trouble(observed, newest_first, _current(live, deployment))
        return cls(observed, plan, without_nulls(section(resource, "spec")), deployment, desired, live, trouble)

    @property
    def suspended(self) -> bool:
        return self.spec.get("suspend") is True

    @property
    def desired_zero(self) -> bool:
        """Whether no pod is desired."""
        return self.suspended or self.desired == 0

    @property
    def asleep(self) -> bool:
        """Whether the autoscaler has scaled the resource to 0, from where requests wake it."""
        scaling = section(self.spec, "autoscaling")
        held = "zero" not in scaling or leads_to_activator(self.observed)
        idle = self.desired == 0 and scaling.get("minReplicas") == 0 and not self.suspended
        return bool(self.deployment) and idle and held

    @property
    def waking(self) -> bool:
        """Whether the activator holds requests until a pod is Ready."""
        return self.desired > 0 and not self.ready_pods and leads_to_activator(self.observed)

    @property
    def paused(self) -> str:
        """A message for a paused Deployment, with the command that resumes it; "" for others."""
        if section(self.deployment, "spec").get("paused") is not True:
            return ""
        namespace, name = self.observed.key
        fix = f"kubectl rollout resume deployment/{name} -n {namespace}"
        return f"Deployment {name} is paused (spec.paused); resume it with {fix}"

    @property
    def has_outdated_pods(self) -> bool:
        """Whether there are pods of an older template, which a rollout will replace."""
        if not self.deployment or self.rolled_out:
            return False
        if number(self.status, "replicas") > number(self.status, "updatedReplicas"):
            return True
        # The counts refer to an earlier template until the Deployment controller has observed the current one.
        template = section(self.deployment, "spec", "template")
        return not self.is_observed and any(not admission.is_of(pod, template) for pod in self.pods)

    @property
    def is_observed(self) -> bool:
        """Whether the Deployment controller has observed the current generation."""
        generation = number(section(self.deployment, "metadata"), "generation")
        return number(self.status, "observedGeneration") >= generation

    @property
    def never_created(self) -> bool:
        """Whether nothing runs because no spec was ever accepted."""
        return not self.plan.children and not self.deployment

    @property
    def ready_pods(self) -> int:
        return sum(map(is_ready, self.engines))

    @property
    def engines(self) -> tuple[Obj, ...]:
        """The live pods that serve: of a group only the leader."""
        return tuple(filter(serves, self.pods))

    @property
    def nodes(self) -> int:
        """Pods of an engine, according to a spec that may be invalid."""
        return number(section(self.spec, "parallelism"), "nodes", 1)

    @property
    def status(self) -> Obj:
        """Status of the Deployment."""
        return section(self.deployment, "status")

    @property
    def rolled_out(self) -> bool:
        """Whether all pods are of the newest revision and were Ready once. More replicas do not change that."""
        status = self.status
        updated = number(status, "updatedReplicas")
        if not self.deployment or updated != number(status, "replicas"):
            return False
        if self._was_rolled_out:
            return True  # even if the Deployment controller has not observed new replicas or a new strategy
        if not self.is_observed:
            return False
        was_complete = condition(self.deployment, "Progressing").get("reason") == "NewReplicaSetAvailable"
        return was_complete or (updated >= self.desired and number(status, "readyReplicas") >= self.desired)

    @property
    def _was_rolled_out(self) -> bool:
        """Whether the newest revision has the template of the current one, whose pods were all Ready once."""
        name = section(self.observed.resource, "status").get("currentRevision")
        revisions = self.observed.template_revisions
        current = next((revision for revision in revisions if self._name(revision) == name), None)
        if current is None:
            return False
        if isinstance(current, Revision) and isinstance(newest := revisions[0], Revision):
            return newest.rendered_pod.template == current.rendered_pod.template
        return current.number == revisions[0].number

    def _name(self, revision: Revision | UnsupportedRevision) -> str:
        return revision_name(self.observed.name, revision.number)

    @property
    def scaling_up(self) -> bool:
        """Whether pods of the newest revision serve, so that only further replicas are missing."""
        return self.rolled_out and self.ready_pods > 0

    @property
    def revision(self) -> str | None:
        """Name of the newest ControllerRevision, from which pods are made."""
        return next(map(self._name, self.observed.template_revisions), None)

    def problems(self, condition: str) -> list[Problem]:
        found = [*self.plan.problems, *admission.conflicts(self.observed)]
        return [problem for problem in found if problem.condition == condition]

    @property
    def slowest_load(self) -> Load | None:
        """The lowest progress of the pods that load their model."""
        uids = (pod["metadata"]["uid"] for pod in self.engines if not pod_status.is_started(pod))
        loads = [self.observed.loads[uid] for uid in uids if uid in self.observed.loads]
        return min(loads, key=lambda load: (load.percent, load.phase), default=None)


def _current(pods: tuple[Obj, ...], deployment: Obj) -> tuple[Obj, ...]:
    """Returns the pods of the Deployment's current template, else all pods.

    The last edit may have fixed the problem of other pods. The newest pod may be of another template: a spec that is
    set back to an earlier one reuses the pods of that template.
    """
    template = section(deployment, "spec", "template")
    return tuple(pod for pod in pods if admission.is_of(pod, template)) or pods


def _trouble(observed: Observed, newest_first: list[Obj], pods: tuple[Obj, ...]) -> Condition | None:
    """Returns the problem of the newest pod that has one, or None.

    A failed pod counts only while it is the newest, because its ReplicaSet replaces it immediately.
    """
    if newest_first and (failed := pod_status.over(newest_first[0])):
        return failed
    for pod in pods:
        events = observed.pod_events.get(pod["metadata"]["uid"], ())
        if found := event_messages.trouble(pod, events) or pod_status.trouble(pod):
            return in_group(pod, found)
        if found := crashing_worker(pod, pods, observed.now):
            return found
    return None
