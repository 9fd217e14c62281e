"""Plans the children of a resource: a pure function of the observed state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from unmask_operator.api import DiffusionLMService, SpecError, parse
from unmask_operator.api.spec import CHILD_OF
from unmask_operator.kinds import CONFIG_MAPS
from unmask_operator.objects import ADOPT, RESTARTED_AT, SERVICE_LABEL, Obj, Ref, controller_uid, number, section
from unmask_operator.plan import autoscaling
from unmask_operator.plan.adoption import adopted_revision, is_orphan, owner_reference
from unmask_operator.plan.model_fetch import ModelFetch, cached_commit, model_fetch, not_smaller
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.optional_kinds import problem_of
from unmask_operator.render import render
from unmask_operator.render.adapters import follows
from unmask_operator.render.devices import templates_of
from unmask_operator.render.labels import adapters_config, model_config, revision_name
from unmask_operator.render.model import key_of, recorded
from unmask_operator.render.revision import (
    Revision,
    UnsupportedRevision,
    resolve_revision,
    revisions_to_keep,
    running_revision,
)
from unmask_operator.render.workload import replicas
from unmask_operator.settings import Settings

CONFLICT_SECONDS = 30.0  # requeue period: no watch covers objects of other owners
NODES_SECONDS = 30.0  # requeue period: nodes are listed, not watched


@dataclass(frozen=True)
class Problem:
    """A part of the spec that cannot be applied, reported as a condition.

    Attributes:
        condition: the type. With "Accepted", the children are those of the last accepted spec.
        reason: of the condition.
        message: names the field and the fix.
    """

    condition: str
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """The actions of a reconcile.

    All children are applied as a dry run before the first write, because the stored revision records that its spec was
    accepted.
    """

    children: tuple[Obj, ...] = ()  # complete objects with owner references, in creation order
    delete: tuple[Ref, ...] = ()  # children that are no longer needed
    problems: tuple[Problem, ...] = ()  # in descending order of importance
    # 0 while suspended, else clamped to the autoscaler's bounds. Applied to the Deployment even if no other field of it
    # can be planned or written.
    replicas: int = 1
    up_to_date: bool = True  # False: this operator would render another pod template than the revision's
    ignored: tuple[str, ...] = ()  # unknown fields of the spec
    # Error messages by section, for sections with an unsupported value; their children stay unchanged.
    unread: Mapping[str, str] = field(default_factory=dict)
    requeue_seconds: float | None = None  # None: no periodic reconcile needed
    fetch: ModelFetch | None = None  # the download of the model to a claim; None without spec.modelCache.pvc


def plan(observed: Observed, settings: Settings) -> Plan:
    """Plans the children of the resource; those of its last accepted spec if the current one is not accepted."""
    earlier = observed.template_revisions
    newest = earlier[0] if earlier else None
    if newest is None:
        newest = adopted_revision(observed, settings)
    held, unsupported = (
        (newest, ()) if not isinstance(newest, UnsupportedRevision) else _running_revision(observed, newest)
    )
    cached = partial(cached_commit, observed=observed, held=held, revisions=earlier)
    number = newest.number + 1 if newest else 1
    try:
        resource, wanted = resolve_revision(observed.resource, held, number, settings, cached)
    except SpecError as error:
        return last_accepted(observed, settings, Problem("Accepted", "InvalidSpec", str(error)))
    fetch = model_fetch(resource, wanted, observed, earlier, settings)
    revision = held if fetch and not fetch.commit else wanted  # until the model is in its claim, the old pods serve
    children, missing = _children(resource, observed, settings, revision)
    if blocking := [problem for problem in missing if problem.condition == "Accepted"]:
        return last_accepted(observed, settings, *blocking)
    if fetch:
        children += [_owned(child, resource) for child in fetch.children]
    if conflicts := _conflicts(children, observed, resource.uid):
        return last_accepted(observed, settings, *conflicts)
    return Plan(
        children=tuple(children),
        delete=_superfluous(children, observed, resource, [revision, *earlier] if revision else earlier, fetch),
        problems=(*(unsupported if revision is held else ()), *missing),
        replicas=replicas(resource),
        up_to_date=_up_to_date(revision, observed, settings),
        ignored=resource.ignored,
        unread={name: str(error) for name, error in resource.unread.items()},
        requeue_seconds=_requeue_seconds(observed) or (CONFLICT_SECONDS if fetch and not fetch.live_claim else None),
        fetch=fetch,
    )


def plan_of_deleted(observed: Observed, settings: Settings) -> Plan:
    """Plans a resource whose deletion waits for a finalizer: only the replicas of its Deployment.

    Suspending is the only way to free the GPUs until the holder of the finalizer has ended.
    """
    return replace(plan(observed, settings), children=(), delete=())


def last_accepted(observed: Observed, settings: Settings, *problems: Problem) -> Plan:
    """Plans a resource that is not accepted from the spec of its current revision.

    Scaling, suspension and drift repair continue. Objects of other owners are skipped, and nothing is deleted. Without
    a readable revision, only the replicas of a live Deployment are updated.
    """
    metadata, spec_data = observed.resource["metadata"], observed.resource.get("spec") or {}
    requeue = _requeue_seconds(observed, *problems)
    nothing = Plan(problems=problems, replicas=_replicas_alone(observed), requeue_seconds=requeue)
    revision = next(iter(observed.template_revisions), None)
    if not isinstance(revision, Revision):
        return nothing
    spec = dict(revision.spec or {})
    for member, kind in (("replicas", int), ("suspend", bool)):  # scaling and suspension work despite other errors
        if type(spec_data.get(member)) is kind:
            spec[member] = spec_data[member]
    try:
        resource = parse({"metadata": metadata, "spec": spec}, pods_are_pinned=True)
    except SpecError:
        return nothing
    children, _ = _children(resource, observed, settings, revision)
    foreign = {Ref.of(child) for child in children if _is_foreign(child, observed, resource.uid)}
    return Plan(
        children=tuple(child for child in children if Ref.of(child) not in foreign),
        problems=problems,
        replicas=replicas(resource),
        up_to_date=_up_to_date(revision, observed, settings),
        requeue_seconds=requeue,
    )


def _replicas_alone(observed: Observed) -> int:
    """Returns the replicas of a spec that is otherwise unusable; those of the Deployment if the spec has none."""
    live, spec_data = observed.deployment, section(observed.resource, "spec")
    if not live or spec_data.get("suspend") is True:
        return 0
    count, scaling = spec_data.get("replicas"), section(spec_data, "autoscaling")
    if type(count) is not int or count < 0:
        # At least one: a suspended service without valid replicas must start again when it is resumed.
        return number(section(live, "spec"), "replicas") or 1
    return max(min(count, number(scaling, "maxReplicas", count)), number(scaling, "minReplicas"))


def _running_revision(observed: Observed, newest: UnsupportedRevision) -> tuple[Revision | None, tuple[Problem, ...]]:
    """Returns a revision of the running pods in place of an unreadable one, and its problem; None without pods."""
    if not (live := observed.deployment):
        return None, ()
    sentence = (
        f"ControllerRevision {revision_name(observed.name, newest.number)} has format {newest.format}, which this "
        "operator does not support: edits of the spec do not change the pods; upgrade the operator, or set the "
        f"annotation {RESTARTED_AT} to a new value to recreate the pods from the spec"
    )
    return running_revision(newest.number, live["spec"]["template"], live["spec"].get("workerTemplate")), (
        Problem("UpToDate", "UnknownPin", sentence),
    )


def _requeue_seconds(observed: Observed, *problems: Problem) -> float | None:
    """Returns the requeue period for state that no watch covers; None if the plan does not depend on such state."""
    if any(problem.reason == "NameConflict" for problem in problems):
        return CONFLICT_SECONDS
    return None if observed.nodes is None else NODES_SECONDS


def _up_to_date(revision: Revision | None, observed: Observed, settings: Settings) -> bool:
    if revision is None or revision.spec is None:
        return revision is None
    return revision.rendered(observed.resource["metadata"], settings) == revision.rendered_pod


def _children(
    resource: DiffusionLMService, observed: Observed, settings: Settings, revision: Revision | None
) -> tuple[list[Obj], tuple[Problem, ...]]:
    """Returns the children to write, and a problem for each child whose kind the cluster lacks."""
    children, problems = [], []
    left = _kinds_left(resource)
    rendered = render(resource, settings, revision, _commits(observed, revision))
    for child in (*rendered, *autoscaling.children(resource, observed)):
        if child["kind"] in left or autoscaling.waits_for_deletion(child, observed):
            continue
        strategy = {"Deployment": "strategy", "LeaderWorkerSet": "rolloutStrategy"}.get(child["kind"])
        if strategy and "rolloutStrategy" in resource.unread:
            live = observed.children.get(Ref.of(child), child)["spec"]
            child["spec"] = {**child["spec"], strategy: live.get(strategy, child["spec"][strategy])}
        if child["kind"] == "PersistentVolumeClaim":
            child = not_smaller(child, observed.children.get(Ref.of(child)))
        if problem := problem_of(child, observed, settings):
            problems.append(Problem(*problem))
        else:
            children.append(_owned(child, resource))
    return children, tuple(problems)


def _kinds_left(resource: DiffusionLMService) -> set[str | None]:
    """Returns the kinds of children that stay as they are, because their section cannot be read."""
    kinds = {CHILD_OF.get(name) for name in resource.unread}
    return kinds | {"ScaledObject", "EndpointSlice"} if "autoscaling" in resource.unread else kinds


def _commits(observed: Observed, revision: Revision | None) -> dict[str, str]:
    """Returns the commits of hf:// models of all revisions by key; "" until a pod reports one."""
    known = recorded(observed.own(CONFIG_MAPS, model_config(observed.name)))
    reported: dict[str, str] = {}
    for pod in sorted(observed.pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp"))):
        if (key := key_of(pod)) and (commit := observed.revisions.get(pod["metadata"]["uid"])):
            reported.setdefault(key, commit)
    revisions = (revision, *observed.template_revisions)
    templates = [one.rendered_pod.template for one in revisions if isinstance(one, Revision)]
    return {key: known.get(key) or reported.get(key, "") for one in templates if (key := key_of(one))}


def _owned(child: Obj, resource: DiffusionLMService) -> Obj:
    """Adds the resource as the controller of `child`."""
    owners = [owner_reference(resource.name, resource.uid)]
    return {**child, "metadata": {**child["metadata"], "ownerReferences": owners}}


def _is_foreign(child: Obj, observed: Observed, uid: str) -> bool:
    live = observed.children.get(Ref.of(child))
    return live is not None and controller_uid(live) != uid


def _conflicts(children: Sequence[Obj], observed: Observed, uid: str) -> list[Problem]:
    """Returns one problem that names all children with another owner; empty if there are none."""
    foreign = [f"{c['kind']} {c['metadata']['name']}" for c in children if _is_foreign(c, observed, uid)]
    if not foreign:
        return []
    verb, them = ("exists and is", "it") if len(foreign) == 1 else ("exist and are", "them")
    fix = f"{_adoption(children, observed)}delete {them}, or rename this resource"
    sentence = f"{', '.join(foreign)} {verb} not controlled by this resource; {fix}"
    return [Problem("Accepted", "NameConflict", sentence)]


def _adoption(children: Sequence[Obj], observed: Observed) -> str:
    """Returns the part of the message about adoption; "" if no object can be adopted."""
    if observed.not_adopted:
        ref, reason = min(observed.not_adopted.items())
        hint = "; if the operator lacks the right to delete, set rbac.adoption of the chart"
        grant = hint if "forbidden" in reason else ""
        return f"the API server rejected the adoption of {ref.kind} {ref.name} ({reason}){grant}; "
    present = filter(None, (observed.children.get(Ref.of(child)) for child in children))
    if any(is_orphan(live, observed.name) for live in present):
        return f'annotate this resource with {ADOPT}: "true" to adopt its orphaned children, '
    return ""


def _superfluous(
    children: Sequence[Obj],
    observed: Observed,
    resource: DiffusionLMService,
    newest_first: Sequence[Revision | UnsupportedRevision],
    fetch: ModelFetch | None,
) -> tuple[Ref, ...]:
    """Returns the children to delete: controlled by the resource, not planned and not terminating.

    Revisions to retain, an adapter list that a pod mounts, and claims are not deleted.
    """
    planned = {Ref.of(child) for child in children} | ({*fetch.keep} - {*fetch.delete} if fetch else set())
    stay = {("ControllerRevision", revision_name(resource.name, number)) for number in revisions_to_keep(newest_first)}
    retained = [one.rendered_pod.template for one in newest_first if isinstance(one, Revision)]
    stay |= {("ResourceClaimTemplate", name) for template in retained for name in templates_of(template)}
    newest = [one.rendered_pod.template for one in newest_first[:1] if isinstance(one, Revision)]
    if any(map(follows, (*newest, *observed.pods))):  # even if the section cannot be read
        stay.add(("ConfigMap", adapters_config(resource.name)))
    left = _kinds_left(resource)

    def unwanted(ref: Ref, live: Obj) -> bool:
        metadata = live["metadata"]
        return (
            ref not in planned
            and ref.kind != "PersistentVolumeClaim"
            and ref.kind not in left
            and (ref.kind, ref.name) not in stay
            and controller_uid(live) == resource.uid
            and metadata.get("labels", {}).get(SERVICE_LABEL) == resource.name
            and "deletionTimestamp" not in metadata
        )

    return tuple(sorted(ref for ref, live in observed.children.items() if unwanted(ref, live)))
