"""The API server over one aiohttp session. It reads and writes plain objects and knows nothing of reconciling."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import kopf

from unmask_operator.client.errors import ApiError, api_error
from unmask_operator.client.kinds import LEASES, SERVICES, ApiKind, kind_of
from unmask_operator.objects import FIELD_MANAGER, Obj

TIMEOUT_SECONDS = 30.0
TOKEN_SECONDS = 60.0  # how long a token is used before its file is read again
THROTTLED_TRIES = 4  # how often a request that the server put off (429) is sent before its caller hears of it
LONGEST_WAIT_SECONDS = 30.0  # the longest Retry-After that is waited for here; the work queue waits longer ones
PAGE = 100  # objects of one answer to a list: parsing it must neither hold the event loop up nor take much memory
LIST_TRIES = 5  # how often a list is begun

JSON = "application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"  # JSON is YAML


class Client:
    """A session with the API server, as whoever `login` says we are.

    Every method raises ApiError when the server refuses or does not answer. A 429 is waited for and sent again here,
    since the server did nothing yet; nothing else is repeated, for only the caller knows what a second time would do.

    Attributes:
        last_answer: monotonic seconds of the last answer below 500, 0.0 before the first one.
        may_write: asked in the moment each write but that of the Lease is sent.
    """

    def __init__(self, login: Callable[[], kopf.ConnectionInfo], user_agent: str = FIELD_MANAGER) -> None:
        self._login = login
        self._info = login()
        self._read_at = time.monotonic()
        self._agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self.last_answer = 0.0
        self.may_write: Callable[[], bool] = lambda: True

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

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
        for tries_left in reversed(range(LIST_TRIES)):
            try:
                return await self._pages(kind, kind.path(namespace), asked, keep)
            except ApiError as error:
                if error.status != 410 or not tries_left:
                    raise
        raise AssertionError("unreachable")

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
        manager adds an entry of its own beside it: fields left out later would live on, owned by the older entry.
        """
        entries = live["metadata"].get("managedFields", ())
        kind, meta = kind_of(live["apiVersion"], live["kind"]), live["metadata"]
        for i, entry in enumerate(entries):
            if is_created_entry(entry):
                at = f"/metadata/managedFields/{i}"
                patch = [
                    {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
                    {"op": "test", "path": f"{at}/manager", "value": FIELD_MANAGER},
                    {"op": "replace", "path": f"{at}/operation", "value": "Apply"},
                ]
                path = kind.path(meta["namespace"], meta["name"])
                try:
                    return await self.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, patch, JSON_PATCH)
                except ApiError as error:
                    if error.status == 422:  # a test failed: the object is not as it was seen
                        raise ApiError(409, "Conflict", error.message) from error
                    raise
        return live

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

    async def patch_scale(self, namespace: str, name: str, replicas: int) -> Obj:
        """Write the resource's replicas through its scale subresource, as HPA and `kubectl scale` do."""
        path = SERVICES.path(namespace, name, "scale")
        body = {"spec": {"replicas": replicas}}
        return await self.request("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, MERGE)

    async def update_lease(self, lease: Obj, timeout: float) -> Obj:
        """A PUT, which fails with ApiError.conflict when the Lease has changed since it was read."""
        meta = lease["metadata"]
        path = LEASES.path(meta["namespace"], meta["name"])
        return await self.request("PUT", path, body=lease, timeout=timeout)

    async def has_api(self, kind: ApiKind) -> bool:
        """Whether the server has that kind (a CustomResourceDefinition may come and go)."""
        try:
            answer = await self.request("GET", kind.root)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return any(entry.get("kind") == kind.kind for entry in answer.get("resources", ()))

    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Obj:
        for tries_left in reversed(range(THROTTLED_TRIES)):
            try:
                return await self._send(method, path, params, body, content_type, timeout)
            except ApiError as error:
                if error.status == 401 and tries_left and await self._renew_login():
                    continue
                wait = error.retry_after or 1.0
                if error.status != 429 or not tries_left or wait > LONGEST_WAIT_SECONDS:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _send(
        self, method: str, path: str, params: Mapping[str, str] | None, body: Any, content_type: str, timeout: float
    ) -> Obj:
        session = await self._open()
        url = self._info.server.rstrip("/") + path
        may_write = (lambda: True) if path.startswith(LEASES.root) else self.may_write
        data = None if body is None else _Fenced(encode(body), may_write)
        headers = {**self._info.as_http_headers(), "Content-Type": content_type, "Accept": JSON}
        if data is not None:
            headers["Content-Length"] = str(len(data.body))
        try:
            async with session.request(
                method, url, params=params, data=data, headers=headers, timeout=aiohttp.ClientTimeout(total=timeout)
            ) as answer:
                raw, status, said = await answer.read(), answer.status, answer.headers
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if data is not None and data.kept_back:
                raise ApiError(0, "NotLeading", f"{method} {path}: not sent, for another pod may lead by now") from None
            if isinstance(error, aiohttp.ClientSSLError):
                await self.close()  # the cluster's CA may have been replaced: the next session reads it again
            sentence = f"{method} {path}: no answer from the API server: {str(error) or type(error).__name__}"
            raise ApiError(0, "Unreachable", sentence) from error
        if status < 500:
            self.last_answer = time.monotonic()
        if status >= 400:
            raise api_error(status, raw, said)
        try:
            parsed: Obj = json.loads(raw)
        except ValueError:
            raise ApiError(status, "Unreadable", f"{method} {path}: the answer is not JSON") from None
        return parsed

    async def _open(self) -> aiohttp.ClientSession:
        if self._info.token and time.monotonic() - self._read_at > TOKEN_SECONDS:
            await self._renew_login()
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=32, ssl=self._info.as_ssl_context())
            self._session = aiohttp.ClientSession(connector=connector, headers={"User-Agent": self._agent})
        return self._session

    async def _renew_login(self) -> bool:
        """Read the login information again; True when it has changed. A new CA or certificate needs a new session."""
        old, self._info, self._read_at = self._info, self._login(), time.monotonic()
        same_tls = (old.ca_path, old.ca_data, old.certificate_data) == (
            self._info.ca_path,
            self._info.ca_data,
            self._info.certificate_data,
        )
        if not same_tls:
            await self.close()
        return old != self._info


class _Fenced:
    """A request's body that asks whether it may go when it goes; a request without its whole body changes nothing.

    A process that was frozen goes on wherever it was, before any task of its own could tell it that another leads by
    now. Between the call of a request and its first byte lie several turns of the event loop, also without a new
    connection: a check at the call is too early. So every write has a body.
    """

    def __init__(self, body: bytes, may_go: Callable[[], bool]) -> None:
        self.body = body
        self.kept_back = False
        self._may_go = may_go

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.kept_back = not self._may_go()
        if self.kept_back:
            raise RuntimeError("another pod may lead")
        yield self.body


def encode(body: Any) -> bytes:
    """JSON in the very bytes that the API server makes of it: members sorted, no spaces, <, > and & escaped.

    It keeps a ControllerRevision's data as it got them, encodes them anew at any later patch, be it of a label, and
    refuses the patch as a change of immutable data where the bytes differ.
    """
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode()


def is_created_entry(entry: Mapping[str, Any]) -> bool:
    """Whether a managedFields entry is what our POST left."""
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Update" and not entry.get("subresource")


def _strict(dry_run: bool) -> dict[str, str]:
    params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    return {**params, "dryRun": "All"} if dry_run else params
