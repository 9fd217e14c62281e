"""Applies a plan: children that differ from the live objects are sent as a dry run, then written."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from unmask_operator.controller.field_conflicts import FieldConflicts
from unmask_operator.kinds import kind_of
from unmask_operator.kube.cache import Cache, slim
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key, Obj, Ref, controller_uid
from unmask_operator.plan.drift import WRITTEN_ONCE, content, with_secondary_family, written_form
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan
from unmask_operator.render.groups import WORKLOADS
from unmask_operator.render.labels import adapters_config
from unmask_operator.render.model import IMAGES_UNAVAILABLE, images_dropped

# A revision records that its spec was accepted, and pods are made from revisions only. Neither is written if the other
# failed.
ATOMIC_GROUP = ("ControllerRevision", *WORKLOADS)

# Tries per reconcile. Each try that meets a conflict (an existing object, a deleted one, a refusal) plans again. The
# limit is above the number of children.
MAX_RETRIES = 20

# Validation errors of the API server for a field of which only one alternative may be set.
CLASH = re.compile("Duplicate value|may not specify more than|may not be specified when|cannot be both set")

log = logging.getLogger(__name__)

MakePlan = Callable[[Observed], Plan]


class OwnershipError(Exception):
    """A plan would change an object that the resource does not own. This is a bug, and nothing is written."""


@dataclass
class Outcome:
    """The result of applying a plan.

    Attributes:
        plan: the last plan.
        observed: the observed state after the writes.
        writes: number of objects written or deleted.
        failures: children whose request failed without a refusal. The others are written.
        refused: children in each form that the API server refused. A refused form is not sent again.
        written: children that were created or applied.
        created: children that were created.
    """

    plan: Plan
    observed: Observed
    writes: int = 0
    failures: dict[Ref, ApiError] = field(default_factory=dict)
    refused: dict[Ref, list[Obj]] = field(default_factory=dict)
    written: dict[Ref, Obj] = field(default_factory=dict)
    created: dict[Ref, Obj] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.observed.key

    def failed(self, ref: Ref, error: ApiError) -> None:
        """Records the failure of a child. Raises the error again if the API server as a whole failed."""
        if error.general:
            raise error
        self.failures[ref] = error
        self.observed = replace(self.observed, failures={**self.observed.failures, ref: error.message})

    def has_failed(self, ref: Ref) -> bool:
        in_failed_group = ref.kind in ATOMIC_GROUP and any(failed.kind in ATOMIC_GROUP for failed in self.failures)
        return in_failed_group or ref in self.failures

    def skips(self, child: Obj) -> bool:
        """Returns whether not to send the child: it failed, or was refused in this form."""
        return self.has_failed(Ref.of(child)) or child in self.refused.get(Ref.of(child), ())


@dataclass
class _Conflict:
    """Why a try stopped: the objects in place of children (None: deleted), and refusals by child."""

    children: dict[Ref, Obj | None] = field(default_factory=dict)
    refusals: dict[Ref, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.children or self.refusals)

    def update(self, observed: Observed) -> Observed:
        children = {ref: obj for ref, obj in {**observed.children, **self.children}.items() if obj is not None}
        return replace(observed, children=children, refusals={**observed.refusals, **self.refusals})


@dataclass(frozen=True)
class Applier:
    """Applies plans of one resource.

    Attributes:
        client: requests to the API server.
        cache: updated with every object that was written.
        count: called with the verb of each write.
        conflicts: the fields that other clients or admission webhooks keep changing.
        refused_writes: children whose last write was refused although their dry run was not. They are
            written first, so that each retry of the edit does not roll pods to its template and back.
    """

    client: Client
    cache: Cache
    count: Callable[[str], None]
    conflicts: FieldConflicts = field(default_factory=FieldConflicts)
    refused_writes: set[Ref] = field(default_factory=set)

    async def apply(self, make_plan: MakePlan, last_accepted: MakePlan, observed: Observed) -> Outcome:
        """Writes children that differ and deletes those that are not in the plan.

        All changes but the first are sent as a dry run before the first write. If the API server refuses a child, the
        spec changes nothing: the children of the last accepted spec are written instead, except refused ones. The
        workload's replicas are written in any case.

        Raises:
            ApiError: the API server as a whole does not answer.
        """
        outcome = await self._apply_with_retries(make_plan, last_accepted, observed)
        if not outcome.observed.refusals:
            self.refused_writes.clear()
        await self._scale(outcome)
        outcome.observed = replace(outcome.observed, conflicts=self.conflicts.reported())
        return outcome

    async def _apply_with_retries(self, make_plan: MakePlan, last_accepted: MakePlan, observed: Observed) -> Outcome:
        outcome, conflict = Outcome(make_plan(observed), observed), _Conflict()
        self.conflicts.observe(outcome.plan.children, observed.children)
        for _ in range(MAX_RETRIES):
            conflict = await self._apply_once(outcome)
            if not conflict:
                return outcome
            if conflict.refusals and not outcome.observed.refusals:
                await self._delete_refused(outcome)
            outcome.observed = conflict.update(outcome.observed)
            outcome.plan = last_accepted(outcome.observed) if outcome.observed.refusals else make_plan(outcome.observed)
        for ref in conflict.children:
            outcome.failed(ref, ApiError(409, "Conflict", "it changed during every try to write it"))
        return outcome

    async def _delete_refused(self, outcome: Outcome) -> None:
        """Deletes the ControllerRevision of a spec that was refused after the revision was created.

        The newest revision must be the last accepted spec. A dry run does not reach etcd, which limits the size of
        objects, so a refusal may come after it.
        """
        for ref, revision in outcome.created.items():
            if ref.kind in WRITTEN_ONCE and ref in outcome.observed.children and await self._delete(outcome, ref):
                self.cache.delete(kind_of(ref.api_version, ref.kind), revision)
                outcome.observed = _Conflict({ref: None}).update(outcome.observed)

    async def _delete(self, outcome: Outcome, ref: Ref) -> bool:
        """Deletes a live child. Returns whether that succeeded."""
        kind, uid = kind_of(ref.api_version, ref.kind), outcome.observed.children[ref]["metadata"]["uid"]
        try:
            await self.client.delete(kind, outcome.key.namespace, ref.name, uid)
        except ApiError as error:
            outcome.failed(ref, error)
            return False
        self.count("delete")
        if ref.kind == "EndpointSlice":  # no watch reports it, and nothing delays its deletion
            self.cache.delete(kind, outcome.observed.children[ref])
        self.conflicts.note_delete(ref)
        outcome.writes += 1
        return True

    async def _scale(self, outcome: Outcome) -> None:
        """Writes only the workload's replicas if its other fields could not be written.

        Suspending, scaling and the autoscaler must work even if the API server refuses other fields.
        """
        live, key = outcome.observed.deployment, outcome.key
        if not live or (ref := Ref.of(live)) in outcome.written:
            return
        replicas = outcome.plan.replicas
        if (live.get("spec") or {}).get("replicas", replicas) == replicas:
            return
        planned = next((written_form(child) for child in outcome.plan.children if Ref.of(child) == ref), None)
        if planned is not None and not outcome.skips(planned):
            return  # only the pause of a conflict delays it
        if self.conflicts.is_scale_held(ref, replicas):
            return
        try:
            kind = kind_of(ref.api_version, ref.kind)
            await self.client.patch_workload_scale(kind, key.namespace, ref.name, live["metadata"]["uid"], replicas)
        except ApiError as error:
            if error.not_found or error.conflict:
                return  # deleted in the meantime; a watch reports it
            before = outcome.observed.failures.get(ref)
            sentence = f"{f'{before}; ' if before else ''}its replicas cannot be written either: {error.message}"
            outcome.failed(ref, ApiError(error.status, error.reason, sentence, error.retry_after))
        else:
            self.count("scale")
            self.conflicts.note_scale(ref, replicas)
            outcome.writes += 1

    async def _apply_once(self, outcome: Outcome) -> _Conflict:
        """Writes the differences from the plan once. Returns the conflict that stopped it, if there was one."""
        live, conflict = outcome.observed.children, _Conflict()
        planned = [written_form(child) for child in outcome.plan.children]
        due = [child for child in planned if await self._is_due(outcome, child)]
        changes = _ordered(due, outcome.observed, self.refused_writes)
        trials = [child for child in changes[1:] if child["kind"] not in WRITTEN_ONCE]
        for child in changes:
            existing = live.get(Ref.of(child))
            if existing is not None and controller_uid(existing) != outcome.observed.uid:
                raise OwnershipError(f"the plan overwrites {Ref.of(child)}, which another owner controls")
        for child in trials:  # all of them, so that all refusals are reported together
            await self._write(outcome, child, conflict, dry_run=True)
        for child in changes[:1] if conflict else changes:
            await self._write(outcome, child, conflict, dry_run=bool(conflict))
            if conflict:
                return conflict
        for ref in outcome.plan.delete:
            if controller_uid(outcome.observed.children[ref]) != outcome.observed.uid:
                raise OwnershipError(f"the plan deletes {ref}, which another owner controls")
            if not outcome.has_failed(ref):
                await self._delete(outcome, ref)
        return conflict

    async def _is_due(self, outcome: Outcome, child: Obj) -> bool:
        """Returns whether to write a child now: the write changes something, and no earlier result forbids it.

        If an object differs from the form that was written, the answer to a dry run decides: the API server stores some
        values in another form.
        """
        live = outcome.observed.children.get(Ref.of(child))
        if live is None or outcome.skips(child):
            return not outcome.skips(child)
        if not self.conflicts.differs(child, live) or self.conflicts.is_held(child, live):
            return False
        if child["kind"] in WRITTEN_ONCE or not self.conflicts.was_written(child, live):
            return True
        try:
            stored = await self.client.apply(with_secondary_family(child, live), live["metadata"]["uid"], dry_run=True)
        except ApiError as error:
            if error.general:
                raise
            return True  # the write tells the error
        if content(slim(kind_of(child["apiVersion"], child["kind"]), stored)) != content(live):
            return True
        self.conflicts.note_trial(child, live)
        return False

    async def _write(self, outcome: Outcome, child: Obj, conflict: _Conflict, dry_run: bool) -> None:
        if outcome.has_failed(Ref.of(child)):
            return
        try:
            await self._send(outcome, child, conflict, dry_run)
        except ApiError as error:
            outcome.failed(Ref.of(child), error)

    async def _send(self, outcome: Outcome, child: Obj, conflict: _Conflict, dry_run: bool) -> None:
        ref = Ref.of(child)
        live = outcome.observed.children.get(ref)
        if live is not None and not dry_run and self.conflicts.is_contested(child, live):
            await self._note_managers(outcome.key, child)
        try:
            if live is None:
                written = await self.client.create(child, dry_run)
            else:
                owned = await self.client.upgrade_managed_fields(live)  # without it a dry run would find fields twice
                outcome.observed = _Conflict({ref: owned}).update(outcome.observed)
                written = await self._apply_child(child, owned, dry_run)
        except ApiError as error:
            if error.exists or error.conflict:
                conflict.children[ref] = await self.client.find(kind_of(ref.api_version, ref.kind), *Key.of(child))
            elif error.refusal:
                log.warning("%s %s refused: %s", ref.kind, ref.name, error, extra={"service": outcome.key})
                outcome.refused.setdefault(ref, []).append(child)
                if not dry_run:
                    self.refused_writes.add(ref)
                conflict.refusals[ref] = error.message
            else:
                raise
            return
        if dry_run and images_dropped(child, written):
            outcome.refused.setdefault(ref, []).append(child)
            conflict.refusals[ref] = IMAGES_UNAVAILABLE
        if not dry_run:
            kind = kind_of(ref.api_version, ref.kind)
            self.cache.put(kind, written)
            self.count("create" if live is None else "apply")
            outcome.written[ref] = written
            if live is None:
                outcome.created[ref] = written
            self.conflicts.note_write(child, live, slim(kind, written))
            outcome.observed = _Conflict({ref: written}).update(outcome.observed)
            outcome.writes += 1

    async def _apply_child(self, child: Obj, live: Obj, dry_run: bool) -> Obj:
        """Applies a child. If another client set the alternative of a field, the spec is replaced first.

        Server-side apply keeps fields of other managers. For example, it would combine an httpGet with an exec, an
        emptyDir with a hostPath, or two ports of one name, and the API server rejects such an object.
        """
        uid, child = live["metadata"]["uid"], with_secondary_family(child, live)
        try:
            return await self.client.apply(child, uid, dry_run)
        except ApiError as error:
            if error.status != 422 or "spec" not in child or not CLASH.search(error.message):
                raise
        replaced = await self.client.replace_spec(live, child["spec"], dry_run)
        if dry_run:
            return replaced
        await self.client.upgrade_managed_fields(replaced)
        return await self.client.apply(child, uid)

    async def _note_managers(self, key: Key, child: Obj) -> None:
        """Reads the field managers of a child, which are not in the cache. After an error they stay unknown."""
        kind, meta = kind_of(child["apiVersion"], child["kind"]), child["metadata"]
        try:
            live = await self.client.get(kind, meta["namespace"], meta["name"])
        except ApiError as error:
            sentence = "cannot read the field managers of %s %s: %s"
            log.info(sentence, child["kind"], meta["name"], error, extra={"service": key})
        else:
            self.conflicts.note_managers(child, live)


def _ordered(changes: list[Obj], observed: Observed, refused: Collection[Ref]) -> list[Obj]:
    """Returns the changes in the order of their writes.

    For a new resource this is the order of rendering: dependencies of pods precede the workload. In an edit the
    revision and the workload follow these dependencies directly. They are the most likely ones to be refused, and no
    other child has changed then. Children in `refused` precede all others, the revision and the workload together.
    """
    is_edit = any(ref.kind in WORKLOADS for ref in observed.children)
    kinds = ATOMIC_GROUP if any(ref.kind in ATOMIC_GROUP for ref in refused) else ()

    def position(child: Obj) -> int:
        if Ref.of(child) in refused or child["kind"] in kinds:
            return 0
        needed = child["kind"] in ("ServiceAccount", "ConfigMap")
        is_list = child["metadata"]["name"] == adapters_config(observed.name)
        if not is_edit or (needed and not (is_list and Ref.of(child) in observed.children)):
            return 1
        return 2 if child["kind"] in ATOMIC_GROUP else 3

    return sorted(changes, key=position)
