"""Sends requests to the API server with the official client. Objects are dictionaries."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from unmask_operator.kinds import DLMS, LEASES, PODS, REVISIONS, ApiKind, kind_of
from unmask_operator.kube.credentials import BEARER, Credentials, Identity, LoginError
from unmask_operator.kube.errors import ApiError, api_error
from unmask_operator.objects import FIELD_MANAGER, Key, Obj

PAGE = 100  # objects per page of a list: a page must not block the event loop for long or take much memory
LIST_TRIES = 5  # attempts per list; each one starts with the first page
TIMEOUT_SECONDS = 30.0
THROTTLED_TRIES = 4  # attempts per request that the API server throttles (429)
LONGEST_WAIT_SECONDS = 30.0  # longest Retry-After that the client waits; after a longer one the work queue retries

JSON = "application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
# The official client sends a text body unchanged unless it encodes the media type itself: names with "json", and
# exactly application/apply-patch+yaml. For the latter it escapes characters beyond the BMP in a form that is not YAML.
YAML = "application/yaml"
APPLY = "application/apply-patch+yaml; charset=utf-8"

_ESCAPED = re.compile("[<>&\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class WriteWithheld(Exception):
    """A write was not sent because another pod may lead."""


class Client:
    """Reads and writes objects.

    Every method raises ApiError if the API server answers with an error or not at all. The client retries a throttled
    request (429), which had no effect, and a request whose refused credentials (401) could be renewed. All other
    retries are the caller's, because only the caller knows the effect of a second write.

    Attributes:
        last_answer: Monotonic seconds of the last answer below 500.
        may_write: Called before the first byte of a write is sent, except for writes of Leases. False withholds the
            write.
    """

    def __init__(self, credentials: Credentials, user_agent: str = FIELD_MANAGER) -> None:
        self.last_answer = 0.0
        self.may_write: Callable[[], bool] = lambda: True
        self._credentials = credentials
        self._agent = user_agent
        self._api: ApiClient | None = None
        self._tls: tuple[bytes, ...] = ()
        trace = aiohttp.TraceConfig()
        trace.on_request_chunk_sent.append(self._fence)
        credentials.configuration.trace_configs = [trace]

    async def close(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            await api.close()

    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Obj:
        """Sends a request and returns the object of its answer.

        Args:
            method: The HTTP method.
            path: The URL's path.
            params: The query.
            body: The object to send. Every write needs one, because the fence withholds the body.
            content_type: The media type of the body.
            timeout: Seconds per attempt.
        """
        assert method == "GET" or body is not None
        for _ in range(THROTTLED_TRIES - 1):
            identity = self._credentials.current
            try:
                return await self._send(method, path, params, body, content_type, timeout)
            except ApiError as error:
                if error.status == 401 and await self._renew(identity):
                    continue
                wait = error.retry_after or 1.0
                if error.status != 429 or error.refusal or wait > LONGEST_WAIT_SECONDS:
                    raise
                await asyncio.sleep(wait)
        return await self._send(method, path, params, body, content_type, timeout)

    async def _send(
        self, method: str, path: str, params: Mapping[str, str] | None, body: Any, content_type: str, timeout: float
    ) -> Obj:
        limits = aiohttp.ClientTimeout(total=timeout)
        async with self._answer(method, path, params, body, content_type, limits) as answer:
            content = await answer.read()
        try:
            parsed: Obj = json.loads(content)
        except ValueError:
            raise ApiError(answer.status, "Unreadable", f"{method} {path}: the answer is not JSON") from None
        return parsed

    async def merge(self, path: str, body: Obj, manager: str = FIELD_MANAGER) -> Obj:
        """Sends a merge patch. ApiError.conflict: the uid or resource version in its metadata differs."""
        return await self.request("PATCH", path, {"fieldManager": manager}, body, MERGE)

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields the successful answer to a request, whose body may be read while it arrives."""
        api = await self._connect()
        _, url, headers, *_ = await api.param_serialize(
            method,
            path,
            query_params=list((params or {}).items()),
            header_params={"Content-Type": content_type, "Accept": JSON},
            auth_settings=[BEARER],
        )
        if content_type in (YAML, APPLY):
            body = encode(body)
        try:
            answer = (await api.call_api(method, url, headers, body, _request_timeout=timeout)).response
            async with answer:
                refusal = await answer.read() if answer.status >= 400 else None
                if refusal is None:
                    yield answer
                if answer.status < 500:
                    self.last_answer = time.monotonic()
                if refusal is not None:
                    raise api_error(answer.status, refusal, answer.headers)
        except (aiohttp.ClientError, OSError, WriteWithheld) as error:
            if _was_withheld(error):
                raise ApiError(0, "NotLeading", f"{method} {path}: not sent, because another pod may lead") from None
            raise await self._unanswered(api, method, path, error) from error

    async def _unanswered(self, api: ApiClient, method: str, path: str, error: Exception) -> ApiError:
        if isinstance(error, aiohttp.ClientSSLError) and api is self._api:
            await self.close()  # the cluster's CA may have been replaced; the next connection reads it again
        sentence = f"{method} {path}: no answer from the API server: {str(error) or type(error).__name__}"
        return ApiError(0, "Unreachable", sentence)

    async def _connect(self) -> ApiClient:
        """Returns the client of the current credentials. New certificates need a new one."""
        await self._credentials.refresh()
        if self._api is not None and self._tls != self._credentials.current.tls:
            await self.close()
        if self._api is None:
            try:
                self._api = ApiClient(self._credentials.configuration)
            except OSError as error:
                raise ApiError(0, "NoLogin", f"the certificates cannot be used: {error}") from error
            self._api.user_agent = self._agent
            self._tls = self._credentials.current.tls
        return self._api

    async def _renew(self, refused: Identity) -> bool:
        try:
            return await self._credentials.renew(refused)
        except LoginError as error:
            raise ApiError(0, "NoLogin", str(error)) from error

    async def _fence(self, session: Any, context: Any, params: aiohttp.TraceRequestChunkSentParams) -> None:
        """Withholds a write unless this pod leads. aiohttp calls it in the iteration that sends the body's chunk.

        A frozen process resumes at any point, before one of its tasks can notice that another pod leads. A check when
        the request starts is too early: several iterations of the event loop pass before the first byte is sent, even
        on an open connection. aiohttp sends the headers with the first chunk of the body, and the API server ignores a
        request with an incomplete body. So every write has a body.
        """
        if f"{LEASES.root}/" not in params.url.path and not self.may_write():
            raise WriteWithheld

    async def get(self, kind: ApiKind, namespace: str, name: str) -> Obj:
        return await self.request("GET", kind.path(namespace, name))

    async def find(self, kind: ApiKind, namespace: str, name: str) -> Obj | None:
        """Returns an object, or None if it does not exist."""
        try:
            return await self.get(kind, namespace, name)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def list(
        self,
        kind: ApiKind,
        namespace: str | None = None,
        selector: str = "",
        fields: str = "",
        transform: Callable[[Obj], Obj] = lambda item: item,
        page: int = PAGE,
    ) -> tuple[Sequence[Obj], int]:
        """Lists objects page by page. A list that expires before its last page (410) is started again.

        Args:
            kind: The kind.
            namespace: The namespace; None: all.
            selector: The label selector.
            fields: The field selector.
            transform: Called with each object. Only its results are stored, which limits memory.
            page: Objects per page.

        Returns:
            The transformed objects and the list's resource version.
        """
        query = {"labelSelector": selector, "fieldSelector": fields, "limit": str(page)}
        query = {name: text for name, text in query.items() if text}
        for _ in range(LIST_TRIES - 1):
            try:
                return await self._pages(kind, kind.path(namespace), query, transform)
            except ApiError as error:
                if error.status != 410:
                    raise
        return await self._pages(kind, kind.path(namespace), query, transform)

    async def _pages(
        self, kind: ApiKind, path: str, query: Mapping[str, str], transform: Callable[[Obj], Obj]
    ) -> tuple[Sequence[Obj], int]:
        items: Sequence[Obj] = ()
        continuation: Mapping[str, str] = {}
        while True:
            answer = await self.request("GET", path, params={**query, **continuation})
            page = answer.get("items") or ()
            items = [*items, *(transform({"apiVersion": kind.api_version, "kind": kind.kind, **item}) for item in page)]
            meta = answer["metadata"]
            if not meta.get("continue"):
                return items, int(meta["resourceVersion"])
            continuation = {"continue": meta["continue"]}

    async def watch(
        self, kind: ApiKind, namespace: str | None, selector: str, version: int, seconds: int, silence: float
    ) -> AsyncIterator[tuple[str, Obj]]:
        """Yields the changes of objects since a version: ADDED, MODIFIED, DELETED or BOOKMARK, and the object.

        Args:
            kind: The kind.
            namespace: The namespace; None: all.
            selector: The label selector.
            version: Resource version of a list or of the last change.
            seconds: Duration of the watch.
            silence: Seconds without a change or bookmark after which the watch fails.
        """
        path = kind.path(namespace)
        query = {"watch": "1", "resourceVersion": str(version), "timeoutSeconds": str(seconds)}
        query |= {"allowWatchBookmarks": "true", **({"labelSelector": selector} if selector else {})}
        limits = aiohttp.ClientTimeout(total=None, connect=TIMEOUT_SECONDS, sock_read=silence)
        async with self._answer("GET", path, query, None, JSON, limits) as answer:
            received = b""
            async for chunk in answer.content.iter_any():
                *lines, received = (received + chunk).split(b"\n")
                for line in lines:
                    change = json.loads(line)
                    if change["type"] == "ERROR":
                        error = change["object"]
                        raise ApiError(error.get("code") or 0, error.get("reason") or "", error.get("message") or "")
                    yield change["type"], change["object"]

    async def create(self, obj: Obj, dry_run: bool = False) -> Obj:
        """Creates an object with a POST, which fails if the name exists. Unknown fields are refused.

        The data of a ControllerRevision is immutable. The API server refuses every later patch, even of a label, if its
        own encoding of the data differs from the stored bytes. It stores JSON as received but encodes YAML itself, so
        revisions are sent as YAML.
        """
        kind = kind_of(obj["apiVersion"], obj["kind"])
        path = kind.path(obj["metadata"]["namespace"])
        return await self.request("POST", path, _strict(dry_run), obj, YAML if kind == REVISIONS else JSON)

    async def apply(self, obj: Obj, uid: str, dry_run: bool = False) -> Obj:
        """Applies the object server-side. ApiError.conflict: no object of this name has the uid."""
        path = kind_of(obj["apiVersion"], obj["kind"]).path(*Key.of(obj))
        body = {**obj, "metadata": {**obj["metadata"], "uid": uid}}
        return await self.request("PATCH", path, {**_strict(dry_run), "force": "true"}, body, APPLY)

    async def upgrade_managed_fields(self, live: Obj) -> Obj:
        """Converts the managedFields entry of a POST into one of an apply, so that an apply can remove fields.

        A POST adds an entry of operation Update that owns all fields. A later apply of the same manager adds a second
        entry. Fields that the apply leaves out would stay, because the first entry still owns them. If an apply has
        already added its entry (see `replace`), the first one is removed.
        """
        entries = live["metadata"].get("managedFields", ())
        applied = any(_is_own_entry(entry, "Apply") for entry in entries)
        for i, entry in enumerate(entries):
            if _is_own_entry(entry, "Update"):
                at = f"/metadata/managedFields/{i}"
                change = {"op": "remove", "path": at}
                if not applied:
                    change = {"op": "replace", "path": f"{at}/operation", "value": "Apply"}
                same = {"manager": FIELD_MANAGER, "operation": "Update"}
                tests = [{"op": "test", "path": f"{at}/{member}", "value": value} for member, value in same.items()]
                return await self._patch_json(live, [*tests, change])
        return live

    async def replace_spec(self, live: Obj, spec: Obj, dry_run: bool = False) -> Obj:
        """Replaces the spec, with the fields of other managers, which server-side apply would merge instead."""
        same = {"op": "test", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]}
        return await self._patch_json(live, [same, {"op": "replace", "path": "/spec", "value": spec}], dry_run)

    async def _patch_json(self, live: Obj, patch: Sequence[Obj], dry_run: bool = False) -> Obj:
        """Sends a JSON patch. ApiError.conflict: the uid differs, or a test of the patch fails."""
        path = kind_of(live["apiVersion"], live["kind"]).path(*Key.of(live))
        same = {"op": "test", "path": "/metadata/uid", "value": live["metadata"]["uid"]}
        try:
            return await self.request("PATCH", path, _strict(dry_run), [same, *patch], JSON_PATCH)
        except ApiError as error:
            invalid = error.denied or " is invalid: " in error.message
            if error.status == 422 and not invalid:  # a test failed: the object has changed
                raise ApiError(409, "Conflict", error.message) from error
            raise

    async def discovers(self, kind: ApiKind) -> bool:
        """Returns whether discovery lists the kind. Discovery may lag behind the kind itself."""
        groups = await self.request("GET", "/apis")
        if kind.group not in {group["name"] for group in groups["groups"]}:
            return False
        resources = await self.request("GET", kind.root)
        return kind.plural in {resource["name"] for resource in resources["resources"]}

    async def delete(self, kind: ApiKind, namespace: str, name: str, uid: str) -> None:
        """Deletes the object with the uid. Does nothing if it is gone or another one has its name."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self.request("DELETE", kind.path(namespace, name), body=body)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    async def patch_status(self, namespace: str, name: str, uid: str, patch: Obj, manager: str) -> Obj:
        """Sends a merge patch of the resource's status. The uid protects a new resource of the same name."""
        body = {"metadata": {"uid": uid}, "status": patch}
        return await self.merge(DLMS.path(namespace, name, "status"), body, manager)

    async def annotate_pod(self, pod: Obj, annotations: Mapping[str, str]) -> Obj:
        """Sends a merge patch of a pod's annotations through its status subresource.

        The permission to patch a status does not allow changes of what the pod runs. The uid protects a new pod of the
        same name.
        """
        meta = pod["metadata"]
        body = {"metadata": {"uid": meta["uid"], "annotations": dict(annotations)}}
        return await self.merge(PODS.path(meta["namespace"], meta["name"], "status"), body)

    async def patch_scale(self, namespace: str, name: str, replicas: int, version: str = "") -> Obj:
        """Writes the resource's replicas through its scale subresource, as HPA and `kubectl scale` do.

        ApiError.conflict: the resource does not have this resource version.
        """
        same = {"metadata": {"resourceVersion": version}} if version else {}
        return await self.merge(DLMS.path(namespace, name, "scale"), {"spec": {"replicas": replicas}, **same})

    async def patch_workload_scale(self, kind: ApiKind, namespace: str, name: str, uid: str, replicas: int) -> Obj:
        """Writes only `spec.replicas` of a Deployment or LeaderWorkerSet, through its scale subresource.

        Validation and admission of its other fields do not apply. ApiError.conflict: the uid differs.
        """
        path = kind.path(namespace, name, "scale")
        return await self.merge(path, {"metadata": {"uid": uid}, "spec": {"replicas": replicas}})

    async def update_lease(self, lease: Obj, timeout: float) -> Obj:
        """Replaces the Lease with a PUT. ApiError.conflict: the Lease has changed since it was read."""
        path = LEASES.path(*Key.of(lease))
        return await self.request("PUT", path, body=lease, timeout=timeout)


def _is_own_entry(entry: Mapping[str, Any], operation: str) -> bool:
    """Returns whether a managedFields entry is of the operator's POST (Update) or server-side apply (Apply)."""
    made_by = (entry.get("manager"), entry.get("operation"))
    return made_by == (FIELD_MANAGER, operation) and not entry.get("subresource")


def _strict(dry_run: bool) -> dict[str, str]:
    params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    return {**params, "dryRun": "All"} if dry_run else params


def encode(body: Any) -> str:
    """Encodes JSON that is valid YAML, in the API server's form: members sorted, no spaces, <, > and & escaped.

    Control characters and byte order marks are escaped too, because YAML does not allow them.
    """
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _was_withheld(error: BaseException | None) -> bool:
    """Returns whether the fence caused an error of aiohttp."""
    while error is not None and not isinstance(error, WriteWithheld):
        error = error.__cause__ or error.__context__
    return error is not None
