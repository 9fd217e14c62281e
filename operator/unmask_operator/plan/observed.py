"""Input of a reconcile: the resource, its children and pods, and data from the pods' HTTP endpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from unmask_operator.kinds import DEPLOYMENTS, LEADER_WORKER_SETS, ApiKind
from unmask_operator.objects import Key, Obj, Ref, controller_uid
from unmask_operator.render import groups
from unmask_operator.render.labels import group_name
from unmask_operator.render.revision import Revision, UnsupportedRevision, controlled_revisions


@dataclass(frozen=True)
class Load:
    """Model load progress of a pod, from ``/startup``: the phase and the percentage (0 to 100)."""

    phase: str
    percent: float


@dataclass(frozen=True)
class Adapter:
    """State of an adapter on a Ready pod: its location, state and error message."""

    uri: str
    state: str  # "ready", "failed", "loading", "leaving"
    message: str


@dataclass(frozen=True)
class PodEvent:
    """An Event of a pod: its reason and note, whether it is a Warning, and the container."""

    reason: str
    note: str
    warning: bool
    container: str = ""  # "": the pod, or unknown


@dataclass(frozen=True)
class Decision:
    """Decision of the builtin autoscaler: the desired replicas, the reason, and the time of the last change."""

    desired: int
    reason: str
    healthy: bool  # False: metrics are missing, as `reason` says
    last_scale_time: datetime | None = None
    idle: bool = False  # whether the activator gets the requests, before and while there are 0 replicas
    cause: str = "MetricsMissing"  # reason of ScalingReady if not healthy


@dataclass(frozen=True)
class Activator:
    """The activator's pods that are Ready, as seen by a resource that scales to zero.

    Attributes:
        port: on which they accept the requests of the resource.
        addresses: names of their nodes, by IP address.
    """

    port: int
    addresses: Mapping[str, str]


@dataclass(frozen=True)
class FetchReport:
    """The pods of a Job that downloads a model, newest first, and the progress of the running one."""

    pods: tuple[Obj, ...] = ()
    load: Load | None = None
    final: bool = False  # read after the end of the Job


@dataclass(frozen=True)
class FieldConflict:
    """A field of a child that another client reverts after every write.

    Attributes:
        ref: the child.
        field: path of the field; "" if another client keeps deleting the child.
        manager: the other field manager; "" if `managedFields` names none.
        by_admission: whether the API server's response to a write already differs from the request.
    """

    ref: Ref
    field: str
    manager: str
    by_admission: bool = False


@dataclass(frozen=True)
class Observed:
    """Complete input of `plan` and `status`, as plain data that tests can construct or load from a file."""

    resource: Obj  # the resource as last read
    now: datetime  # time of the reconcile (UTC)
    # Live objects with the service label, and other objects in the namespace that have the name of a planned child.
    children: Mapping[Ref, Obj] = field(default_factory=dict)
    pods: Sequence[Obj] = ()  # selected by the service label, in any phase
    apis: frozenset[str] = frozenset()  # optional kinds that the API server has, as "group/version/Kind"
    nodes: Sequence[Obj] | None = None  # all nodes, while a pod is unschedulable and the operator may list nodes
    # By pod uid: load progress; the loaded commit of an hf:// model ("" if unreported); adapters by name; and Events,
    # oldest first, of a pod that does not start and whose status has no cause.
    loads: Mapping[str, Load] = field(default_factory=dict)
    revisions: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, Mapping[str, Adapter]] = field(default_factory=dict)
    pod_events: Mapping[str, Sequence[PodEvent]] = field(default_factory=dict)
    decision: Decision | None = None
    activator: Activator | None = None  # None: the resource or the operator has none
    unstable: str = ""  # how often a group has formed again, and why; "": not often
    preempted: str = ""  # pod that was preempted, while another one in its place has no node
    longest_load: float = 0.0  # longest model load time of the Ready pods, in seconds
    fetches: Mapping[str, FetchReport] = field(default_factory=dict)  # by uid of the Job
    claim: Obj | None = None  # the claim of spec.modelCache.pvc.claimName; None: it does not exist
    # Error messages of the API server: for children that it rejected (in a dry run or a write), and for children whose
    # write failed otherwise, such as while an admission webhook is unavailable.
    refusals: Mapping[Ref, str] = field(default_factory=dict)
    failures: Mapping[Ref, str] = field(default_factory=dict)
    not_adopted: Mapping[Ref, str] = field(default_factory=dict)  # error messages for objects that could not be adopted
    conflicts: Sequence[FieldConflict] = ()  # detected by earlier writes
    operators: Sequence[str] = ()  # this release and another one (namespace/name), if both write the status
    replicas_manager: str = ""  # field manager of a manifest that keeps overwriting the autoscaler's replicas; "": none

    @property
    def name(self) -> str:
        return str(self.resource["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.resource["metadata"]["uid"])

    @property
    def key(self) -> Key:
        return Key.of(self.resource)

    def own(self, kind: ApiKind, name: str) -> Obj:
        """Returns a live object that the resource controls, or {}."""
        found = self.children.get(kind.ref(name), {})
        return found if found and controller_uid(found) == self.uid else {}

    @property
    def deployment(self) -> Obj:
        """The live Deployment, or the live LeaderWorkerSet in its form; {} without either."""
        group = self.own(LEADER_WORKER_SETS, group_name(self.name))
        return self.own(DEPLOYMENTS, self.name) or groups.as_deployment(group, self.pods)

    @cached_property
    def template_revisions(self) -> list[Revision | UnsupportedRevision]:
        """The ControllerRevisions, newest first."""
        return controlled_revisions(self.children.values(), self.uid)
