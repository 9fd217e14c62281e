"""What is asked of the API server: plain objects are read and written, and nothing is known of reconciling."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import LEASES, PODS, SERVICES, ApiKind, kind_of
from unmask_operator.client.session import Session
from unmask_operator.objects import FIELD_MANAGER, Obj
from unmask_operator.state.drift import Clash

PAGE = 100  # objects of one answer to a list: parsing it must neither hold the event loop up nor take much memory
LIST_TRIES = 5  # how often a list is begun

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"  # JSON is YAML


class Client(Session):
    """What is asked of the API server. Every method raises ApiError."""

    async def get(self, kind: ApiKind, namespace: str, name: str) -> Obj:
        return await self.request("GET", kind.path(namespace, name))

    async def list(
        self,
        kind: ApiKind,
        namespace: str | None = None,
        selector: str = "",
        fields: str = "",
        keep: Callable[[Obj], Obj] = lambda item: item,
        page: int = PAGE,
    ) -> tuple[Sequence[Obj], int]:
        """The objects of a namespace (of the cluster for None), as they are now, and the list's resource version.

        They come page by page, and of each only what `keep` makes of it is held on to. A list that the server could not
        keep until its last page (410) is begun anew.
        """
        asked = {"labelSelector": selector, "fieldSelector": fields, "limit": str(page)}
        asked = {name: text for name, text in asked.items() if text}
        for _ in range(LIST_TRIES - 1):
            try:
                return await self._pages(kind, kind.path(namespace), asked, keep)
            except ApiError as error:
                if error.status != 410:
                    raise
        return await self._pages(kind, kind.path(namespace), asked, keep)

    async def _pages(
        self, kind: ApiKind, path: str, asked: Mapping[str, str], keep: Callable[[Obj], Obj]
    ) -> tuple[Sequence[Obj], int]:
        kept: Sequence[Obj] = ()
        further: Mapping[str, str] = {}
        while True:
            answer = await self.request("GET", path, params={**asked, **further})
            page = answer.get("items") or ()
            kept = [*kept, *(keep({"apiVersion": kind.api_version, "kind": kind.kind, **item}) for item in page)]
            meta = answer["metadata"]
            if not meta.get("continue"):
                return kept, int(meta["resourceVersion"])
            further = {"continue": meta["continue"]}

    async def create(self, obj: Obj, dry_run: bool = False) -> Obj:
        """A POST, which takes over nothing that exists. Unknown fields are refused."""
        kind = kind_of(obj["apiVersion"], obj["kind"])
        return await self.request("POST", kind.path(obj["metadata"]["namespace"]), params=_strict(dry_run), body=obj)

    async def apply(self, obj: Obj, uid: str, dry_run: bool = False) -> Obj:
        """Server-side apply onto the object with that uid; ApiError.conflict when it is gone or another one."""
        kind = kind_of(obj["apiVersion"], obj["kind"])
        meta = obj["metadata"]
        body = {**obj, "metadata": {**meta, "uid": uid}}
        path = kind.path(meta["namespace"], meta["name"])
        return await self.request("PATCH", path, {**_strict(dry_run), "force": "true"}, body, APPLY)

    async def own_created_fields(self, live: Obj) -> Obj:
        """Turn what creating `live` left in its managedFields into an apply's, so that applying can remove fields.

        A POST makes its field manager the owner of all fields by an entry of operation Update, and an apply by the same
        manager adds an entry of its own beside it: fields left out later would live on, owned by the older entry. Where
        an apply has added one already (see `replace`), the older entry is removed.
        """
        entries = live["metadata"].get("managedFields", ())
        applied = any(is_applied_entry(entry) for entry in entries)
        for i, entry in enumerate(entries):
            if is_created_entry(entry):
                at = f"/metadata/managedFields/{i}"
                change = {"op": "remove", "path": at}
                if not applied:
                    change = {"op": "replace", "path": f"{at}/operation", "value": "Apply"}
                tests = [
                    {"op": "test", "path": f"{at}/manager", "value": FIELD_MANAGER},
                    {"op": "test", "path": f"{at}/operation", "value": "Update"},
                ]
                return await self._patch_json(live, [*tests, change])
        return live

    async def replace(self, live: Obj, clashes: Sequence[Clash], dry_run: bool = False) -> Obj:
        """Replaces values of a live object with what others own in them, which server-side apply would keep."""
        tests = [{"op": "test", "path": clash.pointer, "value": clash.live} for clash in clashes]
        changes = [{"op": "replace", "path": clash.pointer, "value": clash.desired} for clash in clashes]
        return await self._patch_json(live, [*tests, *changes], dry_run)

    async def _patch_json(self, live: Obj, patch: Sequence[Obj], dry_run: bool = False) -> Obj:
        """A JSON patch of the object as it was seen; ApiError.conflict if it is another one, or a test fails."""
        kind, meta = kind_of(live["apiVersion"], live["kind"]), live["metadata"]
        same = {"op": "test", "path": "/metadata/uid", "value": meta["uid"]}
        path = kind.path(meta["namespace"], meta["name"])
        try:
            return await self.request("PATCH", path, _strict(dry_run), [same, *patch], JSON_PATCH)
        except ApiError as error:
            invalid = error.denied or " is invalid: " in error.message
            if error.status == 422 and not invalid:  # a test failed: the object is not as it was seen
                raise ApiError(409, "Conflict", error.message) from error
            raise

    async def discovers(self, kind: ApiKind) -> bool:
        """Whether the API server's discovery shows a kind of an API group, which may lag behind the kind itself."""
        groups = await self.request("GET", "/apis")
        if kind.group not in {group["name"] for group in groups["groups"]}:
            return False
        resources = await self.request("GET", kind.root)
        return kind.plural in {resource["name"] for resource in resources["resources"]}

    async def delete(self, kind: ApiKind, namespace: str, name: str, uid: str) -> None:
        """Delete the object with that uid; one that is gone already, or another one of its name, is left as it is."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self.request("DELETE", kind.path(namespace, name), body=body)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    async def patch_status(self, namespace: str, name: str, uid: str, patch: Obj) -> Obj:
        """A merge patch of the resource's status; the uid keeps it off a new resource of the same name."""
        path = SERVICES.path(namespace, name, "status")
        body = {"metadata": {"uid": uid}, "status": patch}
        return await self.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, MERGE)

    async def annotate_pod(self, pod: Obj, annotations: Mapping[str, str]) -> Obj:
        """A merge patch of a pod's annotations, through its status: whoever may patch that can change nothing that
        a pod runs. The uid keeps it off a new pod of the same name."""
        meta = pod["metadata"]
        path = PODS.path(meta["namespace"], meta["name"], "status")
        body = {"metadata": {"uid": meta["uid"], "annotations": dict(annotations)}}
        return await self.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, MERGE)

    async def patch_scale(self, namespace: str, name: str, replicas: int) -> Obj:
        """Write the resource's replicas through its scale subresource, as HPA and `kubectl scale` do."""
        path = SERVICES.path(namespace, name, "scale")
        body = {"spec": {"replicas": replicas}}
        return await self.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, MERGE)

    async def patch_deployment_scale(self, namespace: str, name: str, uid: str, replicas: int) -> Obj:
        """Writes `spec.replicas` of the Deployment with that uid through its scale subresource, and nothing else.

        Validation and admission of the Deployment's other fields do not apply to it. ApiError.conflict if the uid is
        another one.
        """
        path = kind_of("apps/v1", "Deployment").path(namespace, name, "scale")
        body = {"metadata": {"uid": uid}, "spec": {"replicas": replicas}}
        return await self.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, MERGE)

    async def update_lease(self, lease: Obj, timeout: float) -> Obj:
        """A PUT, which fails with ApiError.conflict when the Lease has changed since it was read."""
        meta = lease["metadata"]
        path = LEASES.path(meta["namespace"], meta["name"])
        return await self.request("PUT", path, body=lease, timeout=timeout)


def is_created_entry(entry: Mapping[str, Any]) -> bool:
    """Whether a managedFields entry is what our POST left."""
    return _is_own_entry(entry, "Update")


def is_applied_entry(entry: Mapping[str, Any]) -> bool:
    """Whether a managedFields entry is what our apply left."""
    return _is_own_entry(entry, "Apply")


def _is_own_entry(entry: Mapping[str, Any], operation: str) -> bool:
    made_by = (entry.get("manager"), entry.get("operation"))
    return made_by == (FIELD_MANAGER, operation) and not entry.get("subresource")


def _strict(dry_run: bool) -> dict[str, str]:
    params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    return {**params, "dryRun": "All"} if dry_run else params
