"""Kubernetes objects as plain data, and the names that the whole operator uses."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

Obj = dict[str, Any]  # an object as the API server's JSON has it

GROUP = "serving.unmask.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DiffusionLMService"
PLURAL = "diffusionlmservices"
FIELD_MANAGER = "unmask-operator"

SERVICE_LABEL = f"{GROUP}/service"  # its value is the resource's name; it alone selects the engine's pods
TEMPLATE_LABEL = f"{GROUP}/template"  # of a pod: the digest of its template
ADOPT = f"{GROUP}/adopt"  # annotation of the resource: "true" adopts children of its names that have no owner
RESTARTED_AT = f"{GROUP}/restartedAt"  # annotation of the resource: a new value restarts the engine


class Key(NamedTuple):
    """A resource's namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, order=True)
class Ref:
    """An object's kind and name; its namespace is the resource's own."""

    api_version: str
    kind: str
    name: str

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Self:
        return cls(obj["apiVersion"], obj["kind"], obj["metadata"]["name"])


def digest(obj: Mapping[str, Any]) -> str:
    """Returns a hash of the object's content: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()[:16]


def controller_uid(obj: Mapping[str, Any]) -> str | None:
    """Returns the uid of the owner reference with `controller: true`, or None."""
    for owner in obj["metadata"].get("ownerReferences", ()):
        if owner.get("controller"):
            return str(owner["uid"])
    return None
