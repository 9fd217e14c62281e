"""Objects recorded from a cluster, and inputs of reconciles with them."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from unmask_operator.objects import API_VERSION, KIND, Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan

NOW = datetime(2030, 1, 1, 3, 0, 0, tzinfo=UTC)
UID = "0b6e1c1e-3a4c-4a51-8f6e-0d9b1f3a9c11"
STATES = sorted(
    path.stem for path in Path(__file__).parent.glob("*.yaml") if path.stem not in ("deployments", "nodes", "revisions")
)


@cache
def _read(name: str) -> str:
    return (Path(__file__).parent / f"{name}.yaml").read_text()


def load(name: str) -> Any:
    return yaml.safe_load(_read(name))


def pod(state: str, name: str | None = None, created: str | None = None) -> Obj:
    """Returns a recorded pod, optionally with another name and creation time."""
    found: Obj = load(state)
    found["metadata"]["name"] = name or found["metadata"]["name"]
    found["metadata"]["uid"] += name or ""
    found["metadata"]["creationTimestamp"] = created or found["metadata"]["creationTimestamp"]
    return found


def later(state: str, name: str = "demo-66d4b7c8f9-aaaaa") -> Obj:
    """Returns a recorded pod as a newer one than the others."""
    return pod(state, name, "2030-01-01T02:00:00Z")


def service(generation: int = 1, **spec: Any) -> Obj:
    base = {"model": {"uri": "pvc://weights/llada2"}, "gpu": {"resourceName": "nvidia.com/gpu"}, "replicas": 1}
    metadata = {"name": "demo", "namespace": "models", "uid": UID, "generation": generation}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": base | spec}


def owned(api_version: str, kind: str, name: str, **members: Any) -> Obj:
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "demo", "uid": UID, "controller": True}
    metadata = {"name": name, "namespace": "models", "generation": 1, "ownerReferences": [owner]}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **members}


def deployment(state: str, replicas: int = 1) -> Obj:
    main = {"name": "main", "image": "registry.example/unmask-runtime:0.1.0"}
    spec = {"replicas": replicas, "template": {"spec": {"containers": [main]}}}
    return owned("apps/v1", "Deployment", "demo", spec=spec, status=load("deployments")[state])


def reconcile(
    stage: str, *pods: Obj | str, replicas: int = 1, plan: Plan | None = None, **known: Any
) -> tuple[Observed, Plan]:
    """Returns the input of a reconcile: the Deployment at a stage, and pods or names of recorded ones.

    `known` sets attributes of Observed.
    """
    live = deployment(stage, replicas)
    others = known.pop("children", ())
    children = {Ref.of(child): child for child in (live, *others)}
    desired = {k: v for k, v in live.items() if k != "status"}
    fields = {"resource": service(), "now": NOW} | known
    found = tuple(pod(one) if isinstance(one, str) else one for one in pods)
    return Observed(children=children, pods=found, **fields), plan or Plan((desired,), replicas=replicas)
