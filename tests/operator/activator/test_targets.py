"""Tests of what the activator knows of services: one resource, and the list and watch of all."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from e2e.cluster import kubeconfig
from tests.operator.clients import client_of, http_server
from tests.operator.samples import resource
from tests.wait import wait_until_async
from unmask_operator.activator import targets as module
from unmask_operator.activator.targets import Target, Targets
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key, Obj
from unmask_operator.settings import Settings

ZERO = {"minReplicas": 0, "maxReplicas": 2, "zero": {"holdSeconds": 9}}


def stored(version: int, name: str = "demo", port: int = 20_001, **spec: Any) -> Obj:
    made = resource(name, **{"autoscaling": ZERO, "replicas": 0, **spec})
    made["metadata"]["resourceVersion"] = str(version)
    return {**made, "status": {"autoscaling": {"activatorPort": port}}}


def test_a_resource() -> None:
    keys = {"apiKeySecretRef": {"name": "keys", "key": "keys"}}
    target = Target.read(
        stored(
            7, model={"uri": "demo://", "name": "m"}, lora={"adapters": [{"name": "a", "uri": "demo://roman"}]},
            auth=keys, gpu={}, parallelism={"data": 2}, engine={"maxNumReqs": 5},
        )
    )  # fmt: skip
    assert target is not None
    assert (target.key, target.version, target.port, target.replicas) == (Key("default", "demo"), "7", 20_001, 0)
    assert (target.models, target.needs_key, target.requests_per_pod) == (("m", "a"), True, 10)
    assert (target.zero.hold_seconds, target.zero.max_held_requests) == (9, 100)


@pytest.mark.parametrize(
    "other",
    [stored(7, port=0), stored(7, suspend=True), stored(7, autoscaling={"maxReplicas": 2}),
     stored(7, autoscaling={"zero": {"holdSeconds": "long"}}), {**stored(7), "status": {}}],
)  # fmt: skip
def test_a_resource_without_a_port_or_that_does_not_scale_to_zero(other: Obj) -> None:
    assert Target.read(other) is None


class Api:
    """An API server whose lists have `listed`, and whose watches send the next of `changes`."""

    def __init__(self, *changes: object) -> None:
        self.listed, self.changes, self.versions, self.lists = [stored(3, "a")], list(changes), list[str](), 0
        self.waits = False  # whether a watch is open after the last change

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.query.get("labelSelector") == "track=x"
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"metadata": {"resourceVersion": "5"}, "items": self.listed})
        self.versions.append(request.query["resourceVersion"])
        if not self.changes:
            self.waits = True
            await asyncio.sleep(600)
        response = web.StreamResponse()
        await response.prepare(request)
        change: Any = self.changes.pop(0)
        text = (change if isinstance(change, str) else json.dumps(change)) + "\n"
        for part in (text[:20], text[20:]):  # a change may arrive in parts
            await response.write(part.encode())
            await asyncio.sleep(0)
        return response


def follow(api: Api, names: set[str], listed: int = 1) -> list[str]:
    """Follows an API server until it was listed so often and these services are known. Returns the watched versions."""
    found: Mapping[Key, Target] = {}

    async def changed(targets: Mapping[Key, Target]) -> None:
        nonlocal found
        found = dict(targets)

    def done() -> bool:
        return api.waits and api.lists == listed and {key.name for key in found} == names

    async def scene() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with http_server(api.handle) as port:
                file = kubeconfig.write(Path(folder) / "config", f"http://127.0.0.1:{port}", b"", user="u", token="t")
                async with client_of(file) as client:
                    targets = Targets(client, Settings(watch_selector=("track=x",)), changed)
                    task = asyncio.create_task(targets.run())
                    await wait_until_async(done, f"{names}")
                    assert targets.synced
                    assert not task.done()
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    asyncio.run(scene())
    return api.versions


def change(kind: str, obj: Obj) -> Obj:
    return {"type": kind, "object": obj}


def test_changes_are_followed_from_the_last_version() -> None:
    bookmark = {"metadata": {"resourceVersion": "9"}}
    changes = [change("ADDED", stored(6, "b")), change("MODIFIED", stored(7, "a", suspend=True))]
    changes += [change("BOOKMARK", bookmark), change("ADDED", stored(10, "c")), change("DELETED", stored(11, "b"))]
    assert follow(Api(*changes), {"c"})[:6] == ["5", "6", "7", "9", "10", "11"]


def test_a_namespace_that_is_gone_delays_no_other() -> None:
    class Lists:
        async def list(self, kind: Any, namespace: str, selector: str, transform: Any) -> tuple[list[Obj], int]:
            if namespace == "gone":
                raise ApiError(403, "Forbidden", "cannot list")
            transform(stored(3))
            return [], 5

        async def watch(self, *of: Any) -> Any:
            await asyncio.sleep(600)
            yield

    async def scene() -> None:
        found: list[Mapping[Key, Target]] = []

        async def changed(targets: Mapping[Key, Target]) -> None:
            found.append(targets)

        client: Any = Lists()
        targets = Targets(client, Settings(watch_namespaces=("gone", "default")), changed)
        assert not targets.synced
        task = asyncio.create_task(targets.run())
        await wait_until_async(lambda: targets.synced, "synced")
        assert [key.name for key in found[-1]] == ["demo"]
        task.cancel()

    asyncio.run(scene())


GONE = change("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})


@pytest.mark.parametrize("wrong", [GONE, "no JSON", '{"type": "ADDED"}', "[]"])
def test_after_an_error_the_services_are_listed_again_and_stay_known(
    monkeypatch: pytest.MonkeyPatch, wrong: object
) -> None:
    monkeypatch.setattr(module, "Backoffs", lambda: [0.0] * 9)
    assert follow(Api(wrong), {"a"}, listed=2)[0] == "5"
