"""Kubernetes objects as plain data, with their names, labels and annotations."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, Self

from kubernetes.utils.quantity import parse_quantity

Obj = dict[str, Any]  # a JSON object of the API server

GROUP = "serving.unmask.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DiffusionLMService"
PLURAL = "diffusionlmservices"
FIELD_MANAGER = "unmask-operator"

SERVICE_LABEL = f"{GROUP}/service"  # label with the resource's name; the only label of the pod selector
FETCH_LABEL = f"{GROUP}/fetch"  # label of a pod that downloads a model: the resource's name
ROLE_LABEL = f"{GROUP}/role"  # label of a pod of a group: leader or worker; pods of one node have none
TEMPLATE_LABEL = f"{GROUP}/template"  # label of a pod: digest of its template
ADOPT = f"{GROUP}/adopt"  # annotation of the resource: "true" adopts orphaned children
RESTARTED_AT = f"{GROUP}/restartedAt"  # annotation of the resource: a new value restarts the engine


class Key(NamedTuple):
    """Namespace and name of a resource."""

    namespace: str
    name: str

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Self:
        return cls(obj["metadata"]["namespace"], obj["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, order=True)
class Ref:
    """Kind and name of an object in the resource's namespace."""

    api_version: str
    kind: str
    name: str

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Self:
        return cls(obj["apiVersion"], obj["kind"], obj["metadata"]["name"])


def digest(obj: Mapping[str, Any]) -> str:
    """Returns a hash of an object's content, as 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()[:16]


def controller_uid(obj: Mapping[str, Any]) -> str | None:
    """Returns the uid of an object's controller; None without one."""
    for owner in obj["metadata"].get("ownerReferences", ()):
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def serves(pod: Mapping[str, Any]) -> bool:
    """Returns whether a pod serves HTTP, and is no worker of a group."""
    return bool(section(pod, "metadata", "labels").get(ROLE_LABEL) != "worker")


def is_ready(pod: Obj) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def section(obj: Any, *members: str) -> Obj:
    """Returns a nested member that should be an object, or {} if it or one above it is missing or another type."""
    for member in members:
        obj = obj.get(member) if isinstance(obj, Mapping) else None
    return obj if isinstance(obj, dict) else {}


def number(obj: Any, member: str, default: int = 0) -> int:
    found = obj.get(member) if isinstance(obj, dict) else None
    return found if isinstance(found, int) else default


def condition(obj: Obj, kind: str) -> Obj:
    """Returns a condition of a pod or another object, or {}."""
    return next((c for c in section(obj, "status").get("conditions") or () if c["type"] == kind), {})


def seconds(begin: str | datetime, end: str | datetime) -> float:
    """Returns the seconds between two times. Text has the form of the API server."""
    first, last = (datetime.fromisoformat(time) if isinstance(time, str) else time for time in (begin, end))
    return (last - first).total_seconds()


def quantity(value: Any) -> Decimal | None:
    """Parses a Kubernetes quantity ("500m", "2Gi", 4, "1e3"); None if the value is invalid."""
    try:
        parsed: Decimal = parse_quantity(value)
    except ValueError:
        return None
    return parsed if parsed.is_finite() and not isinstance(value, bool) else None


def merge_patch(old: Obj, new: Obj) -> Obj:
    """Returns the JSON merge patch (RFC 7386) that changes `old` to `new`; {} if they are equal."""
    patch: Obj = {member: None for member in old if member not in new}
    for member, value in new.items():
        before = old.get(member)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[member] = inner
        elif value != before or member not in old:
            patch[member] = value
    return patch
