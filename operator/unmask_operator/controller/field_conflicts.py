"""Counts repairs of children that another client keeps changing, and delays them at increasing intervals.

A repair is another write of a form that was written before. Several repairs of one child within half an hour are a
conflict. Values that admission replaces are a conflict too, although no write can repair them. The state is in memory,
per leader.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask_operator.objects import FIELD_MANAGER, Obj, Ref, digest
from unmask_operator.plan import drift
from unmask_operator.plan.drift import FieldPath, ListKey
from unmask_operator.plan.observed import FieldConflict

REPAIRS = 3  # repairs of one child within WINDOW_SECONDS that make a conflict
WINDOW_SECONDS = 1800.0  # GitOps tools correct drift every 3 to 10 minutes
# Pauses between repairs in a conflict. Each is twice the previous one, as if the first had been 1 s.
FIRST_PAUSE_SECONDS = 2.0 ** (REPAIRS - 1)
LAST_PAUSE_SECONDS = 300.0
# A conflict ends once the child has stayed unchanged for this time, or for three times the other client's reaction time
# if that is longer.
SETTLED_SECONDS = 60.0
# Between dry runs of a child in which admission replaces values: the webhook may have been removed.
TRIAL_SECONDS = 3600.0
MIN_CHECK_SECONDS = 0.1  # minimum until the next reconcile for a conflict


@dataclass(slots=True)
class _Child:
    """The state of one child.

    Attributes:
        form: digest of the last written form, or the replicas that were written alone.
        repairs: times of the repairs within the window.
        written: time of the last write.
        pause: seconds from the last write to the next repair; 0: no conflict.
        reaction: the longest time from a write until the child was found changed.
        changed: whether the child differed at the last comparison.
        fields: the paths that the last repair wrote; empty if the child was deleted.
        manager: the other field manager; "" if unknown.
        trial: digests of the last form and of the object that the API server made of it.
        tried: time of that answer.
        replaced: the paths that admission has replaced in it.
    """

    form: str = ""
    repairs: list[float] = field(default_factory=list)
    written: float = 0.0
    pause: float = 0.0
    reaction: float = 0.0
    changed: bool = False
    fields: Sequence[FieldPath] = ()
    manager: str = ""
    trial: tuple[str, str] = ("", "")
    tried: float = 0.0
    replaced: Sequence[FieldPath] = ()

    @property
    def due(self) -> float:
        return self.written + self.pause

    @property
    def settles(self) -> float:
        return self.written + max(SETTLED_SECONDS, 3 * self.reaction)


class FieldConflicts:
    """The state of repairs and conflicts of one resource.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._children: dict[Ref, _Child] = {}

    def observe(self, planned: Iterable[Obj], live: Mapping[Ref, Obj]) -> None:
        """Compares the children that were repaired with the live objects, before the writes of a reconcile."""
        now, known = self._clock(), self._children
        desired = {Ref.of(child): child for child in planned}
        for ref in known.keys() - desired.keys():
            del known[ref]
        for ref, one in known.items():
            if not one.repairs:
                continue  # true of most children, which would be slow to compare in each reconcile
            changed = ref not in live or self.differs(drift.written_form(desired[ref]), live[ref])
            if changed and not one.changed:
                one.reaction = max(one.reaction, now - one.written)
            one.changed = changed
            if one.pause and not changed and now >= one.settles:
                one.repairs, one.pause, one.reaction = [], 0.0, 0.0

    def differs(self, child: Obj, live: Obj) -> bool:
        """Returns whether the live object lacks a part of the child, unless a dry run has changed nothing."""
        if not drift.differs(child, live):
            return False
        one = self._of(child)
        is_over = bool(one.replaced) and self._clock() >= one.tried + TRIAL_SECONDS
        return is_over or one.trial != (_digest(child), digest(drift.content(live)))

    def note_trial(self, child: Obj, answer: Obj) -> None:
        """Records the answer to a write, or to a dry run that changed nothing."""
        one = self._children.setdefault(Ref.of(child), _Child())
        one.trial, one.tried = (_digest(child), digest(drift.content(answer))), self._clock()
        one.replaced = drift.replaced(child, answer)

    def was_written(self, child: Obj, live: Obj) -> bool:
        """Returns whether this form of the child was written before, so that a difference is not an edit."""
        return _digest(child) in (self._of(child).form, drift.applied_digest(live))

    def is_held(self, child: Obj, live: Obj) -> bool:
        """Returns whether to skip the write of a child: its conflict pause has not ended.

        A child whose plan has changed since the last write is never skipped.
        """
        one = self._of(child)
        return bool(one.pause) and self._clock() < one.due and self.was_written(child, live)

    def is_contested(self, child: Obj, live: Obj) -> bool:
        """Returns whether the next write of the child starts or continues a conflict, which needs the managers."""
        return len(self._recent(self._of(child))) + 1 >= REPAIRS and self.was_written(child, live)

    def note_managers(self, child: Obj, live: Obj) -> None:
        """Records the other field manager, from the `managedFields` of the live object on the API server."""
        one = self._children[Ref.of(child)]
        found = filter(None, (other_manager(live, path) for path in drift.differences(child, live)))
        one.manager = next(found, one.manager)

    def note_write(self, child: Obj, live: Obj | None, answer: Obj) -> None:
        """Records a write of a child. `live` is the object before it; None if it was created."""
        one, form = self._of(child), _digest(child)
        is_repair = one.form == form if live is None else self.was_written(child, live)
        self._note(Ref.of(child), form, list(drift.differences(child, live)) if live else [], is_repair)
        if drift.differs(child, answer):
            self.note_trial(child, answer)

    def note_delete(self, ref: Ref) -> None:
        """Records a deletion by the operator."""
        self._children.pop(ref, None)

    def note_scale(self, ref: Ref, replicas: int) -> None:
        """Records a write of only a Deployment's replicas."""
        form = _scale_form(replicas)
        known = self._children.get(ref)
        self._note(ref, form, [("spec", "replicas")], known is not None and known.form == form)

    def is_scale_held(self, ref: Ref, replicas: int) -> bool:
        """Returns whether to skip a write of these replicas: they are in conflict and the pause has not ended."""
        one = self._children.get(ref, _Child())
        return bool(one.pause) and one.form == _scale_form(replicas) and self._clock() < one.due

    def reported(self) -> Sequence[FieldConflict]:
        """Returns the conflicts of the resource."""
        found = []
        for ref, one in sorted(self._children.items()):
            names = sorted(map(drift.field_name, one.fields)) or [""]
            found += [FieldConflict(ref, name, one.manager) for name in names if one.pause]
            found += [FieldConflict(ref, drift.field_name(path), "", by_admission=True) for path in one.replaced]
        return found

    def next_check(self) -> float | None:
        """Returns seconds until the next repair or the possible end of a conflict, or None without a conflict."""
        now, children = self._clock(), self._children.values()
        times = [one.due if one.changed else one.settles for one in children if one.pause]
        times += [one.tried + TRIAL_SECONDS for one in children if one.replaced]
        return min((max(at - now, MIN_CHECK_SECONDS) for at in times), default=None)

    def _of(self, child: Obj) -> _Child:
        return self._children.get(Ref.of(child)) or _Child()

    def _recent(self, one: _Child) -> list[float]:
        return [at for at in one.repairs if at > self._clock() - WINDOW_SECONDS]

    def _note(self, ref: Ref, form: str, fields: Sequence[FieldPath], is_repair: bool) -> None:
        one = self._children.setdefault(ref, _Child())
        if is_repair:
            one.repairs, one.fields = [*self._recent(one), self._clock()], fields
            if len(one.repairs) >= REPAIRS:
                one.pause = min(max(FIRST_PAUSE_SECONDS, 2 * one.pause), LAST_PAUSE_SECONDS)
        one.form, one.written, one.changed, one.replaced = form, self._clock(), False, ()


def _digest(child: Obj) -> str:
    return drift.applied_digest(child) or digest(child)


def _scale_form(replicas: int) -> str:
    return f"replicas {replicas}"


def other_manager(live: Mapping[str, Any], path: FieldPath) -> str:
    """Returns the field manager, other than the operator, that owns a field; "" if `managedFields` has none.

    A removed field has no owner. Then the result is the other manager that wrote last after the operator.
    """
    entries = live["metadata"].get("managedFields") or ()
    others = [e for e in entries if e.get("manager") not in (None, FIELD_MANAGER) and e.get("subresource") != "status"]
    applied = max((str(e.get("time") or "") for e in entries if e.get("manager") == FIELD_MANAGER), default="")
    others.sort(key=lambda entry: str(entry.get("time") or ""), reverse=True)
    owners = [entry for entry in others if _owns(entry.get("fieldsV1") or {}, path)]
    later = [entry for entry in others if str(entry.get("time") or "") >= applied]
    for entry in owners or later:
        subresource = f" (subresource {entry['subresource']})" if entry.get("subresource") else ""
        return f"{entry['manager']}{subresource}"
    return ""


def _owns(fields: Mapping[str, Any], path: FieldPath) -> bool:
    """Returns whether a set of fields (FieldsV1) contains a path, an atomic parent or a part of it."""
    for part in path:
        names = [name for name in fields if _matches(name, part)]
        if not names:
            return False
        fields = fields[names[0]]
        if not fields.keys() - {"."}:
            return True
    return True


def _matches(name: str, part: str | ListKey) -> bool:
    if isinstance(part, str):
        return name == f"f:{part}"
    key = json.loads(name[2:]) if name.startswith("k:") else {}
    return bool(key.get(part.member) == part.value)
