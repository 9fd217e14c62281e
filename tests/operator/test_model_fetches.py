"""Tests of the polls of Jobs that download models: which are read, what is told, and how often claims are read."""

import asyncio
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.operator.samples import resource
from unmask_operator.controller import model_fetches
from unmask_operator.controller.model_fetches import CLAIM_SECONDS, ModelFetches
from unmask_operator.controller.pod_progress import StartupReport
from unmask_operator.kinds import DLMS, JOBS
from unmask_operator.kube.cache import Cache
from unmask_operator.objects import SERVICE_LABEL, Key, Obj
from unmask_operator.plan.observed import FetchReport, Load

KEY = Key("default", "demo")


def job(name: str, *ends: str) -> Obj:
    meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(len(ends) + 1)}
    conditions = [{"type": end, "status": "True"} for end in ends]
    return {"metadata": {**meta, "labels": {SERVICE_LABEL: "demo"}}, "status": {"conditions": conditions}}


def pod(name: str, owner: str, second: int, **status: Any) -> Obj:
    meta = {"name": name, "namespace": "default", "uid": name, "creationTimestamp": f"2026-01-01T00:00:0{second}Z"}
    return {"metadata": {**meta, "ownerReferences": [{"uid": owner, "controller": True}]}, "spec": {}, "status": status}


class FakeClient:
    """Lists pods and returns claims, and counts both."""

    def __init__(self) -> None:
        self.pods: list[Obj] = []
        self.lists = self.gets = 0
        self.claim: Obj | None = None

    async def list(self, kind: Any, namespace: str, selector: str) -> tuple[list[Obj], int]:
        assert (namespace, selector) == ("default", "serving.unmask.dev/fetch")
        self.lists += 1
        return self.pods, 1

    async def find(self, kind: Any, namespace: str, name: str) -> Obj | None:
        self.gets += 1
        return self.claim


@pytest.fixture
def scene() -> tuple[FakeClient, Cache, ModelFetches, list[Key], list[float]]:
    client, cache, told, now = FakeClient(), Cache(), list[Key](), [0.0]
    service = resource()
    cache.put(DLMS, {**service, "metadata": {**service["metadata"], "resourceVersion": "1"}})
    anything: Any = client
    fetches = ModelFetches(anything, cache, told.append, asyncio.Semaphore(8), clock=lambda: now[0])
    return client, cache, fetches, told, now


def test_jobs_are_read_until_their_end_is_known(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, cache, fetches, told, _ = scene
    answers = iter([10.0, 12.0, 50.0])

    async def startup(*_: Any) -> Any:
        percent = next(answers, None)
        return None if percent is None else StartupReport(Load("download", percent))

    monkeypatch.setattr(model_fetches, "startup", startup)

    def poll() -> FetchReport | None:
        async def once() -> None:
            async with ClientSession() as session:
                await fetches.poll(session)

        asyncio.run(once())
        return fetches.reports.get("job")

    poll()
    assert client.lists == 0, "without a Job nothing is listed"
    cache.put(JOBS, job("job"))
    running = {"phase": "Running", "podIP": "127.0.0.1"}
    client.pods = [pod("old", "job", 1, phase="Failed"), pod("new", "job", 2, **running), pod("x", "other", 3)]
    report = poll()
    assert [one["metadata"]["name"] for one in report.pods] == ["new", "old"]
    assert (report.load, told) == (Load("download", 10.0), [KEY])
    assert poll().load == Load("download", 10.0), "a small advance is no news"
    assert told == [KEY]
    assert poll().load == Load("download", 50.0)
    assert poll().load == Load("download", 50.0), "a pod that gives no answer keeps its last one"
    assert (told, client.lists) == ([KEY, KEY], 4)

    cache.put(JOBS, job("job", "Complete"))
    client.pods = [pod("new", "job", 2, phase="Succeeded")]
    assert not fetches.reports["job"].final
    ended = poll()
    assert (ended.pods[0]["status"]["phase"], ended.final) == ("Succeeded", True)
    poll()
    assert client.lists == 5, "a Job that has ended is read once"


def test_a_claim_is_read_again_unless_it_is_bound(scene: Any) -> None:
    client, _, fetches, _, now = scene
    named = resource(modelCache={"pvc": {"claimName": "shared"}})

    def read(service: Obj) -> Obj | None:
        return asyncio.run(fetches.claim(service))

    assert read(resource()) is None
    assert read(resource(modelCache={"pvc": {"size": "1Gi"}})) is None
    assert client.gets == 0
    assert read(named) is None
    client.claim = {"metadata": {"name": "shared", "uid": "u"}, "status": {"phase": "Pending"}}
    assert read(named)["metadata"]["uid"] == "u"
    client.claim = {**client.claim, "status": {"phase": "Bound"}}
    assert read(named)["status"]["phase"] == "Bound"
    assert client.gets == 3
    assert read(named)["status"]["phase"] == "Bound"
    assert client.gets == 3
    now[0] += CLAIM_SECONDS
    read(named)
    assert client.gets == 4
