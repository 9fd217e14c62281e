"""What the activator needs to know of a DiffusionLMService."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from runtime.config import BY_DEST
from unmask_operator.api.autoscaling import Zero
from unmask_operator.objects import Key, number, section


@dataclass(frozen=True)
class Target:
    """A DiffusionLMService that scales to zero.

    Attributes:
        key: namespace and name.
        version: resource version, for a write of its replicas.
        port: on which its requests arrive.
        replicas: `spec.replicas`.
        zero: limits of held requests.
        models: ids that requests may name.
        needs_key: whether clients need an API key.
        requests_per_pod: number of requests that a pod runs at once.
    """

    key: Key
    version: str
    port: int
    replicas: int
    zero: Zero
    models: tuple[str, ...]
    needs_key: bool
    requests_per_pod: int

    @classmethod
    def read(cls, resource: Mapping[str, Any]) -> Target | None:
        """Parses a resource. None: it does not scale to zero, has no port yet, is suspended or is being deleted."""
        meta, spec = resource["metadata"], section(dict(resource), "spec")
        port = number(section(section(dict(resource), "status"), "autoscaling"), "activatorPort")
        if not port or spec.get("suspend") is True or meta.get("deletionTimestamp"):
            return None
        try:
            zero = Zero.model_validate(section(spec, "autoscaling").get("zero"), extra="ignore")
        except ValidationError:
            return None
        listed = section(spec, "lora").get("adapters") or ()
        data = number(section(spec, "parallelism"), "data", 1)
        running = number(section(spec, "engine"), "maxNumReqs", BY_DEST["max_num_reqs"].default)
        return cls(
            Key(meta["namespace"], meta["name"]),
            meta["resourceVersion"],
            port,
            number(spec, "replicas", 1),
            zero,
            (section(spec, "model").get("name") or meta["name"], *(one["name"] for one in listed)),
            bool(section(spec, "auth")),
            running * data,
        )
