"""Tests of kopf, as the operator runs it, with a scripted API server."""

import asyncio
import json
import logging
import os
import signal
from types import SimpleNamespace

import pytest
from aiohttp import web

from tests.operator.clients import ScriptedCredentials, http_server
from tests.operator.samples import seen as obj
from tests.simulated_time import simulated
from tests.wait import wait_until_async
from unmask_operator import __main__ as program
from unmask_operator import settings as module
from unmask_operator.controller.resync import EventHandler
from unmask_operator.kinds import CACHED, CLAIMS, DLMS, JOBS, OPTIONAL, PODS, ApiKind
from unmask_operator.kube import watch_login
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.credentials import LoginError
from unmask_operator.leaderelection import DEADLINE_SECONDS
from unmask_operator.objects import SERVICE_LABEL, Key
from unmask_operator.program import configure_logs
from unmask_operator.settings import Settings

KEY = Key("ns", "demo")
WATCHED = [kind for kind in CACHED if kind not in OPTIONAL]
KOPFS_OWN = (  # kinds that kopf looks for in the API discovery
    ApiKind("v1", "Namespace", "namespaces"),
    ApiKind("v1", "Event", "events"),
    ApiKind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"),
)
FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"  # kopf's default
STAMP = "2026-01-01T00:00:00Z"
LAST_STATE = "kopf.zalando.org/last-handled-configuration"


def line(change, content):
    return json.dumps({"type": change, "object": content}).encode() + b"\n"


def event(change, version, name="p", **more):
    return line(change, obj(version, name, **more))


def status(code):
    return {"kind": "Status", "code": code, "reason": "Reason", "message": "a message"}


def error(code):
    return line("ERROR", status(code))


class Scripted:
    """Fake API server with a script for one kind. All other kinds have empty lists and silent watches.

    Lists are answered from `lists`: (version, objects). Each watch sends the chunks of the next entry of `streams` and
    ends. Among the chunks, an asyncio.Event is waited for, and None is silence. An entry of both may also be the status
    of an error; 0 drops the connection. Without an entry, a list is empty and a watch stays open.

    Attributes:
        asked: "list" or the resourceVersion of a watch, per request of that kind.
        all: every request.
    """

    def __init__(self, lists=(), streams=(), kind=PODS):
        self.lists, self.streams, self.kind = list(lists), list(streams), kind
        self.asked, self.all = [], []
        self.refused_tokens = set()

    def watching(self):
        """Returns the paths that watches were requested for."""
        return {path for method, path, query, _ in self.all if "watch" in query}

    async def handle(self, request):
        token = request.headers["Authorization"].removeprefix("Bearer ")
        self.all.append((request.method, request.path, dict(request.query), token))
        if token in self.refused_tokens:
            return web.json_response(status(401), status=401)
        if isinstance(found := self._discovery(request.path), asyncio.Event):
            await found.wait()
        if found is not None:
            return web.json_response(found)
        mine = request.path.endswith(f"/{self.kind.plural}")
        if "watch" in request.query:
            return await self._watch(request, mine)
        return self._list(request, mine)

    def _discovery(self, path):
        kinds = [*CACHED, JOBS, CLAIMS, *KOPFS_OWN]
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            versions = {kind.group: kind.resource[1] for kind in kinds if kind.group}
            entries = {group: {"version": version} for group, version in versions.items()}
            return {"groups": [{"name": g, "versions": [v], "preferredVersion": v} for g, v in entries.items()]}
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        resources = [
            {"name": kind.plural, "kind": kind.kind, "singularName": "", "namespaced": True, "verbs": verbs}
            for kind in kinds
            if kind.root == path
        ]
        return {"resources": resources} if resources else None

    def _list(self, request, mine):
        if not mine:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        self.asked.append("list")
        answer = self.lists.pop(0) if self.lists else (1, ())
        if isinstance(answer, int):
            return self._refuse(request, answer)
        version, items = answer
        return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": list(items)})

    async def _watch(self, request, mine):
        chunks = [None]
        if mine:
            self.asked.append(int(request.query["resourceVersion"]))
            chunks = self.streams.pop(0) if self.streams else [None]
        if isinstance(chunks, int):
            return self._refuse(request, chunks)
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            if isinstance(chunk, bytes):
                await response.write(chunk)
                await asyncio.sleep(0.02)
            else:
                await (chunk or asyncio.Event()).wait()
        return response

    def _refuse(self, request, code):
        if code == 0:
            request.transport.abort()
        return web.json_response(status(code), status=code or 500)


class Scene:
    """Runs kopf and records the results. `listed` are the paths of kopf's lists."""

    def __init__(self, server, settings):
        self.server, self.listed, self.enqueued = server, [], []
        self.operator = program.Operator(settings)
        self.cache: Cache = self.operator._cache
        self.events = EventHandler(self.cache, lambda key, seconds: self.enqueued.append(key))
        resync = SimpleNamespace(kopf_has_listed=self.listed.append)
        self.task = asyncio.create_task(self.operator._watch(self.events, resync))

    async def end(self):
        """Ends kopf instead of the process. Tasks that kopf leaves behind after an error may ignore a cancellation."""
        self.task.cancel()
        await asyncio.wait((self.task,))
        await self.operator._client.close()
        while left := {task for task in asyncio.all_tasks() if task.get_name().startswith("watcher for ")}:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.1)

    def errors(self, code):
        registry = self.operator._metrics.registry
        return registry.get_sample_value("unmask_operator_api_errors_total", {"status": str(code)}) or 0

    async def until(self, condition):
        def look():
            if self.task.done():
                self.task.result()
            return condition()

        await wait_until_async(look)

    def pods(self):
        return {pod["metadata"]["name"]: int(pod["metadata"]["resourceVersion"]) for pod in self.cache.pods(KEY)}


@pytest.fixture
def run(monkeypatch):
    """Returns a function that runs kopf with a scripted server while `act(scene)` runs.

    `act` may also be the pods to wait for. Pauses between attempts are a thousandth of the real ones.
    """
    monkeypatch.setattr(module, "FIRST_BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(module, "LONGEST_BACKOFF_SECONDS", 0.03)
    monkeypatch.setattr(watch_login, "LONGEST_PAUSE_SECONDS", 0.01)

    def begin(server, act, tokens=("t1",), **settings):
        async def scene():
            async with http_server(server.handle) as port:
                credentials = ScriptedCredentials(f"http://127.0.0.1:{port}", *tokens)
                monkeypatch.setattr(program, "Credentials", lambda: credentials)
                running = Scene(server, Settings(**settings))
                try:
                    await (running.until(lambda: running.pods() == act) if isinstance(act, dict) else act(running))
                finally:
                    await running.end()
                return running

        return asyncio.run(scene())

    return begin


def watching(paths):
    return lambda scene: scene.until(lambda: scene.server.watching() == paths)


@pytest.mark.parametrize(("selector", "cache"), [((), False), (("track=canary", "!old"), True)])
def test_kopf_watches_the_operators_kinds_with_their_selectors_and_writes_nothing(run, selector, cache):
    server = Scripted([(7, [obj(3, "demo")])], kind=DLMS)
    watched = [*WATCHED, JOBS, CLAIMS] if cache else WATCHED
    paths = {kind.path(None) for kind in watched}
    assert len(paths) == (12 if cache else 10)
    scene = run(server, watching(paths), watch_selector=selector, model_cache=cache)
    assert {method for method, _, _, _ in server.all} == {"GET"}
    for _, path, query, _ in server.all:
        if "resourceVersion" in query or "limit" in query:
            assert query.get("labelSelector", "") == (",".join(selector) if path == DLMS.path(None) else SERVICE_LABEL)
        if "watch" in query:
            assert query["allowWatchBookmarks"] == "true"
            assert query["timeoutSeconds"] == "600"
        elif path in paths:
            assert query["limit"] == "100"
    roots = {kind.root for kind in (*watched, *KOPFS_OWN) if kind.group}
    assert sorted(scene.listed) == sorted(["/api", "/api/v1", "/apis", *paths, *roots])
    assert scene.cache.resource(KEY) is not None


def test_namespaces_are_watched_one_by_one_and_nothing_of_the_cluster_is_requested(run):
    server = Scripted()
    paths = {kind.path(namespace) for kind in WATCHED for namespace in ("a", "b")}
    run(server, watching(paths), watch_namespaces=("a", "b"))
    assert {path for _, path, query, _ in server.all if "limit" in query or "watch" in query} == paths


EMPTY = [(7, ())]
FIRST = event("ADDED", 8, "first")
CHANGES = event("ADDED", 8, "new") + event("MODIFIED", 9, "old") + event("DELETED", 10, "gone")
TWO, LATER = [(7, [obj(3, "a"), obj(4, "b")]), (20, [obj(15, "b")])], event("MODIFIED", 21, "b")
# What is listed and streamed, the pods in the cache then, and the versions that lists and watches began with.
STREAMS = {
    "events": ([(7, [obj(3, "old"), obj(4, "gone")])], [[CHANGES, None]], {"old": 9, "new": 8}, ["list", 7]),
    "an expired version": (TWO, [[error(410)], [LATER, None]], {"a": 3, "b": 21}, ["list", 7, "list", 20]),
}


@pytest.mark.parametrize(("lists", "streams", "pods", "asked"), STREAMS.values(), ids=STREAMS)
def test_lists_and_watches_update_the_cache(run, lists, streams, pods, asked):
    server = Scripted(lists, streams)
    scene = run(server, pods)
    assert server.asked == asked
    assert set(scene.enqueued) == {KEY}
    assert scene.listed.count(PODS.path(None)) == server.asked.count("list"), (
        "the resync was not notified of each list, so it does not find deletions"
    )


def test_a_silent_stream_is_opened_again_from_its_version(run, monkeypatch):
    monkeypatch.setattr(module, "INACTIVITY_SECONDS", 0.5)
    server = Scripted(EMPTY, [[None], [None], [FIRST, None]])
    run(server, {"first": 8})
    assert server.asked[:4] == ["list", 7, 7, 7]


def test_an_error_inside_a_stream_ends_the_process(run):
    async def until_it_ends(scene):
        await asyncio.wait((scene.task,))

    scene = run(Scripted(EMPTY, [[FIRST, error(500)]]), until_it_ends)
    assert "'code': 500" in str(scene.task.exception())


@pytest.mark.parametrize("code", [403, 0])
@pytest.mark.parametrize("where", ["list", "watch"])
def test_kopf_survives_minutes_of_refusals_and_counts_them(run, code, where):
    refusals = [code] * 24
    lists = [*(refusals if where == "list" else ()), (7, [obj(3, "a")])]
    server = Scripted(lists, [*(refusals if where == "watch" else ()), [FIRST, None]])
    scene = run(server, {"a": 3, "first": 8})
    assert server.asked.count("list") == len(lists)
    assert scene.errors(code) == 24 if code else scene.errors(0) >= 6  # aiohttp repeats a GET without an answer


def test_a_rotated_token_is_read_again_and_nothing_is_listed_for_it(run):
    rotated = asyncio.Event()
    server = Scripted(EMPTY, [[event("ADDED", 9, "a"), rotated], [event("ADDED", 10, "b"), None]])

    async def act(scene):
        await scene.until(lambda: server.asked == ["list", 7])
        server.refused_tokens.add("t1")
        rotated.set()
        await scene.until(lambda: scene.pods() == {"a": 9, "b": 10})

    run(server, act, ("t1", "t2"))
    assert server.asked == ["list", 7, 9]
    assert {token for *_, token in server.all} == {"t1", "t2"}


def test_a_login_that_cannot_be_read_is_tried_again(run, monkeypatch):
    monkeypatch.setattr("unmask_operator.handlers.LOGIN_RETRY_SECONDS", 0.01)
    server = Scripted([(7, [obj(3, "a")])])
    run(server, {"a": 3}, (LoginError("no token"), LoginError("no token"), "t2"))
    assert {token for *_, token in server.all} == {"t2"}


def test_markers_of_another_kopf_operator_stay_and_have_no_effect(run):
    mark = {"finalizers": [FINALIZER], "annotations": {LAST_STATE: "no { JSON"}, "deletionTimestamp": STAMP}
    changed = event("MODIFIED", 9, "demo", metadata=mark)
    server = Scripted([(7, [obj(3, "demo", metadata=mark)])], [[changed, None]], DLMS)
    run(server, lambda scene: scene.until(lambda: scene.enqueued == [KEY] * 2))
    assert {method for method, *_ in server.all} == {"GET"}


def test_kopf_logs_neither_events_nor_logins(run, caplog):
    caplog.set_level("DEBUG")
    configure_logs(Settings(log_level="debug", log_format="json"))
    run(Scripted([(7, [obj(3, "a")])], [[FIRST, None]]), {"a": 3, "first": 8})
    assert [record.getMessage() for record in caplog.records if record.name.startswith("kopf")] == []


def test_a_signal_ends_the_operator_and_not_kopf_alone(run):
    async def act(scene):
        await scene.until(scene.server.watching)
        os.kill(os.getpid(), signal.SIGTERM)
        await wait_until_async(scene.operator._stop.is_set)
        assert not scene.task.done()

    run(Scripted(), act)


def test_a_stop_before_kopf_has_read_the_discovery_logs_no_error(run, caplog):
    class Slow(Scripted):
        def _discovery(self, path):
            return asyncio.Event() if path == "/apis" else super()._discovery(path)

    async def act(scene):
        await scene.until(lambda: any(path == "/apis" for _, path, *_ in scene.server.all))
        await scene.end()

    run(Slow(), act)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@simulated
async def test_an_operator_may_write_only_while_it_leads_in_time():
    operator = program.Operator(Settings())
    lease = operator._elector._lease
    now = lease.clock()
    lease.clock = lambda: now
    for lease.renewed_at, leads in ((None, False), (now, True), (now - DEADLINE_SECONDS, False)):
        assert operator._client.may_write() == leads


@pytest.mark.parametrize("fails", [True, False], ids=["a failure", "a stop"])
@simulated
async def test_an_operator_releases_the_lease_and_a_failure_ends_the_process(fails, monkeypatch, caplog):
    done = []
    monkeypatch.setattr(program, "exit_at_once", lambda: done.append("exit"))
    operator = program.Operator(Settings())

    async def release():
        done.append("release")

    async def lead():
        if fails:
            raise BaseExceptionGroup("tasks", [RuntimeError("kopf has ended")])
        await asyncio.Event().wait()

    operator._elector.release = release
    election = asyncio.create_task(lead())
    await asyncio.sleep(1)
    await operator._end(election)
    assert done == (["release", "exit"] if fails else ["release"])
    assert election.done()
    assert ("operator exiting: kopf has ended" in caplog.text) == fails
