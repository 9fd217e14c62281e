"""Detects fields of children that another client keeps changing, and repairs them at increasing intervals.

A repair is another write of a field that matched the plan before. Several repairs of one field within half an hour are
a conflict with another field manager. If the answer to a write differs from the request, the conflict is with
admission: a mutating webhook has no field manager. The state is in memory, per leader.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask_operator.objects import FIELD_MANAGER, GROUP, Key, Obj, Ref, digest
from unmask_operator.plan.drift import FieldPath, ListKey, differences, field_name
from unmask_operator.plan.observed import FieldConflict

APPLIED = f"{GROUP}/applied"  # annotation of a child: digest of the last written form

REPAIRS = 3  # repairs of one field within WINDOW_SECONDS that make a conflict
WINDOW_SECONDS = 1800.0  # GitOps tools correct drift every 3 to 10 minutes
# Pauses between repairs of a field in conflict. Each is twice the previous one, as if the first had been 1 s.
FIRST_PAUSE_SECONDS = 2.0 ** (REPAIRS - 1)
LAST_PAUSE_SECONDS = 300.0
# Pauses in a conflict with admission, which changes every write. Retries only detect that it has stopped.
FIRST_ADMISSION_PAUSE_SECONDS = 30.0
LAST_ADMISSION_PAUSE_SECONDS = 3600.0
# A conflict ends once the field has stayed unchanged for this time, or for three times the other client's reaction time
# if that is longer.
SETTLED_SECONDS = 60.0

MIN_CHECK_SECONDS = 0.1  # minimum until the next reconcile for a conflict

REPLICAS: FieldPath = ("spec", "replicas")  # of a Deployment
OBJECT: FieldPath = ()  # the object itself, which another client keeps deleting


@dataclass(slots=True)
class _Field:
    """The state of one field.

    Attributes:
        repairs: times of the repairs within the window.
        written: time of the last write.
        pause: seconds from the last write to the next repair; 0: no conflict.
        reaction: the longest time from a write until the field was found changed.
        changed: whether the field differed at the last comparison.
        manager: the other field manager; "" if unknown.
        by_admission: whether the answer to the last write differed from the request.
    """

    repairs: list[float] = field(default_factory=list)
    written: float = 0.0
    pause: float = 0.0
    reaction: float = 0.0
    changed: bool = True
    manager: str = ""
    by_admission: bool = False

    @property
    def due(self) -> float:
        return self.written + self.pause

    @property
    def settles(self) -> float:
        return self.written + max(SETTLED_SECONDS, 3 * self.reaction)


@dataclass(slots=True)
class _Child:
    written: str = ""  # digest of the last written form
    fields: dict[FieldPath, _Field] = field(default_factory=dict)


class FieldConflicts:
    """The state of repairs and conflicts by resource.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._children: dict[Key, dict[Ref, _Child]] = {}

    def forget(self, key: Key) -> None:
        """Removes the state of a resource."""
        self._children.pop(key, None)

    def observe(
        self, key: Key, planned: Iterable[Obj], live: Mapping[Ref, Obj], written_form: Callable[[Obj], Obj]
    ) -> None:
        """Compares the fields in memory with the live objects, before the writes of a reconcile.

        Args:
            key: the resource.
            planned: the planned children.
            live: the live objects.
            written_form: returns a child in the form that is sent. It is called only for children with fields in
                memory.
        """
        now, known = self._clock(), self._children.get(key)
        if not known:
            return
        desired = {Ref.of(child): child for child in planned}
        for ref in list(known):
            if ref not in desired:
                del known[ref]
                continue
            if not known[ref].fields:
                continue  # true of most children, which would be slow to compare in each reconcile
            changed = {OBJECT} if ref not in live else set(differences(written_form(desired[ref]), live[ref]))
            for path, one in list(known[ref].fields.items()):
                if path in changed and not one.changed:
                    one.reaction = max(one.reaction, now - one.written)
                one.changed = path in changed
                ended = now >= one.settles if one.pause else now > one.written + WINDOW_SECONDS
                gone = ref not in live and path != OBJECT
                if gone or (not one.changed and (one.by_admission or ended)):
                    del known[ref].fields[path]

    def is_held(self, key: Key, child: Obj, live: Obj) -> bool:
        """Returns whether to skip the write of a child: it differs only in fields whose conflict pause has not ended.

        A child whose plan has changed since the last write is never skipped.
        """
        known = self._children.get(key, {}).get(Ref.of(child))
        if known is None or not self._was_written(known, child, live):
            return False
        now = self._clock()
        fields = [known.fields.get(path) for path in differences(child, live)]
        return all(one is not None and one.pause and now < one.due for one in fields)

    def is_contested(self, key: Key, child: Obj, live: Obj) -> bool:
        """Returns whether the next write of the child starts or continues a conflict, which needs the managers."""
        known = self._children.get(key, {}).get(Ref.of(child))
        if known is None or not self._was_written(known, child, live):
            return False
        fields = [known.fields.get(path) for path in differences(child, live)]
        return any(one is not None and len(self._recent(one)) + 1 >= REPAIRS for one in fields)

    def note_managers(self, key: Key, child: Obj, live: Obj) -> None:
        """Records the other field managers, from the `managedFields` of the live object on the API server."""
        known = self._children[key][Ref.of(child)]
        for path in differences(child, live):
            if path in known.fields:
                known.fields[path].manager = other_manager(live, path) or known.fields[path].manager

    def note_write(self, key: Key, child: Obj, live: Obj | None, answer: Obj) -> None:
        """Records a write of a child.

        Args:
            key: the resource.
            child: the object that was sent.
            live: the object before the write; None if it was created.
            answer: the object in the API server's answer.
        """
        now, known = self._clock(), self._children.setdefault(key, {}).setdefault(Ref.of(child), _Child())
        rejected = set(differences(child, answer))
        if live is None:
            repaired = {OBJECT} & known.fields.keys()
        else:
            repaired = set(differences(child, live)) if self._was_written(known, child, live) else set()
        known.written = _digest(child)
        fields = {*known.fields, *repaired, *rejected}
        for path in fields | {OBJECT} if live is None else fields - {OBJECT}:
            if path in known.fields and known.fields[path].by_admission and path not in rejected:
                del known.fields[path]  # admission no longer changes it
                continue
            one = known.fields.setdefault(path, _Field())
            if path in repaired:
                one.repairs = [*self._recent(one), now]
            one.by_admission = path in rejected
            one.changed = one.by_admission
            if one.by_admission:
                first, last = FIRST_ADMISSION_PAUSE_SECONDS, LAST_ADMISSION_PAUSE_SECONDS
            else:
                first, last = FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS
            if one.by_admission or (path in repaired and len(one.repairs) >= REPAIRS):
                one.pause = min(max(first, 2 * one.pause), last)
            one.written = now

    def note_delete(self, key: Key, ref: Ref) -> None:
        """Records a deletion by the operator."""
        self._children.get(key, {}).pop(ref, None)

    def note_scale(self, key: Key, ref: Ref, replicas: int) -> None:
        """Records a write of only a Deployment's replicas."""
        now = self._clock()
        known = self._children.setdefault(key, {}).setdefault(ref, _Child())
        one = known.fields.setdefault(REPLICAS, _Field())
        again = f"replicas {replicas}"
        if known.written == again:
            one.repairs = [*self._recent(one), now]
        if len(one.repairs) >= REPAIRS:
            one.pause = min(max(FIRST_PAUSE_SECONDS, 2 * one.pause), LAST_PAUSE_SECONDS)
        known.written, one.written, one.changed = again, now, False

    def is_scale_held(self, key: Key, ref: Ref, replicas: int) -> bool:
        """Returns whether to skip a write of these replicas: they are in conflict and the pause has not ended."""
        known = self._children.get(key, {}).get(ref)
        one = known.fields.get(REPLICAS) if known and known.written == f"replicas {replicas}" else None
        return one is not None and bool(one.pause) and self._clock() < one.due

    def of(self, key: Key) -> Sequence[FieldConflict]:
        """Returns the conflicts of a resource."""
        return [
            FieldConflict(ref, field_name(path), one.manager, one.by_admission)
            for ref, known in sorted(self._children.get(key, {}).items())
            for path, one in sorted(known.fields.items(), key=lambda item: field_name(item[0]))
            if one.pause
        ]

    def next_check(self, key: Key) -> float | None:
        """Returns seconds until the next repair or the possible end of a conflict, or None without a conflict."""
        now = self._clock()
        contested = [
            one for child in self._children.get(key, {}).values() for one in child.fields.values() if one.pause
        ]
        delays = ((one.due if one.changed else one.settles) - now for one in contested)
        return min((max(seconds, MIN_CHECK_SECONDS) for seconds in delays), default=None)

    def _recent(self, one: _Field) -> list[float]:
        return [at for at in one.repairs if at > self._clock() - WINDOW_SECONDS]

    @staticmethod
    def _was_written(known: _Child, child: Obj, live: Obj) -> bool:
        """Returns whether this form of the child was written before, so that a difference is not an edit."""
        stamp = (live["metadata"].get("annotations") or {}).get(APPLIED)
        return _digest(child) in (known.written, stamp)


def _digest(child: Obj) -> str:
    return str((child["metadata"].get("annotations") or {}).get(APPLIED) or digest(child))


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
    if not name.startswith("k:"):
        return False
    try:
        return bool(json.loads(name[2:]).get(part.member) == part.value)
    except (ValueError, AttributeError):
        return False
