"""A cache of resources, children and pods. Lists, watches and the operator's own writes update it."""

import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

from unmask_operator.api.service import without_nulls
from unmask_operator.kinds import DLMS, PODS, ApiKind
from unmask_operator.objects import FIELD_MANAGER, SERVICE_LABEL, Key, Obj, Ref

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # annotation with a copy of the resource as text
_OF_A_MANAGER = ("manager", "operation", "subresource")
MAX_TOMBSTONES = 5_000  # deletions in memory, so that no delayed answer restores a deleted object


class Cache:
    """Objects by kind, namespace and name.

    Objects with an older resource version than the cached one are ignored, so updates may arrive in any order.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._objects: dict[str, dict[Key, Obj]] = defaultdict(dict)  # by ApiKind.api
        # Objects of each resource, by ApiKind.api and name.
        self._by_resource: dict[Key, dict[tuple[str, str], Obj]] = defaultdict(dict)
        self._tombstones: OrderedDict[str, int] = OrderedDict()  # uid -> resource version of its deletion
        self._last_seen: dict[str, float] = {}

    def put(self, kind: ApiKind, obj: Mapping[str, Any], *, answered: bool = False) -> Key | None:
        """Stores an object. Returns the resource that it belongs to, or None if nothing changed.

        The answer to a request (`answered`) replaces the same version of a watch event: a watch that was opened before
        the CustomResourceDefinition got a new field omits that field.
        """
        self.mark_seen(kind)
        meta = obj["metadata"]
        name = Key.of(obj)
        if _version(obj) <= self._tombstones.get(meta["uid"], -1):
            return None
        cached = self._objects[kind.api].get(name)
        if cached is not None and _version(cached) >= _version(obj):
            fuller = answered and kind is DLMS and _version(cached) == _version(obj) and cached != slim(kind, obj)
            if not fuller:
                return None
        if cached is not None and cached["metadata"]["uid"] != meta["uid"]:
            self._add_tombstone(cached["metadata"]["uid"], _version(cached))
        slimmed = slim(kind, obj)
        self._objects[kind.api][name] = slimmed
        return self._index(kind, name, cached, slimmed)

    def delete(self, kind: ApiKind, obj: Mapping[str, Any]) -> Key | None:
        """Removes an object. Returns the resource that it belongs to, or None if nothing changed.

        A watch with a label selector also reports an object as deleted if it lost the label. It may return later, with
        a later version.
        """
        self.mark_seen(kind)
        meta = obj["metadata"]
        name = Key.of(obj)
        cached = self._objects[kind.api].get(name)
        self._add_tombstone(meta["uid"], _version(obj))
        if cached is None or cached["metadata"]["uid"] != meta["uid"] or _version(cached) > _version(obj):
            return None
        return self._remove(kind, name, cached)

    def replace(self, kind: ApiKind, namespace: str | None, listed: Set[tuple[Key, str]], version: int) -> set[Key]:
        """Removes the objects that a list does not have.

        Args:
            kind: The kind.
            namespace: The listed namespace; None: all.
            listed: Names and uids of the list.
            version: The list's resource version. Objects with a later version stay.

        Returns:
            The resources whose objects were removed.
        """
        changed = set()
        for name, cached in list(self._objects[kind.api].items()):
            inside = namespace is None or name.namespace == namespace
            if inside and (name, cached["metadata"]["uid"]) not in listed and _version(cached) <= version:
                # A kind that is not served has no list. Its objects may return with a later version.
                self._add_tombstone(cached["metadata"]["uid"], _version(cached) if version == sys.maxsize else version)
                changed.add(self._remove(kind, name, cached))
        self.mark_seen(kind)
        return {key for key in changed if key is not None}

    def mark_seen(self, kind: ApiKind) -> None:
        """Notes that the API server reported on the kind, even without a change."""
        self._last_seen[kind.api] = self._clock()

    def resource(self, key: Key) -> Obj | None:
        return self._objects[DLMS.api].get(key)

    def resources(self) -> Iterator[tuple[Key, Obj]]:
        yield from list(self._objects[DLMS.api].items())

    def holds(self, kind: ApiKind) -> bool:
        """Returns whether the cache has an object of the kind."""
        return bool(self._objects[kind.api])

    def children(self, key: Key) -> dict[Ref, Obj]:
        """Returns the objects with the resource's label, except pods."""
        objects = self._by_resource.get(key, {})
        return {Ref.of(obj): obj for (api, _), obj in objects.items() if api != PODS.api}

    def of_kind(self, kind: ApiKind) -> list[Obj]:
        """Returns all objects of a kind."""
        return list(self._objects[kind.api].values())

    def pods(self, key: Key) -> list[Obj]:
        objects = self._by_resource.get(key, {})
        return [obj for (api, _), obj in sorted(objects.items()) if api == PODS.api]

    def all_pods(self) -> Iterator[tuple[Key, Obj]]:
        """Yields the pods of all resources, each with its resource's key."""
        for key, _ in self.resources():
            for pod in self.pods(key):
                yield key, pod

    def ages(self) -> dict[str, float]:
        """Returns the seconds since the API server last reported on each kind."""
        now = self._clock()
        return {api: now - last_seen for api, last_seen in self._last_seen.items()}

    def _index(self, kind: ApiKind, name: Key, cached: Obj | None, slimmed: Obj) -> Key | None:
        if kind is DLMS:
            return name
        old, new = owner_key(cached) if cached else None, owner_key(slimmed)
        if old is not None and old != new:
            self._unindex(kind, old, name)
        if new is not None:
            self._by_resource[new][kind.api, name.name] = slimmed
        return new or old

    def _remove(self, kind: ApiKind, name: Key, cached: Obj) -> Key | None:
        del self._objects[kind.api][name]
        if kind is DLMS:
            return name
        key = owner_key(cached)
        if key is not None:
            self._unindex(kind, key, name)
        return key

    def _unindex(self, kind: ApiKind, key: Key, name: Key) -> None:
        self._by_resource[key].pop((kind.api, name.name), None)
        if not self._by_resource[key]:
            del self._by_resource[key]

    def _add_tombstone(self, uid: str, version: int) -> None:
        self._tombstones[uid] = max(version, self._tombstones.get(uid, -1))
        while len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)


def owner_key(obj: Mapping[str, Any]) -> Key | None:
    """Returns the resource that the object's service label names."""
    meta = obj["metadata"]
    resource = (meta.get("labels") or {}).get(SERVICE_LABEL)
    return Key(meta["namespace"], resource) if resource else None


def _version(obj: Mapping[str, Any]) -> int:
    return int(obj["metadata"]["resourceVersion"])


def slim(kind: ApiKind, obj: Mapping[str, Any]) -> Obj:
    """Returns the object without fields that the operator does not read: managed fields and the last applied object.

    Null fields of a resource's spec are removed. A resource keeps the managers of `spec.replicas`, and operators that
    write its status. Other kinds keep all managers, without their fields.
    """
    meta = dict(obj["metadata"])
    if kind is DLMS and isinstance(obj.get("spec"), dict):
        obj = {**obj, "spec": without_nulls(obj["spec"])}
    fields = meta.pop("managedFields", None)
    members: tuple[str, ...] = _OF_A_MANAGER
    if kind is DLMS:
        members = (*members, "time")
        fields = [f for f in fields or () if _writes_replicas(f) or _is_of_an_operator(f)]
    if fields and kind is not PODS:
        meta["managedFields"] = [{k: f[k] for k in members if k in f} for f in fields]  # a patch uses the index
    if LAST_APPLIED in (annotations := meta.get("annotations") or {}):
        meta["annotations"] = {name: text for name, text in annotations.items() if name != LAST_APPLIED}
    slimmed: Obj = _shared({"apiVersion": kind.api_version, "kind": kind.kind, **obj, "metadata": meta})
    return slimmed


def _writes_replicas(entry: Obj) -> bool:
    return "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})


def _is_of_an_operator(entry: Obj) -> bool:
    return entry.get("subresource") == "status" and str(entry.get("manager")).startswith(FIELD_MANAGER)


def _shared(value: Any) -> Any:
    """Returns an equal value with interned strings: most objects have the same ones."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {sys.intern(name): _shared(inner) for name, inner in value.items()}
    return [_shared(inner) for inner in value] if isinstance(value, list) else value
