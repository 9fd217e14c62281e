"""What a resource's children should be: a pure function of what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unmask_operator.api import DiffusionLMService, SpecError, parse
from unmask_operator.objects import API_VERSION, KIND, SERVICE_LABEL, Obj, Ref, controller_uid
from unmask_operator.render import names, render
from unmask_operator.render.pod import form
from unmask_operator.render.podmonitor import PODMONITOR
from unmask_operator.render.revision import KEPT, Pin, new_pin, pins
from unmask_operator.render.workload import replicas
from unmask_operator.settings import Settings
from unmask_operator.state.observed import Observed

CONFLICT_SECONDS = 30.0  # nothing tells us when an object that is not ours goes
NODES_SECONDS = 30.0  # nor when a node comes, goes or changes: how long a list of them is good
MISSING_CRD = "MissingCRD"  # a condition's reason


@dataclass(frozen=True)
class Problem:
    """Why something of the spec cannot be had: becomes a condition's reason and message.

    Attributes:
        condition: "Accepted" (while it stands, children are those of the last good spec) or the one it falls under.
        reason: CamelCase, as conditions have it.
        message: a sentence that names the field and the fix.
    """

    condition: str
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What to do next.

    The dry runs of all children come before the first write: the pin among them says that its spec was accepted.

    Attributes:
        children: complete objects, in the order of their creation, each controlled by the resource.
        delete: our own objects that nothing wants any more.
        problems: what stands in the way, in the order of importance.
        replicas: the engine replicas asked for now (0 while suspended), clamped to the autoscaler's bounds.
        up_to_date: False when this operator would render another pod template than the pinned one.
        requeue_seconds: look again after so long although nothing may change (None: not needed).
    """

    children: tuple[Obj, ...] = ()
    delete: tuple[Ref, ...] = ()
    problems: tuple[Problem, ...] = ()
    replicas: int = 1
    up_to_date: bool = True
    requeue_seconds: float | None = None


def plan(service: DiffusionLMService, observed: Observed, settings: Settings) -> Plan:
    """The children that the resource should have now, or, where it is not accepted, those of its last good spec."""
    try:
        fresh = form(service, settings)
    except SpecError as error:
        return last_good(observed, settings, Problem("Accepted", "InvalidSpec", str(error)))
    spec = observed.service["spec"]
    earlier = pins(observed.children.values(), service.uid)
    if earlier and earlier[0].covers(service, spec):
        pin = earlier[0]
    else:
        pin = new_pin(service, spec, earlier[0].number + 1 if earlier else 1, fresh)
    children, missing = _children(service, observed, settings, pin)
    if conflicts := _conflicts(children, observed, service.uid):
        return last_good(observed, settings, *conflicts)
    return Plan(
        children=tuple(children),
        delete=_superfluous(children, observed, service, pin),
        problems=missing,
        replicas=replicas(service),
        up_to_date=pin.form == fresh,
        requeue_seconds=_again(observed),
    )


def last_good(observed: Observed, settings: Settings, *problems: Problem) -> Plan:
    """What to do about a resource that is not accepted: what ran goes on from the spec that its pin holds.

    It is still scaled, suspended and repaired; objects that stand in the way are left out, and nothing is deleted.
    Without a pin, or with one that this operator cannot read, there is nothing to do.
    """
    metadata, asked = observed.service["metadata"], observed.service.get("spec") or {}
    earlier = pins(observed.children.values(), metadata["uid"])
    requeue = _again(observed, *problems)
    if not earlier:
        return Plan(problems=problems, replicas=0, requeue_seconds=requeue)
    pin = earlier[0]
    spec = dict(pin.spec)
    for member, kind in (("replicas", int), ("suspend", bool)):  # scaling and stopping work whatever else is wrong
        if type(asked.get(member)) is kind:
            spec[member] = asked[member]
    try:
        service = parse({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
    except SpecError:
        return Plan(problems=problems, replicas=0, requeue_seconds=requeue)
    children, _ = _children(service, observed, settings, pin)
    foreign = {Ref.of(child) for child in children if _is_foreign(child, observed, service.uid)}
    return Plan(
        children=tuple(child for child in children if Ref.of(child) not in foreign),
        problems=problems,
        replicas=replicas(service),
        up_to_date=_up_to_date(pin, service, settings),
        requeue_seconds=requeue,
    )


def _again(observed: Observed, *problems: Problem) -> float | None:
    """When to look again at what no watch tells of; None where nothing depends on such."""
    if any(problem.reason == "NameConflict" for problem in problems):
        return CONFLICT_SECONDS
    return None if observed.nodes is None else NODES_SECONDS


def _up_to_date(pin: Pin, service: DiffusionLMService, settings: Settings) -> bool:
    try:
        return pin.form == form(service, settings)
    except SpecError:  # this operator refuses what an earlier one accepted
        return False


def _children(
    service: DiffusionLMService, observed: Observed, settings: Settings, pin: Pin
) -> tuple[list[Obj], tuple[Problem, ...]]:
    """The children whose kinds the cluster has, ready to be written, and a problem for each kind that it lacks."""
    children, problems = [], []
    for child in render(service, settings, pin):
        if child["kind"] == "PodMonitor" and PODMONITOR not in observed.apis:
            problems.append(
                Problem(
                    "UpToDate",
                    MISSING_CRD,
                    "spec.monitoring.podMonitor: the cluster has no CustomResourceDefinition "
                    "podmonitors.monitoring.coreos.com; install the Prometheus operator or remove the field",
                )
            )
        else:
            children.append(_owned(child, service))
    return children, tuple(problems)


def _owned(child: Obj, service: DiffusionLMService) -> Obj:
    """`child` with the resource as its controller."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": service.name,
        "uid": service.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {**child, "metadata": {**child["metadata"], "ownerReferences": [owner]}}


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
    sentence = f"{names} {verb} not controlled by this resource; delete {them}, or give this resource another name"
    return [Problem("Accepted", "NameConflict", sentence)]


def _superfluous(children: Sequence[Obj], observed: Observed, service: DiffusionLMService, pin: Pin) -> tuple[Ref, ...]:
    """Ours by uid and label, not wanted, not going already; the newest few pins stay."""
    wanted = {Ref.of(child) for child in children}
    kept = {names.revision(service.name, number) for number in range(pin.number - KEPT + 1, pin.number + 1)}

    def unwanted(ref: Ref, live: Obj) -> bool:
        metadata = live["metadata"]
        return (
            ref not in wanted
            and not (ref.kind == "ControllerRevision" and ref.name in kept)
            and controller_uid(live) == service.uid
            and metadata.get("labels", {}).get(SERVICE_LABEL) == service.name
            and "deletionTimestamp" not in metadata
        )

    return tuple(sorted(ref for ref, live in observed.children.items() if unwanted(ref, live)))
