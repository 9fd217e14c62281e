"""Names, labels and constants that several children use."""

import re
from collections.abc import Mapping
from typing import Any

from unmask_operator.api import DiffusionLMService
from unmask_operator.kinds import ApiKind
from unmask_operator.objects import FIELD_MANAGER, ROLE_LABEL, SERVICE_LABEL, TEMPLATE_LABEL, Obj, Ref, section

PORT = 8000  # the runtime's HTTP port
PORT_NAME = "http"  # name of the container port; Service and PodMonitor refer to it
MAIN = "main"  # the engine's container
KEYS_MOUNT = "/etc/unmask/keys"  # where the Secret of spec.auth is mounted
KEYS_FILE = "keys"  # name of the file there, for any key of the Secret


def main_container(pod: Mapping[str, Any]) -> Obj:
    """Returns the engine's container of a pod's spec, or {}."""
    return next((one for one in pod.get("containers") or () if one.get("name") == MAIN), {})


def all_containers(pod: Mapping[str, Any]) -> list[Obj]:
    """Returns the init containers and containers of a pod's spec."""
    return [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]


def labels(name: str) -> dict[str, str]:
    """Returns the labels of every child of the resource `name` and of its pods."""
    return {
        "app.kubernetes.io/name": "unmask",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        SERVICE_LABEL: name,
    }


def selector(name: str) -> dict[str, str]:
    """Returns the selector of the engine's pods: only the service label, so that other labels can change."""
    return {SERVICE_LABEL: name}


def serving_selector(resource: DiffusionLMService) -> dict[str, str]:
    """Returns the selector of the pods that serve HTTP: of a group only the leader."""
    leader = {ROLE_LABEL: "leader"} if resource.spec.parallelism.nodes > 1 else {}
    return {**selector(resource.name), **leader}


def group_name(name: str) -> str:
    """Returns the name of the LeaderWorkerSet."""
    return f"{name}-group"


def engine_name(name: str) -> str:
    """Returns the name of most children. Workload, Service, HTTPRoute and InferencePool have the resource's name."""
    return f"{name}-engine"


def model_config(name: str) -> str:
    """Returns the name of the ConfigMap with the resolved commits of hf:// models."""
    return f"{name}-model"


def adapters_config(name: str) -> str:
    """Returns the name of the ConfigMap with the adapter list."""
    return f"{name}-adapters"


def activator_slice(name: str) -> str:
    """Returns the name of the EndpointSlice with the activator's addresses. That of IPv6 ends in -ipv6."""
    return f"{name}-activator"


def claim_name(name: str) -> str:
    """Returns the name of the claim that the operator creates for models."""
    return f"{name}-models"


def fetch_name(name: str, identity: str) -> str:
    """Returns the name of a Job that downloads a model."""
    return f"{name}-fetch-{identity}"


def revision_name(name: str, number: int) -> str:
    """Returns the name of the ControllerRevision with this number."""
    return f"{name}-r{number}"


# Names of the children of a resource, by kind: what follows the resource's name. Others have `engine_name`.
_SUFFIXES = {
    **dict.fromkeys(("Deployment", "Service", "HTTPRoute", "InferencePool"), ""),
    "LeaderWorkerSet": "-group",
    "ConfigMap": "-(model|adapters)",
    "EndpointSlice": "-activator(-ipv6)?",
    "ResourceClaimTemplate": "-gpu-[0-9a-f]{8}",
    "PersistentVolumeClaim": "-models",
    "Job": "-fetch-[0-9a-f]{8}",
    "ControllerRevision": "-r[1-9][0-9]*",
}


def is_own(ref: Ref, name: str) -> bool:
    """Returns whether the resource `name` can have a child of this kind and name."""
    return re.fullmatch(re.escape(name) + _SUFFIXES.get(ref.kind, "-engine"), ref.name) is not None


def url(host: str, port: int = 80) -> str:
    """Returns the base URL for OpenAI clients. The host is a name or an IP address."""
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}{'' if port == 80 else f':{port}'}/v1"


def child(resource: DiffusionLMService, kind: ApiKind, name: str, **fields: object) -> Obj:
    """Returns a child with the common labels and annotations; `fields` are its members except metadata."""
    spec = resource.spec
    metadata: Obj = {
        "name": name,
        "namespace": resource.namespace,
        "labels": {**spec.common_labels, **labels(resource.name)},
    }
    if spec.common_annotations:
        metadata["annotations"] = dict(spec.common_annotations)
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields}


def annotate(made: Obj, annotations: Mapping[str, str]) -> None:
    """Adds the annotations of a section to a child. They override common annotations."""
    if annotations:
        made["metadata"]["annotations"] = {**made["metadata"].get("annotations", {}), **annotations}


def template_digest(obj: Mapping[str, Any]) -> str | None:
    """Returns the digest of the template that a pod is made from, or of a template; None without one."""
    digest = section(obj, "metadata", "labels").get(TEMPLATE_LABEL)
    return None if digest is None else str(digest)


def pod_url(address: str, path: str, port: int = PORT) -> str:
    """Returns the URL of a path on the engine pod with this IPv4 or IPv6 address."""
    return f"http://{f'[{address}]' if ':' in address else address}:{port}{path}"
