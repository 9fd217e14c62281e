"""The operator's own settings. Read from the environment here and nowhere else."""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = "0.1.0"
PREFIX = "UNMASK_OPERATOR_"
_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(rf"!{_KEY}|{_KEY}(?:!?=(?:{_KEY})?)?")


@dataclass(frozen=True)
class Settings:
    """What the chart decides (environment UNMASK_OPERATOR_<FIELD>)."""

    version: str = VERSION  # the operator's own, also the tag of the runtime image that it was made with
    runtime_image: str = f"unmask-runtime:{VERSION}"  # of a resource that names none
    namespace: str = "unmask-system"  # of the operator's own pod and of its Lease
    pod_name: str = "unmask-operator"
    lease_name: str = "unmask-operator"  # the Lease that says who leads
    deployment: str = ""  # the operator's own Deployment, with which the Lease goes
    watch_namespaces: tuple[str, ...] = ()  # only these; empty is the whole cluster
    # Requirements on the labels of a resource, all of which must hold for this operator to look after it: key, !key,
    # key=value or key!=value, as `kubectl get --selector` reads them.
    watch_selector: tuple[str, ...] = ()
    image_pull_secrets: tuple[str, ...] = ()  # names that every engine pod gets
    read_nodes: bool = False  # the chart granted it
    engine_env: Mapping[str, str] = field(default_factory=dict)  # of every engine: the cluster's proxy, HF_ENDPOINT ..
    gpu_node_selector: Mapping[str, str] = field(default_factory=dict)  # of every pod with spec.gpu
    gpu_tolerations: list[Mapping[str, Any]] = field(default_factory=list)  # of every pod with spec.gpu
    # A ConfigMap in the service's namespace whose key `ca.crt` engines trust beside the public roots ("" is none).
    ca_config_map: str = ""
    # Labels of the operator's pods, which a NetworkPolicy always lets in.
    operator_selector: Mapping[str, str] = field(default_factory=lambda: {"app.kubernetes.io/name": "unmask-operator"})
    port: int = 8080  # of health, readiness and metrics
    log_level: str = "info"
    log_format: str = "text"

    @property
    def runtime_is_own_version(self) -> bool:
        tagged = self.runtime_image.split("@")[0]  # a digest may follow the tag
        return tagged.rsplit(":", 1)[-1].removeprefix("v") == self.version


def _pairs(text: str) -> dict[str, str]:
    """Lines of ``name=value``; a value may hold commas, as NO_PROXY does."""
    return dict(line.strip().split("=", 1) for line in text.splitlines() if line.strip())


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _objects(text: str) -> list[dict[str, object]]:
    """A JSON list of objects."""
    values = json.loads(text)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError("no list of objects")
    return values


_READERS: Mapping[type, Callable[[str], object]] = {
    bool: _truth,
    int: int,
    tuple: _names,
    dict: _pairs,
    list: _objects,
    str: str,
}


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from UNMASK_OPERATOR_* variables; what is not set keeps its default. ValueError names a bad variable."""
    environ = os.environ if environ is None else environ
    given = {k.removeprefix(PREFIX).lower(): v for k, v in environ.items() if k.startswith(PREFIX)}
    unknown = set(given) - set(Settings.__dataclass_fields__)
    if unknown:
        raise ValueError(f"{PREFIX}{sorted(unknown)[0].upper()}: no such setting")
    values: dict[str, object] = {}
    for name, text in given.items():
        default = getattr(Settings(), name)
        try:
            values[name] = _READERS[type(default)](text)
        except (KeyError, ValueError):
            raise ValueError(f"{PREFIX}{name.upper()}: {text!r} is no {type(default).__name__}") from None
    for requirement in _names(given.get("watch_selector", "")):
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(f"{PREFIX}WATCH_SELECTOR: {requirement!r} is none of key, !key, key=value and key!=value")
    return Settings(**values)  # type: ignore[arg-type]
