"""Resources and a simulated cluster for tests of the functions without API calls."""

import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from unmask_operator.objects import API_VERSION, KIND, RESTARTED_AT, SERVICE_LABEL, Obj, Ref
from unmask_operator.plan.drift import differs
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.optional_kinds import KINDS
from unmask_operator.plan.plan import Plan, plan
from unmask_operator.settings import Settings

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTINGS = Settings(gateway=True, dra=True, lws=True)
NEW = Settings(version="0.2.0", runtime_image="unmask-runtime:0.2.0", engine_env={"NEW": "1"}, gateway=True)


def resource(name: str = "demo", annotations: dict[str, str] | None = None, **spec: Any) -> Obj:
    """Returns a DiffusionLMService as the API server returns it."""
    metadata = {"name": name, "namespace": "default", "uid": "uid-1", "generation": 1}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {"model": {"uri": "demo://"}, **spec},
    }  # fmt: skip


def seen(version: int, name: str = "demo", metadata: Obj | None = None, **members: Any) -> Obj:
    """Returns an object of the resource ns/demo as a list or a watch returns it."""
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": {**meta, "labels": {SERVICE_LABEL: "demo"}, **(metadata or {})}, **members}


def observe(obj: Obj, *children: Obj, **known: Any) -> Observed:
    known = {"apis": frozenset(kind.api for kind in KINDS), **known}
    return Observed(obj, NOW, {Ref.of(child): child for child in children}, **known)


def make(observed: Observed, settings: Settings = SETTINGS) -> Plan:
    return plan(observed, settings)


def apply(observed: Observed, made: Plan) -> Observed:
    """Returns the observed state after this plan was written."""
    children = {ref: child for ref, child in observed.children.items() if ref not in made.delete}
    for child in made.children:
        children[Ref.of(child)] = copy.deepcopy(child)
    return replace(observed, children=children)


def patch(**pod: Any) -> Obj:
    """Returns a spec that changes the pod template."""
    return {"podTemplate": {"spec": pod}}


def main(**members: Any) -> Obj:
    """Returns a spec that changes the engine's container."""
    return patch(containers=[{"name": "main", **members}])


def edit(observed: Observed, **spec: Any) -> Observed:
    """Returns the observed state after an edit of the spec. A member set to None is removed."""
    service = copy.deepcopy(observed.resource)
    service["metadata"]["generation"] += 1
    service["spec"] = {k: v for k, v in {**service["spec"], **spec}.items() if v is not None}
    return replace(observed, resource=service)


def restarted(observed: Observed, value: str | None) -> Observed:
    service = copy.deepcopy(observed.resource)
    service["metadata"]["annotations"] = {RESTARTED_AT: value} if value else {}
    return replace(observed, resource=service)


def running(settings: Settings = SETTINGS, **spec: Any) -> Observed:
    """Returns the observed state of a resource whose children are written."""
    observed = observe(resource(**spec))
    return apply(observed, make(observed, settings))


def child(made: Plan, kind: str) -> Obj:
    (found,) = (c for c in made.children if c["kind"] == kind)
    return found


def kinds(made: Plan) -> list[str]:
    return [c["kind"] for c in made.children]


def template(made: Plan) -> Any:
    return child(made, "Deployment")["spec"]["template"]


def container(made: Plan) -> Any:
    return template(made)["spec"]["containers"][0]


def settled(made: Plan, observed: Observed) -> bool:
    """Returns whether there is nothing left to write."""
    return not made.delete and not any(differs(c, observed.children.get(Ref.of(c))) for c in made.children)
