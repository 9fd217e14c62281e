"""The operator's own settings, read from the environment here and nowhere else, and the settings of kopf."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import kopf

from unmask_operator.objects import GROUP, PLURAL, SERVICE_LABEL
from unmask_operator.objects import VERSION as API

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
    lease_name: str = "unmask-operator"  # the Lease of leader election
    deployment: str = ""  # the operator's own Deployment, which owns the Lease
    watch_namespaces: tuple[str, ...] = ()  # only these; empty: all namespaces
    # Requirements on the labels of the resources that this operator manages: key, !key, key=value or key!=value, as
    # in `kubectl get --selector`. All of them must hold.
    watch_selector: tuple[str, ...] = ()
    image_pull_secrets: tuple[str, ...] = ()  # names, for every engine pod
    read_nodes: bool = False  # whether the chart grants it
    engine_env: Mapping[str, str] = field(default_factory=dict)  # of every engine: the cluster's proxy, HF_ENDPOINT ..
    engine_node_selector: Mapping[str, str] = field(default_factory=lambda: {"kubernetes.io/os": "linux"})
    gpu_node_selector: Mapping[str, str] = field(default_factory=dict)  # of every pod with spec.gpu
    gpu_tolerations: list[Mapping[str, Any]] = field(default_factory=list)  # of every pod with spec.gpu
    # A ConfigMap in the resource's namespace. Engines trust its key `ca.crt` in addition to the public roots. "": none.
    ca_config_map: str = ""
    # Labels of the operator's pods, which every NetworkPolicy admits.
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
    """Reads settings from UNMASK_OPERATOR_* variables.

    Raises:
        ValueError: a variable is unknown or has an invalid value. The message names it.
    """
    environ = os.environ if environ is None else environ
    variables = {k.removeprefix(PREFIX).lower(): v for k, v in environ.items() if k.startswith(PREFIX)}
    unknown = set(variables) - set(Settings.__dataclass_fields__)
    if unknown:
        raise ValueError(f"{PREFIX}{sorted(unknown)[0].upper()}: no such setting")
    values: dict[str, object] = {}
    for name, text in variables.items():
        default = getattr(Settings(), name)
        try:
            values[name] = _READERS[type(default)](text)
        except (KeyError, ValueError):
            raise ValueError(f"{PREFIX}{name.upper()}: {text!r} is not a valid {type(default).__name__}") from None
    for requirement in _names(variables.get("watch_selector", "")):
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(f"{PREFIX}WATCH_SELECTOR: {requirement!r} is none of key, !key, key=value and key!=value")
    return Settings(**values)  # type: ignore[arg-type]


PAGE = 100  # objects per answer to a list
WATCH_SECONDS = 600  # a watch request's duration; each costs a request. An integer, as the API requires.
INACTIVITY_SECONDS = 180.0  # a live watch has a bookmark per minute
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 30.0
REQUEST_SECONDS = 30.0


class Backoffs:
    """Pauses between the tries of a request, in seconds: 1, 2, 4 .. 30, and 30 without end."""

    def __iter__(self) -> Iterator[float]:
        pause = FIRST_BACKOFF_SECONDS
        while True:
            yield pause
            pause = min(2 * pause, LONGEST_BACKOFF_SECONDS)


class NoDiffBase(kopf.DiffBaseStorage):
    """Neither computes nor stores what kopf's other handlers compare an object with."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[kopf.FieldSpec] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None


def configure_kopf(target: kopf.OperatorSettings, settings: Settings) -> None:
    """Sets what the operator needs of kopf: watches that survive every outage, in little memory, and no writes."""
    watching, networking = target.watching, target.networking
    watching.chunk_size = PAGE  # by default a list holds all objects of a kind in memory at once
    # Time that an object's worker waits for its next event. With the default of 5 s a list leaves a task per object.
    target.queueing.idle_timeout = 0.05
    watching.server_timeout = WATCH_SECONDS  # by default the API server ends a watch after 30 to 60 minutes
    watching.inactivity_timeout = INACTIVITY_SECONDS  # the default of 70 s is one late bookmark
    # A request that fails, by an outage or by missing rights, is tried again without end: kopf exits at the last try.
    networking.error_backoffs = Backoffs()
    networking.request_timeout = networking.connect_timeout = watching.connect_timeout = REQUEST_SECONDS
    # Objects that are not the operator's are neither sent nor held.
    watching.label_selectors[_is_child] = SERVICE_LABEL
    if settings.watch_selector:
        watching.label_selectors[GROUP, API, PLURAL] = ",".join(settings.watch_selector)
    # Scanning watches CustomResourceDefinitions and namespaces, with rights in the whole cluster. The one kind that may
    # be absent is listed instead (controller/resync.py).
    target.scanning.disabled = True
    target.peering.standalone = True  # the Lease elects the leader; peering needs a kind of its own
    target.posting.enabled = False  # the operator writes its own Events, on transitions alone
    # kopf writes nothing on objects: no last state, and no removal of a finalizer, which another operator on kopf may
    # have set under the default name.
    target.persistence.diffbase_storage = NoDiffBase()
    target.persistence.finalizer = f"{GROUP}/unused"


def _is_child(resource: kopf.Resource) -> bool:
    return resource.group != GROUP
