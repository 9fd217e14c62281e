"""Kubernetes objects as plain data, with their names, labels and annotations."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, Self

Obj = dict[str, Any]  # a JSON object of the API server

GROUP = "serving.unmask.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DiffusionLMService"
PLURAL = "diffusionlmservices"
FIELD_MANAGER = "unmask-operator"

SERVICE_LABEL = f"{GROUP}/service"  # label with the resource's name; the only label of the pod selector
TEMPLATE_LABEL = f"{GROUP}/template"  # label of a pod: digest of its template
ADOPT = f"{GROUP}/adopt"  # annotation of the resource: "true" adopts orphaned children
RESTARTED_AT = f"{GROUP}/restartedAt"  # annotation of the resource: a new value restarts the engine

_SUFFIXES = {
    **{s: Decimal(1024) ** i for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{s: Decimal(1000) ** i for i, s in zip((-3, -2, -1, 1, 2, 3, 4, 5, 6), "numkMGTPE", strict=True)},
}


class Key(NamedTuple):
    """Namespace and name of a resource."""

    namespace: str
    name: str

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


def quantity(value: Any) -> Decimal | None:
    """Parses a Kubernetes quantity ("500m", "2Gi", 4, "1e3"); None if the value is invalid."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text, factor = str(value), Decimal(1)
    for suffix, scale in _SUFFIXES.items():
        if text.endswith(suffix):
            text, factor = text.removesuffix(suffix), scale
            break
    try:
        number = Decimal(text) * factor
    except ArithmeticError:  # no number, or an exponent out of the range of Decimal
        return None
    return number if number.is_finite() else None
