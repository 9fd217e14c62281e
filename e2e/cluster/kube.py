"""A client for objects of a Kubernetes API server, for tests and the start of clusters. It uses the official client."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kubernetes.client import ApiClient
from urllib3 import HTTPHeaderDict, Retry

from e2e.cluster import kubeconfig
from tests.wait import TIMEOUT, wait_until

Obj = dict[str, Any]
Found = TypeVar("Found")

INTERVAL = 0.1  # seconds between two requests of a wait
JSON = "application/json"
APPLY = "application/apply-patch+yaml"
# Repeats any request that the API server rejects with 429 or 503 and Retry-After. It has not processed such a request.
# It rejects requests while it initializes the storage of a kind, or replaces it after a change of the definition.
RETRIES = Retry(
    total=int(TIMEOUT), connect=False, read=False, redirect=False, other=0, allowed_methods=None, raise_on_status=False
)


class ApiError(Exception):
    """An error response of the API server.

    Attributes:
        status: the HTTP status.
        reason: `reason` of the returned Status object.
        message: its message.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


class Kube:
    """Client whose objects are dicts with apiVersion and kind. Plural names come from the server's discovery.

    Methods raise ApiError for an error response. Requests are repeated by `RETRIES` before. `namespace` is for
    namespaced objects and kinds.
    """

    def __init__(self, config: Path, *, user: str = "", groups: tuple[str, ...] = ()) -> None:
        """Uses the kubeconfig's user, or impersonates `user` with `groups` if the kubeconfig's user may do so."""
        access = kubeconfig.read(config)
        self.server, self.context = access.server, access.context
        configuration = kubeconfig.load(config)
        configuration.retries = RETRIES
        self._api = ApiClient(configuration)
        self._impersonated = [("Impersonate-User", user)] if user else []
        self._impersonated += [("Impersonate-Group", group) for group in groups]
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def close(self) -> None:
        self._api.close()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = JSON,
        accept: str = JSON,
        timeout: float = TIMEOUT,
        **query: Any,
    ) -> Obj:
        """Sends one request. Returns the JSON object of the response, or {"text": ...} for any other response."""
        header_params = {"Accept": accept, **({"Content-Type": content} if body is not None else {})}
        _, url, headers, *_ = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=header_params,
            auth_settings=[kubeconfig.BEARER],
        )
        headers = HTTPHeaderDict(headers)
        for name, value in self._impersonated:
            headers.add(name, value)
        # The official client encodes characters beyond the BMP as JSON escapes, which are not valid YAML.
        data = json.dumps(body, ensure_ascii=False) if content == APPLY else body
        response = self._api.call_api(method, url, headers, data, _request_timeout=timeout)
        text: str = response.read().decode()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"text": text}
        if response.status >= 400:
            refusal = answer if isinstance(answer, dict) else {}
            raise ApiError(response.status, refusal.get("reason", ""), refusal.get("message", text))
        return answer if isinstance(answer, dict) else {"text": text}

    def path(self, api_version: str, kind: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Returns the path of a kind's collection, of an object or of a subresource."""
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if (api_version, kind) not in self._plurals:
            for entry in self.request("GET", root)["resources"]:
                if "/" not in entry["name"]:
                    self._plurals[api_version, entry["kind"]] = (entry["name"], entry["namespaced"])
        if (api_version, kind) not in self._plurals:
            raise ApiError(404, "NotFound", f"the server has no {api_version} {kind}")
        plural, namespaced = self._plurals[api_version, kind]
        where = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return f"{root}{where}/{plural}" + (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")

    def _path_of(self, obj: Obj, *, collection: bool = False, subresource: str = "") -> str:
        meta = obj["metadata"]
        name = "" if collection else meta["name"]
        return self.path(obj["apiVersion"], obj["kind"], meta.get("namespace", ""), name, subresource)

    def get(self, api_version: str, kind: str, name: str, namespace: str = "", subresource: str = "") -> Obj:
        return self.request("GET", self.path(api_version, kind, namespace, name, subresource))

    def find(self, api_version: str, kind: str, name: str, namespace: str = "") -> Obj | None:
        """Returns an object, or None if there is no such object."""
        try:
            return self.get(api_version, kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str = "", **query: Any) -> list[Obj]:
        """Returns the objects of a kind, in one namespace or in all. `query` has parameters like `labelSelector`."""
        items = self.request("GET", self.path(api_version, kind, namespace), **query)["items"]
        return [{"apiVersion": api_version, "kind": kind, **item} for item in items]

    def create(self, obj: Obj, **query: Any) -> Obj:
        return self.request("POST", self._path_of(obj, collection=True), obj, **query)

    def replace(self, obj: Obj, subresource: str = "", **query: Any) -> Obj:
        return self.request("PUT", self._path_of(obj, subresource=subresource), obj, **query)

    def apply(self, obj: Obj, *, manager: str = "unmask-test", force: bool = True, **query: Any) -> Obj:
        """Creates or updates an object with server-side apply. Takes over the fields in `obj` if `force`."""
        query |= {"fieldManager": manager, "force": str(force).lower()}
        return self.request("PATCH", self._path_of(obj), obj, content=APPLY, **query)

    def patch(self, obj: Obj, change: Any, *, subresource: str = "") -> Obj:
        """Applies a JSON merge patch (a dict) or a JSON patch (a list) to the object that `obj` names."""
        content = "application/json-patch+json" if isinstance(change, list) else "application/merge-patch+json"
        return self.request("PATCH", self._path_of(obj, subresource=subresource), change, content=content)

    def delete(self, obj: Obj, **query: Any) -> None:
        """Deletes an object. Does nothing if it does not exist."""
        try:
            self.request("DELETE", self._path_of(obj), **query)
        except ApiError as error:
            if error.status != 404:
                raise

    def events(self, namespace: str, reason: str, *, at_least: int = 1) -> Sequence[Obj]:
        """Waits for `at_least` Events with a reason and returns them.

        The wait is necessary because an Event is written after the status that it reports.
        """

        def matching_events() -> Sequence[Obj] | None:
            found = [event for event in self.list("events.k8s.io/v1", "Event", namespace) if event["reason"] == reason]
            return found if len(found) >= at_least else None

        return self.wait(f"{at_least} Events of {reason}", matching_events)

    def define(self, crd: Obj) -> None:
        """Applies a CustomResourceDefinition and waits until its kind is served."""
        self.apply(crd)
        self._wait_served(crd)

    def undefine(self, crd: Obj) -> None:
        """Deletes a CustomResourceDefinition and waits until it is gone. Does nothing if it does not exist.

        Waits until the kind is served before the deletion. The API server deletes a kind's objects before the
        definition, and fails if their storage is not initialized yet. It can lose its own retry until the next resync
        of all definitions, every 5 minutes.
        """
        named = (crd["apiVersion"], crd["kind"], crd["metadata"]["name"])
        if self.find(*named):
            self._wait_served(crd)
            self.delete(crd)
            self.wait(f"the end of {named[2]}", lambda: self.find(*named) is None)

    def _wait_served(self, crd: Obj) -> None:
        """Waits until the kind is served, which happens shortly after the condition "Established" of its definition."""
        spec = crd["spec"]
        api_version, kind = f"{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["kind"]

        def served() -> bool:
            self.list(api_version, kind)
            return True

        self.wait(f"{kind} is served", served)

    def wait(self, what: str, found: Callable[[], Found | None], *, timeout: float = TIMEOUT) -> Found:
        """Calls `found` until it returns a true value and returns that value. A 404 counts as "not yet".

        Raises:
            TimeoutError: There is no such value within `timeout`. The message names `what`.
        """

        def look() -> Found | None:
            try:
                return found()
            except ApiError as error:
                if error.status != 404:
                    raise
                return None

        result = wait_until(look, what, timeout=timeout, interval=INTERVAL)
        assert result is not None
        return result
