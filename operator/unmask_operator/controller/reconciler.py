"""Reconciles one resource: observe, plan, apply, annotate pods, write the status, write Events."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from unmask_operator.controller import adapters, adoption
from unmask_operator.controller.apply import Applier, Outcome
from unmask_operator.controller.event_recorder import EventRecorder
from unmask_operator.controller.field_conflicts import FieldConflicts
from unmask_operator.kinds import DLMS, PODS, kind_of
from unmask_operator.kube.cache import Cache, slim
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Key, Obj, Ref, condition, controller_uid, merge_patch, section
from unmask_operator.plan import other_writers
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.other_writers import ManifestWrites, OtherOperators
from unmask_operator.plan.plan import Plan, last_accepted, plan, plan_of_deleted
from unmask_operator.render.labels import is_own
from unmask_operator.settings import Settings
from unmask_operator.status import status
from unmask_operator.status.conditions.basic import TWO_OPERATORS
from unmask_operator.status.conditions.scheduled import UNSEEN_SECONDS
from unmask_operator.status.groups import GroupFailures
from unmask_operator.status.limits import minimal
from unmask_operator.status.pods import terminations
from unmask_operator.status.pods.pod_status import is_live, is_scheduled, is_unseen
from unmask_operator.status.transitions import Event, transitions

STATUS_REFUSED, REPLICAS_KEPT = "StatusRefused", "ReplicasKept"  # reasons of Events

log = logging.getLogger(__name__)

# Adds everything else that is known to a resource, its children and its pods.
Observe = Callable[[Obj, Mapping[Ref, Obj], Sequence[Obj]], Awaitable[Observed]]


@dataclass(frozen=True)
class Result:
    refused: bool = False  # a child or the status was refused; that may pass, as with a quota
    requeue_after: float | None = None  # seconds until the next reconcile; None: no need


@dataclass
class Reconciler:
    """Reconciles resources. The work queue runs at most one reconcile per key at a time."""

    client: Client
    cache: Cache
    settings: Settings
    observe: Observe
    metrics: Metrics
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._resources: dict[Key, _Resource] = {}  # what this leader remembers of each

    async def reconcile(self, key: Key, first_attempt: bool = False) -> Result:
        """Reconciles the resource.

        Args:
            key: The resource.
            first_attempt: Whether to raise on the failure of one child. Most such failures pass immediately. A later
                attempt reports it in the status instead.

        Raises:
            ApiError: A request failed and may succeed later.
        """
        start = time.perf_counter()
        try:
            if resource := self.cache.resource(key):
                reconciled = self._resources.get(key) or self._resources.setdefault(key, _Resource(self, key))
                result = await reconciled.reconcile(resource, first_attempt)
            else:  # the garbage collector deletes the children
                self._resources.pop(key, None)
                result = Result()
        except Exception as error:
            if isinstance(error, ApiError):
                self.metrics.api_errors.labels(str(error.status)).inc()
            self.metrics.reconciles.labels("error").inc()
            raise
        self.metrics.reconciles.labels("ok").inc()
        self.metrics.durations.observe(time.perf_counter() - start)
        return result


class _Resource:
    """Reconciles one resource, and remembers what earlier reconciles did."""

    def __init__(self, of: Reconciler, key: Key) -> None:
        self.client, self.cache, self.settings = of.client, of.cache, of.settings
        self.observe, self.metrics, self.key = of.observe, of.metrics, key
        self._conflicts = FieldConflicts(of.clock)
        self._events = EventRecorder(self.client, self.settings.pod_name)
        self._manifest_writes = ManifestWrites()
        self._departed: set[str] | None = None  # uids of pods that failed or were disrupted
        self._groups = GroupFailures()
        self._preempted = ""  # name of a pod whose place is not filled yet
        self._operators = OtherOperators(self.settings.status_manager)
        self._applier = Applier(
            self.client, self.cache, lambda verb: self.metrics.writes.labels(verb).inc(), self._conflicts
        )
        self._status_refusal = ""  # message of the last write if it was refused

    async def reconcile(self, resource: Obj, first_attempt: bool) -> Result:
        key = self.key
        children = await self._children(resource["metadata"]["uid"])
        observed = await self.observe(resource, children, self.cache.pods(key))
        plans: tuple[Callable[..., Plan], ...] = (plan, last_accepted)
        if resource["metadata"].get("deletionTimestamp"):
            plans = (plan_of_deleted, plan_of_deleted)
        else:
            observed = await self._prepare(observed)
        make_plan, make_earlier = (partial(one, settings=self.settings) for one in plans)
        outcome = await self._applier.apply(make_plan, make_earlier, observed)
        if outcome.writes:
            log.info("wrote or deleted %d children", outcome.writes, extra={"service": key})
        for ref, error in outcome.failures.items():
            log.warning("cannot write %s %s: %s", ref.kind, ref.name, error, extra={"service": key})
            if first_attempt:
                raise error
            self.metrics.api_errors.labels(str(error.status)).inc()
        annotate_after = await self._annotate_pods(outcome)
        if await self._write_status(outcome):
            return Result(requeue_after=0.0)
        observed = outcome.observed
        refused = any((observed.refusals, outcome.failures, observed.not_adopted, self._status_refusal))
        delays = (
            annotate_after,
            outcome.plan.requeue_seconds,
            self._conflicts.next_check(),
            self._operators.next_check(observed.now),
            UNSEEN_SECONDS if any(map(is_unseen, observed.pods)) else None,
        )
        return Result(refused, min((seconds for seconds in delays if seconds is not None), default=None))

    async def _prepare(self, observed: Observed) -> Observed:
        """Detects other writers, reports pods that departed, keeps lost replicas, and adopts orphans."""
        resource = observed.resource
        other = self._operators.observe(resource, observed.now)
        observed = replace(
            observed,
            replicas_manager=self._manifest_writes.observe(resource, observed.now),
            operators=sorted(name.partition("/")[2] for name in (other, self._operators.own)) if other else (),
        )
        if name := terminations.preempted(observed.pods):
            self._preempted = name
        elif all(is_scheduled(pod) for pod in observed.pods if is_live(pod)):
            self._preempted = ""
        observed = replace(
            observed, preempted=self._preempted, unstable=self._groups.observe(observed.pods, observed.now)
        )
        gone, told = terminations.departed(observed.pods), self._departed
        if told is not None:  # pods that departed under an earlier leader are not reported again
            await self._events.record(resource, terminations.departures(gone.values(), told), observed.now)
        self._departed = set(gone)
        observed = await self._keep_replicas(observed)
        observed, adopted = await adoption.adopt(self.client, self.cache, observed)
        if adopted:
            log.info("adopted %d objects", len(adopted), extra={"service": self.key})
            self.metrics.writes.labels("adopt").inc(len(adopted))
            await self._events.record(resource, [adoption.event(adopted)], observed.now)
        return observed

    async def _keep_replicas(self, observed: Observed) -> Observed:
        """Writes replicas that a manifest has lost back before a pod ends. They hold even if this write is refused."""
        kept, resource = other_writers.kept_replicas(observed), observed.resource
        if kept is None:
            return observed
        message = f"spec.replicas fell to its default while spec.autoscaling is set; {kept} replicas are kept"
        try:
            await self.client.patch_scale(*self.key, kept)
        except ApiError as error:
            if error.general:
                raise
            log.warning("cannot write spec.replicas: %s", error, extra={"service": self.key})
        else:
            self.metrics.writes.labels("scale").inc()
            await self._events.record(resource, [Event("Normal", REPLICAS_KEPT, message)], observed.now)
        return replace(observed, resource={**resource, "spec": {**resource["spec"], "replicas": kept}})

    async def _annotate_pods(self, outcome: Outcome) -> float | None:
        """Annotates pods with a changed list of adapters. Returns seconds to wait if the list was just written."""
        pods = adapters.outdated_pods(outcome.observed)
        if pods and outcome.writes:
            return adapters.PAUSE_SECONDS
        for pod in await adapters.annotate(self.client, outcome.observed, pods):
            self.metrics.writes.labels("annotate").inc()
            self.cache.put(PODS, pod)
        return None

    async def _children(self, uid: str) -> Mapping[Ref, Obj]:
        """Returns the cached children. Reads those again whose other owner blocks the plan."""
        children = self.cache.children(self.key)
        for ref, obj in list(children.items()):
            if controller_uid(obj) == uid or not is_own(ref, self.key.name):
                continue
            kind = kind_of(ref.api_version, ref.kind)
            try:
                children[ref] = await self.client.get(kind, self.key.namespace, ref.name)
                self.cache.put(kind, children[ref])
            except ApiError as error:
                if error.general:
                    raise
                if error.not_found:  # after other errors the cached object is reported
                    del children[ref]
                    self.cache.delete(kind, obj)
        return children

    async def _write_status(self, outcome: Outcome) -> bool:
        """Writes the status. Returns whether the answer shows another spec than the reconciled one.

        The answer is put into the cache, so that the later watch event changes nothing. The spec may differ because of
        an edit in the meantime. It may also have a field that the CustomResourceDefinition got recently, which watches
        that were opened before still omit.
        """
        observed, resource = outcome.observed, outcome.observed.resource
        old, new = section(resource, "status"), status(observed, outcome.plan)
        told = condition(resource, "Accepted").get("reason") == TWO_OPERATORS
        events: list[Event] = []
        try:
            written = None if observed.operators and told else await self._patch_status(resource, new)
            self._status_refusal = ""
        except ApiError as error:
            if error.not_found or error.conflict:
                log.info("the resource was deleted during the reconcile", extra={"service": self.key})
                self.cache.delete(DLMS, resource)
                return False
            if not error.refusal:
                raise
            events, new = self._status_refused(error), minimal(new)
            try:
                written = await self._patch_status(resource, new)
            except ApiError:
                await self._events.record(resource, events, observed.now)
                raise
        if written is None:
            await self._events.record(resource, events, observed.now)
            return False
        self.metrics.writes.labels("status").inc()
        same_labels = written["metadata"].get("labels") == resource["metadata"].get("labels")
        if same_labels:  # with other labels it may no longer match the watch's selector
            self.cache.put(DLMS, written, answered=True)
        await self._events.record(resource, [*events, *transitions(old, new)], observed.now)
        return same_labels and _user_fields(slim(DLMS, written)) != _user_fields(resource)

    async def _patch_status(self, resource: Obj, new: Obj) -> Obj | None:
        """Patches the status. Returns the resource of the answer, or None if nothing differs."""
        if not (patch := merge_patch(section(resource, "status"), new)):
            return None
        uid = resource["metadata"]["uid"]
        return await self.client.patch_status(*self.key, uid, patch, self.settings.status_manager)

    def _status_refused(self, error: ApiError) -> list[Event]:
        """Logs and counts a refused status. Returns an Event if the refusal is new."""
        self.metrics.status_refusals.inc()
        log.error("status refused by the API server, writing a minimal one: %s", error, extra={"service": self.key})
        before, self._status_refusal = self._status_refusal, error.message
        if before == error.message:
            return []
        sentence = f"the API server refused the status; only counts and short conditions are written: {error.message}"
        return [Event("Warning", STATUS_REFUSED, sentence)]


def _user_fields(resource: Obj) -> list[object]:
    """Returns the fields of the resource that users set."""
    meta = resource["metadata"]
    return [resource.get("spec"), *(meta.get(member) for member in ("annotations", "deletionTimestamp"))]
