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
class Told:
    """An Event of a pod: its reason and note, and whether it is a Warning."""

    reason: str
    note: str
    warning: bool


@dataclass(frozen=True)
class Decision:
    """The builtin autoscaler's last word: the replicas it wants, why, and when it last changed them."""

    desired: int
    reason: str
    healthy: bool  # False: it cannot see enough to decide, `reason` says what is missing
    last_scale_time: datetime | None = None


@dataclass(frozen=True)
class Observed:
    """Everything `plan` and `status` may look at. Plain data: a test writes it by hand or reads it from a file.

    Attributes:
        service: the resource as last read.
        children: live objects with our service label and, in its namespace, those that stand in a planned child's way.
        pods: the pods that the service label selects, in any phase.
        apis: kinds the API server has beyond its own, as "group/version/Kind" ("monitoring.coreos.com/v1/PodMonitor").
        nodes: all nodes while a pod is unschedulable and the operator may read nodes, else None.
        loads: by pod uid.
        revisions: the hub's commit that a pod says it has loaded ("": it says none), by pod uid.
        told: Events, oldest first, of pods whose status does not say what keeps them; by pod uid.
        refusals: the API server's sentence for a planned child that it refused (a dry run's or the real write's).
        failures: its sentence for a child on which it gave no verdict, as while an admission webhook is away.
        now: the reconcile's one clock (UTC).
    """

    service: Obj
    now: datetime
    children: Mapping[Ref, Obj] = field(default_factory=dict)
    pods: Sequence[Obj] = ()
    apis: frozenset[str] = frozenset()
    nodes: Sequence[Obj] | None = None
    loads: Mapping[str, Load] = field(default_factory=dict)
    revisions: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, Sequence[Told]] = field(default_factory=dict)
    decision: Decision | None = None
    refusals: Mapping[Ref, str] = field(default_factory=dict)
    failures: Mapping[Ref, str] = field(default_factory=dict)
