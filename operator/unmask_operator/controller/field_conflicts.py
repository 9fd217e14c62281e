"""Fields of children that something else keeps changing: detects them, and repairs them less and less often.

A repair writes a field again that was as planned before. Several repairs of one field within half an hour are a
conflict with another field manager. A write whose own answer differs from what was sent is a conflict with admission: a
mutating webhook has no field manager. Everything here is in memory and belongs to one leader.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask_operator.objects import FIELD_MANAGER, GROUP, Key, Obj, Ref, digest
from unmask_operator.plan.drift import FieldPath, ListKey, differences, field_name
from unmask_operator.plan.observed import FieldConflict

APPLIED = f"{GROUP}/applied"  # annotation of a child: a digest of what was last written to it

REPAIRS = 3  # of one field, within WINDOW_SECONDS, make a conflict
WINDOW_SECONDS = 1800.0  # GitOps tools correct drift every 3 to 10 minutes
# Between repairs of a field in conflict; each pause is twice the one before, as from 1 s after the first repair.
FIRST_PAUSE_SECONDS = 2.0 ** (REPAIRS - 1)
LAST_PAUSE_SECONDS = 300.0
# With admission, which does the same to every write: it is tried again only to notice that it has stopped.
FIRST_ADMISSION_PAUSE_SECONDS = 30.0
LAST_ADMISSION_PAUSE_SECONDS = 3600.0
# A conflict ends once the field has stayed as written for so long, or for three times what the other one took to change
# it again, if that is longer.
SETTLED_SECONDS = 60.0

SHORTEST_LOOK_SECONDS = 0.1  # until the next reconcile for a conflict

REPLICAS: FieldPath = ("spec", "replicas")  # of a Deployment
OBJECT: FieldPath = ()  # stands for the object itself, which something else keeps deleting


@dataclass(slots=True)
class _Field:
    """What is known of one field.

    Attributes:
        repairs: times of the repairs within the window.
        written: time of the last write.
        pause: seconds without repairs after the last one; 0 without a conflict.
        reaction: the longest time from a write until the field was found changed.
        changed: whether it was changed when last looked at.
        manager: the other field manager, "" while none is known.
        by_admission: whether the answer to the last write differed from what was sent.
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
    written: str = ""  # digest of what was last written
    fields: dict[FieldPath, _Field] = field(default_factory=dict)


class FieldConflicts:
    """The memory of repairs, by resource. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._children: dict[Key, dict[Ref, _Child]] = {}

    def forget(self, key: Key) -> None:
        self._children.pop(key, None)

    def look(
        self, key: Key, planned: Iterable[Obj], live: Mapping[Ref, Obj], written_form: Callable[[Obj], Obj]
    ) -> None:
        """Compares the fields in memory with the live objects, before anything is written.

        Args:
            key: the resource.
            planned: its children.
            live: the objects of the cluster.
            written_form: returns a child as it is sent. It is called only for a child that has fields in memory.
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
                continue  # most children, and comparing them takes time in each reconcile
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
        """Whether the child is not to be written now: all that differs are fields in conflict, repaired just before.

        A child that is planned otherwise than it was last written is never held.
        """
        known = self._children.get(key, {}).get(Ref.of(child))
        if known is None or not self._was_written(known, child, live):
            return False
        now = self._clock()
        fields = [known.fields.get(path) for path in differences(child, live)]
        return all(one is not None and one.pause and now < one.due for one in fields)

    def is_contested(self, key: Key, child: Obj, live: Obj) -> bool:
        """Whether the next write of the child makes, or continues, a conflict: then the managers are of interest."""
        known = self._children.get(key, {}).get(Ref.of(child))
        if known is None or not self._was_written(known, child, live):
            return False
        fields = [known.fields.get(path) for path in differences(child, live)]
        return any(one is not None and len(self._recent(one)) + 1 >= REPAIRS for one in fields)

    def note_managers(self, key: Key, child: Obj, live: Obj) -> None:
        """Takes the other field managers from the `managedFields` of a live object as the API server has it."""
        known = self._children[key][Ref.of(child)]
        for path in differences(child, live):
            if path in known.fields:
                known.fields[path].manager = other_manager(live, path) or known.fields[path].manager

    def note_write(self, key: Key, child: Obj, live: Obj | None, answer: Obj) -> None:
        """Takes in a write of a child.

        Args:
            key: the resource.
            child: what was sent.
            live: the object before; None if it was created.
            answer: the object after, as the API server answered.
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
                del known.fields[path]  # admission lets it pass now
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
        """Takes in a deletion by the operator."""
        self._children.get(key, {}).pop(ref, None)

    def note_scale(self, key: Key, ref: Ref, replicas: int) -> None:
        """Takes in a write of a Deployment's replicas alone."""
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
        """Whether these replicas are not to be written now: something else has changed them again and again."""
        known = self._children.get(key, {}).get(ref)
        one = known.fields.get(REPLICAS) if known and known.written == f"replicas {replicas}" else None
        return one is not None and bool(one.pause) and self._clock() < one.due

    def of(self, key: Key) -> Sequence[FieldConflict]:
        """The conflicts of a resource."""
        return [
            FieldConflict(ref, field_name(path), one.manager, one.by_admission)
            for ref, known in sorted(self._children.get(key, {}).items())
            for path, one in sorted(known.fields.items(), key=lambda item: field_name(item[0]))
            if one.pause
        ]

    def next_look(self, key: Key) -> float | None:
        """Seconds until a repair is due again or a conflict may have ended; None without a conflict."""
        now = self._clock()
        contested = [
            one for child in self._children.get(key, {}).values() for one in child.fields.values() if one.pause
        ]
        looks = ((one.due if one.changed else one.settles) - now for one in contested)
        return min((max(seconds, SHORTEST_LOOK_SECONDS) for seconds in looks), default=None)

    def _recent(self, one: _Field) -> list[float]:
        return [at for at in one.repairs if at > self._clock() - WINDOW_SECONDS]

    @staticmethod
    def _was_written(known: _Child, child: Obj, live: Obj) -> bool:
        """Whether this form of the child was written before, so that a difference is no edit."""
        stamp = (live["metadata"].get("annotations") or {}).get(APPLIED)
        return _digest(child) in (known.written, stamp)


def _digest(child: Obj) -> str:
    return str((child["metadata"].get("annotations") or {}).get(APPLIED) or digest(child))


def other_manager(live: Mapping[str, Any], path: FieldPath) -> str:
    """The field manager, other than the operator, that owns a field; "" if `managedFields` has none.

    A field that was removed has no owner: then it is the other manager that wrote after the operator.
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
    """Whether a set of fields (FieldsV1) holds a path, or an atomic parent or a part of it."""
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
