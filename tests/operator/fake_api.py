"""An API server in memory with the reconciler of one resource, a clock, other clients and an admission webhook."""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.operator.samples import SETTINGS, edit
from unmask_operator.controller.reconciler import Reconciler, Result
from unmask_operator.kinds import DLMS, kind_of
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.metrics import Metrics
from unmask_operator.objects import FIELD_MANAGER, Key, Obj, Ref
from unmask_operator.plan.drift import written_form
from unmask_operator.plan.observed import Observed
from unmask_operator.settings import Settings

KEY = Key("default", "demo")
SERVICE, DEPLOYMENT = Ref("v1", "Service", "demo"), Ref("apps/v1", "Deployment", "demo")
DENIED = ApiError(401, "Unauthorized", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")
ARGOCD = "argocd-controller"
PATCHED = {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}

Change = Callable[[Obj], None]
Wrong = Callable[[str, Obj], ApiError | None]


def patched(deployment: Obj) -> bool:
    """Returns whether the pod template has the edit PATCHED."""
    return "a" in deployment["spec"]["template"]["metadata"].get("annotations", {})


def of(kind: str, *verbs: str, error: ApiError, form: Callable[[Obj], bool] = lambda obj: True) -> Wrong:
    """Returns a `wrong` of requests with these verbs for a kind. `form` may restrict it to some contents."""
    return lambda verb, obj: error if verb in verbs and obj["kind"] == kind and form(obj) else None


class FakeApi:
    """Fake API server whose objects are the children and pods of an observed state, as the operator wrote them.

    Attributes:
        objects: children and pods by Ref.
        resource: the resource.
        calls: verb and name of each request. Dry runs have the verbs dry-create, dry-apply and dry-replace.
        writes: verb and object of each write that succeeded. That of a status is its patch.
        wrong: returns the error of a request or None, by verb and object.
        mutate: changes every written object, as a mutating webhook does.
        now: time of the reconciler's clock.
    """

    def __init__(self, observed: Observed, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.observed, self.now, self.version = observed, 1000.0, 0
        self.objects = dict[Ref, Obj]()
        self.calls, self.writes = list[tuple[str, str]](), list[tuple[str, Obj]]()
        self.wrong: Wrong = lambda verb, obj: None
        self.mutate: Change = lambda obj: None
        self.resource = self.stored(observed.resource)
        children = map(written_form, observed.children.values())
        for obj in (*children, *observed.pods):
            self._store(obj)
        self.restart()

    def restart(self) -> None:
        """Continues with a new reconciler and cache, as a new leader does."""
        self.cache = Cache()
        self.cache.put(DLMS, self.resource)
        for obj in self.objects.values():
            self.cache.put(kind_of(obj["apiVersion"], obj["kind"]), obj)
        self.metrics = Metrics(self.cache, lambda: 0)
        client: Any = self
        self.reconciler = Reconciler(client, self.cache, self.settings, self._observe, self.metrics, lambda: self.now)

    def reconcile(self, first_attempt: bool = False) -> Result:
        """Reconciles the resource after the watches have reported deletions and changes of other clients."""
        for ref, obj in self.cache.children(KEY).items():
            if ref not in self.objects:
                self.cache.delete(kind_of(ref.api_version, ref.kind), obj)
        return asyncio.run(self.reconciler.reconcile(KEY, first_attempt))

    async def _observe(self, service: Obj, children: Any, pods: Any) -> Observed:
        return replace(self.observed, resource=service, children=children, pods=pods)

    def edit(self, **spec: Any) -> None:
        self.resource = self.stored(edit(replace(self.observed, resource=self.resource), **spec).resource)
        self.cache.put(DLMS, self.resource)

    def change(self, ref: Ref, change: Change, fields: Any = None, manager: str = ARGOCD) -> None:
        """Changes an object as another client, which then owns `fields`."""
        obj = copy.deepcopy(self.objects[ref])
        change(obj)
        entry = {"manager": manager, "operation": "Update", "fieldsV1": fields or {}, "time": "2026-01-01T00:00:02Z"}
        ours = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {}, "time": "2026-01-01T00:00:01Z"}
        obj["metadata"]["managedFields"] = [ours, entry]
        self.put(obj)

    def written(self, verb: str) -> list[Obj]:
        return [obj for done, obj in self.writes if done == verb]

    def events(self, reason: str) -> list[Obj]:
        return [obj for obj in self.written("create") if obj.get("reason") == reason]

    @property
    def scaled(self) -> list[int]:
        """The written numbers of replicas of the scale subresource."""
        return [obj["spec"]["replicas"] for obj in self.written("scale")]

    @property
    def conditions(self) -> dict[str, Obj]:
        return {condition["type"]: condition for condition in self.resource["status"]["conditions"]}

    def stored(self, obj: Obj) -> Obj:
        """Returns a copy of the object with the next version, and a uid if it has none."""
        self.version += 1
        new = copy.deepcopy(obj)
        new["metadata"] = {"uid": f"uid-{self.version}", **new["metadata"], "resourceVersion": str(self.version)}
        return new

    def put(self, obj: Obj) -> Obj:
        """Stores an object, which a watch reports. The operator's cache must have its own writes without that."""
        new = self._store(obj)
        self.cache.put(kind_of(new["apiVersion"], new["kind"]), new)
        return new

    def _store(self, obj: Obj) -> Obj:
        """Stores an object, except an Event."""
        new = self.stored(obj)
        if obj["kind"] != "Event":
            self.objects[Ref.of(obj)] = new
        return new

    def _request(self, verb: str, obj: Obj, name: str = "") -> None:
        self.calls.append((verb, name or obj["metadata"]["name"]))
        if error := self.wrong(verb, obj):
            raise error

    def _ask(self, verb: str, ref: Ref) -> Obj | None:
        """Makes a request without an object. Returns the object that it is about, or None if it does not exist."""
        live = self.objects.get(ref)
        self._request(verb, live or {"kind": ref.kind, "metadata": {"name": ref.name}})
        return live

    def _write(self, verb: str, obj: Obj, dry_run: bool, conflict: ApiError | None = None) -> Obj:
        mutated = copy.deepcopy(obj)
        self.mutate(mutated)
        self._request(f"dry-{verb}" if dry_run else verb, mutated)
        if conflict:
            raise conflict
        return mutated if dry_run else self._note(verb, self._store(mutated))

    def _note(self, verb: str, obj: Obj) -> Obj:
        self.writes.append((verb, obj))
        return obj

    # The methods of the operator's client

    async def get(self, kind: Any, namespace: str, name: str) -> Obj:
        if live := self._ask("get", Ref(kind.api_version, kind.kind, name)):
            return live
        raise ApiError(404, "NotFound", "gone")

    find: Any = Client.find

    async def create(self, obj: Obj, dry_run: bool = False) -> Obj:
        exists = ApiError(409, "AlreadyExists", "exists") if Ref.of(obj) in self.objects else None
        return self._write("create", obj, dry_run, exists)

    async def upgrade_managed_fields(self, live: Obj) -> Obj:
        return live

    async def apply(self, obj: Obj, uid: str, dry_run: bool = False) -> Obj:
        live = self.objects.get(Ref.of(obj))
        conflict = None if live and live["metadata"]["uid"] == uid else ApiError(409, "Conflict", "uid")
        return self._write("apply", {**obj, "metadata": {**obj["metadata"], "uid": uid}}, dry_run, conflict)

    async def replace_spec(self, live: Obj, spec: Obj, dry_run: bool = False) -> Obj:
        return self._write("replace", {**live, "spec": copy.deepcopy(spec)}, dry_run)

    async def delete(self, kind: Any, namespace: str, name: str, uid: str) -> None:
        live = self._ask("delete", ref := Ref(kind.api_version, kind.kind, name))
        if live and live["metadata"]["uid"] == uid:
            self._note("delete", self.objects.pop(ref))

    async def patch_workload_scale(self, kind: Any, namespace: str, name: str, uid: str, replicas: int) -> Obj:
        live = self._ask("scale", Ref(kind.api_version, kind.kind, name))
        assert live["metadata"]["uid"] == uid
        self._note("scale", self.put({**live, "spec": {**live["spec"], "replicas": replicas}}))
        return {"kind": "Scale"}

    async def patch_scale(self, namespace: str, name: str, replicas: int) -> Obj:
        self._request("patch_scale", self.resource)
        self.resource = self.stored({**self.resource, "spec": {**self.resource["spec"], "replicas": replicas}})
        return self._note("patch_scale", {"kind": "Scale"})

    async def annotate_pod(self, pod: Obj, annotations: Obj) -> Obj:
        self._request("annotate", pod)
        meta = {**pod["metadata"], "annotations": {**pod["metadata"].get("annotations", {}), **annotations}}
        return self._note("annotate", self._store({**self.objects[Ref("v1", "Pod", meta["name"])], "metadata": meta}))

    async def patch_status(self, namespace: str, name: str, uid: str, patch: Obj, manager: str) -> Obj:
        self._request("status", patch, name)
        self._note("status", patch)
        merged = {**(self.resource.get("status") or {}), **patch}
        status = {member: value for member, value in merged.items() if value is not None}
        self.resource = self.stored({**self.resource, "status": status})
        return self.resource
