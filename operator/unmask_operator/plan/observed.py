"""What a reconcile knows when it decides: the resource, its children and pods, and what asking them told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from unmask_operator.objects import Obj, Ref


@dataclass(frozen=True)
class Load:
    """A pod's answer to ``/startup`` while its model loads: the phase and 0 to 100."""

    phase: str
    percent: float


@dataclass(frozen=True)
class Adapter:
    """A Ready pod's word on an adapter: where it has, or had, it from, whether it serves it, or else why not."""

    uri: str
    state: str  # "ready", "failed", "loading", "leaving"
    message: str


@dataclass(frozen=True)
class PodEvent:
    """An Event of a pod: its reason and note, whether it is a Warning, and the container that it is about."""

    reason: str
    note: str
    warning: bool
    container: str = ""  # "": it is about the pod, or names no container


@dataclass(frozen=True)
class Decision:
    """The builtin autoscaler's last word: the replicas it wants, why, and when it last changed them."""

    desired: int
    reason: str
    healthy: bool  # False: it cannot see enough to decide, `reason` says what is missing
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
    """Everything `plan` and `status` may look at. Plain data: a test writes it by hand or reads it from a file."""

    resource: Obj  # the resource as last read
    now: datetime  # the reconcile's one clock (UTC)
    # Live objects with our service label and, in its namespace, those that stand in a planned child's way.
    children: Mapping[Ref, Obj] = field(default_factory=dict)
    pods: Sequence[Obj] = ()  # that the service label selects, in any phase
    apis: frozenset[str] = frozenset()  # kinds the API server has beyond its own, as "group/version/Kind"
    nodes: Sequence[Obj] | None = None  # all of them while a pod is unschedulable and the operator may read nodes
    # By pod uid: how far it is, the hub's commit that it says it has loaded ("": it says none), its adapters by name,
    # and the Events, oldest first, of one whose status does not say what keeps it.
    loads: Mapping[str, Load] = field(default_factory=dict)
    revisions: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, Mapping[str, Adapter]] = field(default_factory=dict)
    pod_events: Mapping[str, Sequence[PodEvent]] = field(default_factory=dict)
    decision: Decision | None = None
    # The API server's sentence for a planned child that it refused (a dry run's or the real write's), and for one on
    # which it gave no verdict, as while an admission webhook is away.
    refusals: Mapping[Ref, str] = field(default_factory=dict)
    failures: Mapping[Ref, str] = field(default_factory=dict)
    not_adopted: Mapping[Ref, str] = field(default_factory=dict)  # the same for objects that were to be adopted
    conflicts: Sequence[FieldConflict] = ()  # as the writes so far have shown them
