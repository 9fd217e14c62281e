"""What a resource's children should be: a pure function of what is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unmask_operator.api import DiffusionLMService, SpecError, parse
from unmask_operator.api.spec import CHILD_OF
from unmask_operator.objects import ADOPT, RESTARTED_AT, SERVICE_LABEL, Obj, Ref, controller_uid
from unmask_operator.plan.adoption import adopted_revision, is_orphan, owner_reference
from unmask_operator.plan.observed import Observed
from unmask_operator.render import render
from unmask_operator.render.adapters import follows
from unmask_operator.render.children import PODMONITOR
from unmask_operator.render.labels import MAIN, adapters_config, model_config, revision_name
from unmask_operator.render.model_revision import key_of, recorded
from unmask_operator.render.pod import RenderedPod
from unmask_operator.render.revision import (
    Revision,
    UnsupportedRevision,
    controlled_revisions,
    resolve_revision,
    revisions_to_keep,
)
from unmask_operator.render.workload import replicas
from unmask_operator.settings import Settings

CONFLICT_SECONDS = 30.0  # nothing tells us when an object that is not ours goes
NODES_SECONDS = 30.0  # nor when a node comes, goes or changes: how long a list of them is good
MISSING_CRD = "MissingCRD"  # a condition's reason


@dataclass(frozen=True)
class Problem:
    """Why something of the spec cannot be had: becomes a condition's reason and message."""

    condition: str  # "Accepted" (while it stands, children are those of the last good spec) or the one it falls under
    reason: str
    message: str  # a sentence that names the field and the fix


@dataclass(frozen=True)
class Plan:
    """What to do next.

    The dry runs of all children come before the first write: the pin among them says that its spec was accepted.
    """

    children: tuple[Obj, ...] = ()  # complete objects, in the order of their creation, each controlled by the resource
    delete: tuple[Ref, ...] = ()  # our own objects that nothing wants any more
    problems: tuple[Problem, ...] = ()  # what stands in the way, in the order of importance
    # Asked for now: 0 while suspended, clamped to the autoscaler's bounds. The Deployment gets these also where nothing
    # else of it can be written or planned.
    replicas: int = 1
    up_to_date: bool = True  # False when this operator would render another pod template than the pinned one
    ignored: tuple[str, ...] = ()  # fields of the spec that this operator does not know
    # Sections that are left as they are, since they hold a value that this operator does not know; a sentence on that.
    unread: Mapping[str, str] = field(default_factory=dict)
    requeue_seconds: float | None = None  # look again after so long although nothing may change (None: not needed)


def plan(observed: Observed, settings: Settings) -> Plan:
    """The children that the resource should have now, or, where it is not accepted, those of its last good spec."""
    earlier = _revisions(observed)
    newest = earlier[0] if earlier else None
    if newest is None:
        newest = adopted_revision(observed, settings)
    held, unsupported = (newest, ()) if not isinstance(newest, UnsupportedRevision) else _as_they_run(observed, newest)
    try:
        resource, revision = resolve_revision(observed.resource, held, newest.number + 1 if newest else 1, settings)
    except SpecError as error:
        return last_accepted(observed, settings, Problem("Accepted", "InvalidSpec", str(error)))
    children, missing = _children(resource, observed, settings, revision)
    if conflicts := _conflicts(children, observed, resource.uid):
        return last_accepted(observed, settings, *conflicts)
    return Plan(
        children=tuple(children),
        delete=_superfluous(children, observed, resource, [revision, *earlier]),
        problems=(*(unsupported if revision is held else ()), *missing),
        replicas=replicas(resource),
        up_to_date=_up_to_date(revision, observed, settings),
        ignored=resource.ignored,
        unread={section: str(error) for section, error in resource.unread.items()},
        requeue_seconds=_again(observed),
    )


def last_accepted(observed: Observed, settings: Settings, *problems: Problem) -> Plan:
    """What to do about a resource that is not accepted: what ran goes on from the spec that its pin holds.

    It is still scaled, suspended and repaired; objects that stand in the way are left out, and nothing is deleted.
    Without a pin, or with one that this operator cannot read, only the replicas of a live Deployment follow the spec.
    """
    metadata, asked = observed.resource["metadata"], observed.resource.get("spec") or {}
    requeue = _again(observed, *problems)
    nothing = Plan(problems=problems, replicas=_replicas_alone(observed), requeue_seconds=requeue)
    revision = next(iter(_revisions(observed)), None)
    if not isinstance(revision, Revision):
        return nothing
    spec = dict(revision.spec or {})
    for member, kind in (("replicas", int), ("suspend", bool)):  # scaling and stopping work whatever else is wrong
        if type(asked.get(member)) is kind:
            spec[member] = asked[member]
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
    """The replicas asked for by a spec of which nothing else can be used; those of the Deployment where it has none."""
    meta, asked = observed.resource["metadata"], observed.resource.get("spec") or {}
    live = observed.children.get(Ref("apps/v1", "Deployment", meta["name"]))
    if live is None or controller_uid(live) != meta["uid"] or asked.get("suspend") is True:
        return 0
    count, scaling = asked.get("replicas"), asked.get("autoscaling")
    if type(count) is not int or count < 0:
        return int((live.get("spec") or {}).get("replicas") or 1)
    bounds = scaling if isinstance(scaling, Mapping) else {}
    low, high = bounds.get("minReplicas"), bounds.get("maxReplicas")
    count = min(count, high) if type(high) is int else count
    return max(count, low) if type(low) is int else count


def _revisions(observed: Observed) -> list[Revision | UnsupportedRevision]:
    return controlled_revisions(observed.children.values(), observed.resource["metadata"]["uid"])


def _as_they_run(observed: Observed, newest: UnsupportedRevision) -> tuple[Revision | None, tuple[Problem, ...]]:
    """A pin of the pods as they are, in place of one that cannot be read, and a word on it; None where none run."""
    meta = observed.resource["metadata"]
    live = observed.children.get(Ref("apps/v1", "Deployment", meta["name"]))
    if live is None or controller_uid(live) != meta["uid"]:
        return None, ()
    template = live["spec"]["template"]
    image = next((str(c["image"]) for c in template["spec"]["containers"] if c["name"] == MAIN), "")
    restarted_at = (template["metadata"].get("annotations") or {}).get(RESTARTED_AT, "")
    sentence = (
        f"ControllerRevision {revision_name(meta['name'], newest.number)} is of format {newest.format}, which this "
        "operator does not know: the pods stay as they are, whatever the spec says of them; upgrade the operator, or "
        f"give the annotation {RESTARTED_AT} a new value to have them made anew from the spec"
    )
    revision = Revision(newest.number, None, restarted_at, RenderedPod(image, template))
    return revision, (Problem("UpToDate", "UnknownPin", sentence),)


def _again(observed: Observed, *problems: Problem) -> float | None:
    """When to look again at what no watch tells of; None where nothing depends on such."""
    if any(problem.reason == "NameConflict" for problem in problems):
        return CONFLICT_SECONDS
    return None if observed.nodes is None else NODES_SECONDS


def _up_to_date(revision: Revision, observed: Observed, settings: Settings) -> bool:
    return (
        revision.spec is not None
        and revision.rendered(observed.resource["metadata"], settings) == revision.rendered_pod
    )


def _children(
    resource: DiffusionLMService, observed: Observed, settings: Settings, revision: Revision
) -> tuple[list[Obj], tuple[Problem, ...]]:
    """The children whose kinds the cluster has, ready to be written, and a problem for each kind that it lacks."""
    children, problems = [], []
    left = {CHILD_OF.get(section) for section in resource.unread}
    for child in render(resource, settings, revision, _commits(observed, revision)):
        if child["kind"] in left:
            continue
        if child["kind"] == "Deployment" and "rolloutStrategy" in resource.unread:
            live = observed.children.get(Ref.of(child), child)["spec"]
            child["spec"] = {**child["spec"], "strategy": live.get("strategy", child["spec"]["strategy"])}
        if child["kind"] == "PodMonitor" and PODMONITOR not in observed.apis:
            sentence = (
                "spec.monitoring.podMonitor: the cluster has no CustomResourceDefinition "
                "podmonitors.monitoring.coreos.com; install the Prometheus operator or remove the field"
            )
            problems.append(Problem("UpToDate", MISSING_CRD, sentence))
        else:
            children.append(_owned(child, resource))
    return children, tuple(problems)


def _commits(observed: Observed, revision: Revision) -> dict[str, str]:
    """What the hub's models of the pods of all pins are resolved to, by key; "" until a pod has told."""
    meta = observed.resource["metadata"]
    live = observed.children.get(Ref("v1", "ConfigMap", model_config(meta["name"])), {})
    known = recorded(live) if live and controller_uid(live) == meta["uid"] else {}
    reported: dict[str, str] = {}
    for pod in sorted(observed.pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp"))):
        if (key := key_of(pod)) and (commit := observed.revisions.get(pod["metadata"]["uid"])):
            reported.setdefault(key, commit)
    templates = [
        revision.rendered_pod.template,
        *(one.rendered_pod.template for one in _revisions(observed) if isinstance(one, Revision)),
    ]
    return {key: known.get(key) or reported.get(key, "") for one in templates if (key := key_of(one))}


def _owned(child: Obj, resource: DiffusionLMService) -> Obj:
    """`child` with the resource as its controller."""
    owners = [owner_reference(resource.name, resource.uid)]
    return {**child, "metadata": {**child["metadata"], "ownerReferences": owners}}


def _is_foreign(child: Obj, observed: Observed, uid: str) -> bool:
    live = observed.children.get(Ref.of(child))
    return live is not None and controller_uid(live) != uid


def _conflicts(children: Sequence[Obj], observed: Observed, uid: str) -> list[Problem]:
    """One problem that names them all, none where there are none."""
    foreign = [f"{c['kind']} {c['metadata']['name']}" for c in children if _is_foreign(c, observed, uid)]
    if not foreign:
        return []
    names, them = ", ".join(foreign), "it" if len(foreign) == 1 else "them"
    verb = "exists and is" if len(foreign) == 1 else "exist and are"
    sentence = (
        f"{names} {verb} not controlled by this resource; {_adoption(children, observed)}delete {them}, or give this "
        "resource another name"
    )
    return [Problem("Accepted", "NameConflict", sentence)]


def _adoption(children: Sequence[Obj], observed: Observed) -> str:
    """What a message says on the adoption of the objects in the way; "" if there are none to adopt."""
    if observed.not_adopted:
        ref, reason = min(observed.not_adopted.items())
        grant = "; if it lacks the right to delete, set rbac.adoption of the chart" if "forbidden" in reason else ""
        return f"the API server refused to let it adopt {ref.kind} {ref.name} ({reason}){grant}; "
    name = observed.resource["metadata"]["name"]
    present = filter(None, (observed.children.get(Ref.of(child)) for child in children))
    if any(is_orphan(live, name) for live in present):
        return f'annotate this resource with {ADOPT}: "true" to adopt what is its own, '
    return ""


def _superfluous(
    children: Sequence[Obj],
    observed: Observed,
    resource: DiffusionLMService,
    newest_first: Sequence[Revision | UnsupportedRevision],
) -> tuple[Ref, ...]:
    """Ours by uid and label, not wanted, not going already; the pins of the newest few templates stay."""
    planned = {Ref.of(child) for child in children}
    stay = {("ControllerRevision", revision_name(resource.name, number)) for number in revisions_to_keep(newest_first)}
    templates = [revision.rendered_pod.template for revision in newest_first[:1] if isinstance(revision, Revision)]
    if any(map(follows, (*templates, *observed.pods))):  # whatever is known of its section
        stay.add(("ConfigMap", adapters_config(resource.name)))
    left = {CHILD_OF.get(section) for section in resource.unread}

    def unwanted(ref: Ref, live: Obj) -> bool:
        metadata = live["metadata"]
        return (
            ref not in planned
            and ref.kind not in left
            and (ref.kind, ref.name) not in stay
            and controller_uid(live) == resource.uid
            and metadata.get("labels", {}).get(SERVICE_LABEL) == resource.name
            and "deletionTimestamp" not in metadata
        )

    return tuple(sorted(ref for ref, live in observed.children.items() if unwanted(ref, live)))
