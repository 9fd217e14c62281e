"""The observed state of a resource: the resource, its children and pods, and what pods and autoscaler reported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from unmask_operator.objects import Obj, Ref


@dataclass(frozen=True)
class Load:
    """A pod's answer to ``/startup`` while its model loads: the phase, and the progress in percent."""

    phase: str
    percent: float


@dataclass(frozen=True)
class Adapter:
    """The state of an adapter as a Ready pod reports it: its source, whether it is served, and the error."""

    uri: str
    state: str  # "ready", "failed", "loading", "leaving"
    message: str


@dataclass(frozen=True)
class PodEvent:
    """An Event of a pod: reason, note, whether it is a Warning, and the container that it refers to."""

    reason: str
    note: str
    warning: bool
    container: str = ""  # "": the pod, or no container is named


@dataclass(frozen=True)
class Decision:
    """The last decision of the builtin autoscaler: replicas, reason, and time of the last change."""

    desired: int
    reason: str
    healthy: bool  # False: metrics are missing, which `reason` names
    last_scale_time: datetime | None = None


@dataclass(frozen=True)
class FieldConflict:
    """A field of a child that something else changes after every write.

    Attributes:
        ref: the child.
        field: path of the field; "" if something else keeps deleting the child.
        manager: the other field manager; "" if `managedFields` names none.
        by_admission: whether the API server's answer to a write differs already from what was sent.
    """

    ref: Ref
    field: str
    manager: str
    by_admission: bool = False


@dataclass(frozen=True)
class Observed:
    """All input of `plan` and `status`, as plain data."""

    resource: Obj  # the resource as last read
    now: datetime  # UTC, one time for the whole reconcile
    # Live objects with the service label, and objects in the namespace that have the name of a planned child.
    children: Mapping[Ref, Obj] = field(default_factory=dict)
    pods: Sequence[Obj] = ()  # that the service label selects, in any phase
    apis: frozenset[str] = frozenset()  # served optional kinds, as "group/version/Kind"
    nodes: Sequence[Obj] | None = None  # all, while a pod is unschedulable and the operator may read nodes
    # By pod uid: the progress, the loaded commit of the hub ("": none), the adapters by name, and the Events, oldest
    # first, of a pod whose status does not explain why it is not Ready.
    loads: Mapping[str, Load] = field(default_factory=dict)
    revisions: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, Mapping[str, Adapter]] = field(default_factory=dict)
    pod_events: Mapping[str, Sequence[PodEvent]] = field(default_factory=dict)
    decision: Decision | None = None
    # The API server's message for a planned child that it refused, in a dry run or a write, and for one whose request
    # failed otherwise, as while an admission webhook is unavailable.
    refusals: Mapping[Ref, str] = field(default_factory=dict)
    failures: Mapping[Ref, str] = field(default_factory=dict)
    not_adopted: Mapping[Ref, str] = field(default_factory=dict)  # the same for adoptions
    conflicts: Sequence[FieldConflict] = ()  # found by the writes so far
