"""Resources for tests to create, and functions that read them, wait for their state and deny updates."""

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import yaml

from e2e.cluster import ApiError, Kube
from e2e.cluster.binaries import module_directory
from e2e.cluster.config import environment
from e2e.cluster.lws import lws_crds
from tests.operator.samples import resource as sample
from unmask_operator.kinds import CHILDREN, LEADER_WORKER_SETS, OPTIONAL, POD_MONITORS, SCALED_OBJECTS, ApiKind
from unmask_operator.objects import API_VERSION, KIND, SERVICE_LABEL, controller_uid

Obj = dict[str, Any]
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition(kind: ApiKind) -> Obj:
    """Returns a CustomResourceDefinition of a kind of other projects, without a schema."""
    names = {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower(), "listKind": f"{kind.kind}List"}
    version = {"name": kind.resource[1], "served": True, "storage": True, "schema": {"openAPIV3Schema": ANYTHING}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {"group": kind.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


POD_MONITOR_CRD, SCALED_OBJECT_CRD = definition(POD_MONITORS), definition(SCALED_OBJECTS)

# Real CRDs of other projects: the module in e2e/cluster/go/gateway, and the file in it.
_GATEWAY_FILES = {
    "sigs.k8s.io/gateway-api": "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
    "sigs.k8s.io/gateway-api-inference-extension": ("config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"),
}


def gateway_crds() -> list[Obj]:
    """Returns the CRDs of HTTPRoute and InferencePool."""
    files = (module_directory("gateway", module, environment()) / path for module, path in _GATEWAY_FILES.items())
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]


def lws_crd() -> Obj:
    """Returns the CRD of LeaderWorkerSet."""
    return lws_crds()[-1]


def demo(namespace: str, name: str = "demo", **spec: Any) -> Obj:
    """Returns a small valid resource."""
    return {**sample(name, **spec), "metadata": {"name": name, "namespace": namespace}}


def read(kube: Kube, resource: Obj) -> Obj:
    meta = resource["metadata"]
    return kube.get(API_VERSION, KIND, meta["name"], meta["namespace"])


def condition(kube: Kube, resource: Obj, kind: str) -> Obj:
    """Returns the condition, or {} if it does not exist or is not about the resource's latest generation."""
    live = read(kube, resource)
    found = [c for c in live.get("status", {}).get("conditions", ()) if c["type"] == kind]
    current = found and found[0].get("observedGeneration") == live["metadata"]["generation"]
    return found[0] if current else {}


def wait_condition(kube: Kube, resource: Obj, kind: str, status: str, reason: str = "", says: str = "") -> Obj:
    """Waits for a condition with this status and, if not empty, this reason and this part of the message."""

    def there() -> Obj | None:
        seen = condition(kube, resource, kind)
        right = seen.get("status") == status and reason in ("", seen.get("reason"))
        return seen if right and says in seen["message"] else None

    try:
        return kube.wait(f"{kind}={status}/{reason}", there)
    except TimeoutError as error:
        raise AssertionError(f"{error}; it is {condition(kube, resource, kind)}") from None


def accepted(kube: Kube, resource: Obj) -> Obj:
    """Creates a resource and waits until the operator has accepted it."""
    created = kube.create(resource)
    wait_condition(kube, created, "Accepted", "True")
    return created


def wait_all_true(kube: Kube, resource: Obj) -> None:
    """Waits until every condition of the resource is True."""

    def all_true() -> bool:
        found = read(kube, resource).get("status", {}).get("conditions", ())
        return bool(found) and all(c["status"] == "True" for c in found)

    kube.wait("every condition is True", all_true)


def wait_settled(kube: Kube, namespace: str) -> None:
    """Waits until the operator has reconciled what changed before this call.

    It creates another resource, deletes its Service and waits until the operator has created the Service again. The
    queue starts older entries first. A reconcile that is running, or delayed by a failure, may end later.
    """
    sentinel = kube.create(demo(namespace, f"sentinel-{secrets.token_hex(4)}"))
    wait_condition(kube, sentinel, "Accepted", "True")
    service = ("v1", "Service", sentinel["metadata"]["name"], namespace)
    kube.delete(kube.get(*service))
    kube.wait("the sentinel's Service is created again", lambda: kube.find(*service))
    kube.delete(sentinel)


def children(kube: Kube, resource: Obj) -> dict[tuple[str, str], Obj]:
    """Returns the live objects that the resource controls, by kind and name."""
    uid = read(kube, resource)["metadata"]["uid"]
    return {
        (obj["kind"], obj["metadata"]["name"]): obj
        for obj in labelled(kube, resource["metadata"]["namespace"])
        if controller_uid(obj) == uid
    }


def labelled(kube: Kube, namespace: str) -> Iterator[Obj]:
    for kind in CHILDREN:
        if kind not in OPTIONAL:
            yield from kube.list(kind.api_version, kind.kind, namespace, labelSelector=SERVICE_LABEL)


def updates(admin: Kube, live: Obj) -> bool:
    """Returns whether the API server accepts an update. It receives admission rules through a watch."""
    try:
        admin.patch(live, {"metadata": {"labels": {"probe": secrets.token_hex(4)}}})
    except ApiError:
        return False
    return True


@contextlib.contextmanager
def policy(admin: Kube, namespace: str) -> Iterator[None]:
    """Installs a ValidatingAdmissionPolicy that denies updates of the namespace's workloads, but not of the scale."""
    groups = {"apps": "deployments", LEADER_WORKER_SETS.group: LEADER_WORKER_SETS.plural}
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "resources": [plural], "operations": ["UPDATE"]}
        for group, plural in groups.items()
    ]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    validation = {"expression": "false", "reason": "Invalid", "message": "no updates today"}
    spec = {"matchConstraints": {"resourceRules": rules, "namespaceSelector": selector}, "validations": [validation]}
    binding = {"policyName": f"denies-{namespace}", "validationActions": ["Deny"]}
    meta = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": f"denies-{namespace}"}}
    kinds = {"ValidatingAdmissionPolicy": spec, "ValidatingAdmissionPolicyBinding": binding}
    made = [admin.create({**meta, "kind": kind, "spec": each}) for kind, each in kinds.items()]
    try:
        yield
    finally:
        for obj in reversed(made):
            admin.delete(obj)
