"""An API server in memory for reconciles of one resource."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.operator.samples import SETTINGS
from unmask_operator.controller.reconciler import Reconciler, Result
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import DLMS, PODS, kind_of
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Key, Obj, Ref
from unmask_operator.plan.observed import Observed

KEY = Key("default", "demo")


class FakeApi:
    """Accepts every write, and reconciles the resource of an observed state with it.

    Attributes:
        writes: the objects of successful writes, each with its verb.
        refuse: returns the error of a write, or None.
        cache: the operator's cache, with the observed objects.
    """

    def __init__(self, observed: Observed) -> None:
        self.observed, self.cache, self.version = observed, Cache(), 0
        self.writes = list[tuple[str, Obj]]()
        self.refuse: Callable[[str, Obj], ApiError | None] = lambda verb, obj: None
        self.metrics = Metrics(self.cache, lambda: 0)
        self.resource = self._stored(observed.resource)
        self.cache.put(DLMS, self.resource)
        for obj in observed.children.values():
            self.cache.put(kind_of(obj["apiVersion"], obj["kind"]), self._stored(obj))
        for pod in observed.pods:
            self.cache.put(PODS, self._stored(pod))
        self.restart()

    def restart(self) -> None:
        """Continues with a new reconciler, as after a restart of the operator."""
        self.reconciler = Reconciler(self, self.cache, SETTINGS, self._observe, self.metrics)  # type: ignore[arg-type]

    def reconcile(self) -> Result:
        return asyncio.run(self.reconciler.reconcile(KEY))

    def events(self, reason: str) -> list[Obj]:
        return [obj for verb, obj in self.writes if verb == "create" and obj.get("reason") == reason]

    async def _observe(self, service: Obj, children: Any, pods: Any) -> Observed:
        return replace(self.observed, resource=service, children=children, pods=pods)

    def _stored(self, obj: Obj) -> Obj:
        self.version += 1
        meta = {"uid": f"uid-{self.version}", "namespace": KEY.namespace, **obj["metadata"]}
        return {**obj, "metadata": {**meta, "resourceVersion": str(self.version)}}

    def _write(self, verb: str, obj: Obj) -> None:
        if error := self.refuse(verb, obj):
            raise error
        self.writes.append((verb, obj))

    async def create(self, obj: Obj, dry_run: bool = False) -> Obj:
        if not dry_run:
            self._write("create", obj)
        return self._stored(obj)

    async def upgrade_managed_fields(self, live: Obj) -> Obj:
        return live

    async def apply(self, obj: Obj, uid: str, dry_run: bool = False) -> Obj:
        if not dry_run:
            self._write("apply", obj)
        return self._stored(obj)

    async def delete(self, kind: Any, namespace: str, name: str, uid: str) -> None:
        gone = self.cache.children(KEY)[Ref(kind.api_version, kind.kind, name)]
        self._write("delete", gone)
        self.cache.delete(kind, self._stored(gone))  # as the watch reports it

    async def annotate_pod(self, pod: Obj, annotations: Obj) -> Obj:
        self._write("annotate", pod)
        meta = {**pod["metadata"], "annotations": {**pod["metadata"].get("annotations", {}), **annotations}}
        return self._stored({**pod, "metadata": meta})

    async def patch_status(self, namespace: str, name: str, uid: str, patch: Obj) -> Obj:
        self._write("status", patch)
        merged = {**self.resource.get("status", {}), **patch}
        status = {member: value for member, value in merged.items() if value is not None}
        self.resource = self._stored({**self.resource, "status": status})
        return self.resource
