"""Settings of the operator, from environment variables, and settings of kopf. No other module reads the environment."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import kopf

from unmask_operator.objects import FIELD_MANAGER, GROUP, PLURAL, SERVICE_LABEL
from unmask_operator.objects import VERSION as API

VERSION = "0.1.0"
PREFIX = "UNMASK_OPERATOR_"
MANAGER_LENGTH = 128  # characters of a field manager that the API server accepts
_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_REQUIREMENT = re.compile(rf"!{_KEY}|{_KEY}(?:!?=(?:{_KEY})?)?")


@dataclass(frozen=True)
class Settings:
    """Settings from the chart, as environment variables UNMASK_OPERATOR_<FIELD>."""

    version: str = VERSION  # of the operator; also the tag of the runtime image of its release
    runtime_image: str = f"unmask-runtime:{VERSION}"  # for resources without spec.image
    namespace: str = "unmask-system"  # namespace of the operator's pod and its Lease
    pod_name: str = "unmask-operator"
    lease_name: str = "unmask-operator"  # Lease for leader election
    deployment: str = ""  # the operator's Deployment, which owns the Lease
    watch_namespaces: tuple[str, ...] = ()  # empty: all namespaces
    # Label requirements, all of which a resource must meet to be reconciled: key, !key, key=value or key!=value, as in
    # `kubectl get --selector`.
    watch_selector: tuple[str, ...] = ()
    model_cache: bool = False  # whether the chart grants the permissions for spec.modelCache.pvc
    image_pull_secrets: tuple[str, ...] = ()  # names of Secrets for all engine pods
    read_nodes: bool = False  # whether the chart grants the permission
    keda: bool = False  # whether the chart grants the permissions on ScaledObjects
    activator: str = ""  # the activator's Service in the operator's namespace; "": none
    # Labels of the activator's pods, which NetworkPolicies of services with spec.autoscaling.zero admit.
    activator_selector: Mapping[str, str] = field(default_factory=dict)
    dra: bool = False  # whether the chart grants permissions on ResourceClaimTemplates
    lws: bool = False  # whether the chart grants permissions on LeaderWorkerSets
    gateway: bool = False  # whether the chart grants permissions on HTTPRoutes and InferencePools
    # Variables of all engines, such as proxies and HF_ENDPOINT.
    engine_env: Mapping[str, str] = field(default_factory=dict)
    engine_node_selector: Mapping[str, str] = field(default_factory=lambda: {"kubernetes.io/os": "linux"})
    gpu_node_selector: Mapping[str, str] = field(default_factory=dict)  # for pods with spec.gpu
    gpu_tolerations: list[Mapping[str, Any]] = field(default_factory=list)  # for pods with spec.gpu
    # ConfigMap in the resource's namespace. Engines trust its key `ca.crt` in addition to the public roots. "": none.
    ca_config_map: str = ""
    # Labels of the operator's pods, which every NetworkPolicy admits.
    operator_selector: Mapping[str, str] = field(default_factory=lambda: {"app.kubernetes.io/name": "unmask-operator"})
    port: int = 8080  # port of probes and metrics
    log_level: str = "info"
    log_format: str = "text"

    @property
    def status_manager(self) -> str:
        """Field manager of statuses, by which releases of the operator recognize each other."""
        return f"{FIELD_MANAGER}/{self.namespace}/{self.lease_name}"[:MANAGER_LENGTH]

    @property
    def runtime_is_own_version(self) -> bool:
        tagged = self.runtime_image.split("@")[0]  # a digest may follow the tag
        return tagged.rsplit(":", 1)[-1].removeprefix("v") == self.version


def _pairs(text: str) -> dict[str, str]:
    """Parses lines of ``name=value``. A value may contain any character but a line feed."""
    return dict(line.lstrip().split("=", 1) for line in text.split("\n") if line.strip())


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _objects(text: str) -> list[dict[str, object]]:
    """Parses a JSON list of objects."""
    values = json.loads(text)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError("not a list of objects")
    return values


_READERS: Mapping[type, Callable[[str], object]] = {
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    int: int,
    tuple: _names,
    dict: _pairs,
    list: _objects,
    str: str,
}


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings from UNMASK_OPERATOR_* variables.

    Raises:
        ValueError: a variable is unknown or invalid; the message names it.
    """
    environ = os.environ if environ is None else environ
    variables = {k.removeprefix(PREFIX).lower(): v for k, v in environ.items() if k.startswith(PREFIX)}
    unknown = set(variables) - set(Settings.__dataclass_fields__)
    if unknown:
        raise ValueError(f"{PREFIX}{sorted(unknown)[0].upper()}: unknown setting; remove the variable")
    values: dict[str, object] = {}
    for name, text in variables.items():
        default = getattr(Settings(), name)
        try:
            values[name] = _READERS[type(default)](text)
        except (KeyError, ValueError):
            raise ValueError(f"{PREFIX}{name.upper()}: {text!r} is not a valid {type(default).__name__}") from None
        if isinstance(default, dict) and name.endswith("_selector"):  # white space is not part of a label
            values[name] = {label.strip(): value.strip() for label, value in _pairs(text).items()}
    for requirement in _names(variables.get("watch_selector", "")):
        if not _REQUIREMENT.fullmatch(requirement):
            raise ValueError(f"{PREFIX}WATCH_SELECTOR: {requirement!r} must be key, !key, key=value or key!=value")
    return Settings(**values)  # type: ignore[arg-type]


PAGE = 100  # objects per page of a list
WATCH_SECONDS = 600  # duration of a watch request; an integer, as the API requires
INACTIVITY_SECONDS = 180.0  # the API server sends a bookmark per minute
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 30.0
REQUEST_SECONDS = 30.0


class Backoffs:
    """Endless exponential backoff between retries, in seconds: 1, 2, 4 .. 30, 30, 30."""

    def __iter__(self) -> Iterator[float]:
        pause = FIRST_BACKOFF_SECONDS
        while True:
            yield pause
            pause = min(2 * pause, LONGEST_BACKOFF_SECONDS)


class NoDiffBase(kopf.DiffBaseStorage):
    """Disables the storage of the last handled state, which only kopf's change handlers need."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[kopf.FieldSpec] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None


def configure_kopf(target: kopf.OperatorSettings, settings: Settings) -> None:
    """Configures kopf: endless retries of watches, low memory consumption, and no writes to objects."""
    watching, networking = target.watching, target.networking
    watching.chunk_size = PAGE  # without it, a list response contains all objects of a kind
    # Idle time before an object's worker ends. With the default of 5 s, a list leaves one task per object.
    target.queueing.idle_timeout = 0.05
    watching.server_timeout = WATCH_SECONDS  # default of the API server: 30 to 60 minutes
    watching.inactivity_timeout = INACTIVITY_SECONDS  # the default of 70 s does not tolerate one delayed bookmark
    # Requests that fail in an outage or for lack of permissions are retried forever: kopf exits after the last retry.
    networking.error_backoffs = Backoffs()
    networking.request_timeout = networking.connect_timeout = watching.connect_timeout = REQUEST_SECONDS
    # The API server sends only objects with the operator's label.
    watching.label_selectors[_is_child] = SERVICE_LABEL
    if settings.watch_selector:
        watching.label_selectors[GROUP, API, PLURAL] = ",".join(settings.watch_selector)
    # Scanning watches CustomResourceDefinitions and namespaces, which requires cluster-wide permissions. The only kind
    # that may be absent is listed instead (controller/resync.py).
    target.scanning.disabled = True
    target.peering.standalone = True  # leader election uses a Lease; peering requires its own CRD
    target.posting.enabled = False  # the operator creates its own Events, only on transitions
    # kopf must not modify objects: no last handled state, and no removal of a finalizer with the default name, which
    # another kopf operator may have set.
    target.persistence.diffbase_storage = NoDiffBase()
    target.persistence.finalizer = f"{GROUP}/unused"


def _is_child(resource: kopf.Resource) -> bool:
    return resource.group != GROUP
