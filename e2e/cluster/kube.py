"""Objects of a Kubernetes API server, for tests and for setting a cluster up, by the official client."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kubernetes.client import ApiClient
from urllib3 import HTTPHeaderDict

from e2e.cluster import kubeconfig
from tests.wait import TIMEOUT, wait_until

Obj = dict[str, Any]
Found = TypeVar("Found")

INTERVAL = 0.1  # seconds between two requests of a wait
JSON = "application/json"
APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    """A refusal by the API server: `status` is the HTTP status, `reason` the API's, the text is its message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


class Kube:
    """Objects are plain dicts with apiVersion and kind; plural names come from the server's own discovery.

    Every method raises ApiError on a refusal. `namespace` is for objects and kinds that live in one.
    """

    def __init__(self, config: Path, *, user: str = "", groups: tuple[str, ...] = ()) -> None:
        """As the kubeconfig's own user, or as `user` with `groups` where its user may impersonate."""
        access = kubeconfig.read(config)
        self.server, self.context = access.server, access.context
        self._api = ApiClient(kubeconfig.load(config))
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
        """One request; the answer's JSON, or {"text": ...} where it is none."""
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
        # The official client encodes JSON by itself, with escapes for characters beyond the BMP, which are no YAML.
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
        """The path of a kind's collection, an object or a subresource."""
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
        """Like `get`, but None where there is no such object."""
        try:
            return self.get(api_version, kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str = "", **query: Any) -> list[Obj]:
        """Objects of a kind, in a namespace or everywhere; `labelSelector="a=b"` and the like are passed on."""
        items = self.request("GET", self.path(api_version, kind, namespace), **query)["items"]
        return [{"apiVersion": api_version, "kind": kind, **item} for item in items]

    def create(self, obj: Obj, **query: Any) -> Obj:
        return self.request("POST", self._path_of(obj, collection=True), obj, **query)

    def replace(self, obj: Obj, subresource: str = "", **query: Any) -> Obj:
        return self.request("PUT", self._path_of(obj, subresource=subresource), obj, **query)

    def apply(self, obj: Obj, *, manager: str = "unmask-test", force: bool = True, **query: Any) -> Obj:
        """Server-side apply: create the object or take the fields that it names."""
        query |= {"fieldManager": manager, "force": str(force).lower()}
        return self.request("PATCH", self._path_of(obj), obj, content=APPLY, **query)

    def patch(self, obj: Obj, change: Any, *, subresource: str = "") -> Obj:
        """A JSON merge patch (a dict) or a JSON patch (a list) of the object that `obj` names."""
        content = "application/json-patch+json" if isinstance(change, list) else "application/merge-patch+json"
        return self.request("PATCH", self._path_of(obj, subresource=subresource), change, content=content)

    def delete(self, obj: Obj, **query: Any) -> None:
        """Delete; an object that is gone already is fine."""
        try:
            self.request("DELETE", self._path_of(obj), **query)
        except ApiError as error:
            if error.status != 404:
                raise

    def events(self, namespace: str, reason: str, *, at_least: int = 1) -> Sequence[Obj]:
        """The Events of a reason, once `at_least` are there: one is written after the status that it tells of."""

        def matching_events() -> Sequence[Obj] | None:
            found = [event for event in self.list("events.k8s.io/v1", "Event", namespace) if event["reason"] == reason]
            return found if len(found) >= at_least else None

        return self.wait(f"{at_least} Events of {reason}", matching_events)

    def define(self, crd: Obj) -> None:
        """Apply a CustomResourceDefinition and wait until its kind can be used."""
        self.apply(crd)
        self._wait_served(crd)

    def undefine(self, crd: Obj) -> None:
        """Delete a CustomResourceDefinition and wait for its end; one that is gone already is fine.

        Its kind is served first: the API server deletes a kind's objects before the definition, fails where their
        storage is still being made, and can lose its own retry until it looks at all definitions, every 5 minutes.
        """
        named = (crd["apiVersion"], crd["kind"], crd["metadata"]["name"])
        if self.find(*named):
            self._wait_served(crd)
            self.delete(crd)
            self.wait(f"the end of {named[2]}", lambda: self.find(*named) is None)

    def _wait_served(self, crd: Obj) -> None:
        """Until the kind is, which is a moment after its definition says "Established"."""
        spec = crd["spec"]
        api_version, kind = f"{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["kind"]

        def served() -> bool:
            try:
                self.list(api_version, kind)
            except ApiError as error:
                if error.status in (429, 503):  # its storage is being made
                    return False
                raise
            return True

        self.wait(f"{kind} is served", served)

    def wait(self, what: str, found: Callable[[], Found | None], *, timeout: float = TIMEOUT) -> Found:
        """`wait_until` for what `found` returns, where a 404 counts as "not yet". TimeoutError names `what`."""

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
