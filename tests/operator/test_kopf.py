"""Tests of kopf, as the operator runs it, with a scripted API server."""

import asyncio
import json
import os
import signal

import pytest
from aiohttp import web

from tests.operator.clients import ScriptedCredentials
from tests.wait import wait_until_async
from unmask_operator import __main__ as program
from unmask_operator import settings as module
from unmask_operator.controller.event_handler import EventHandler
from unmask_operator.kube import watch_login
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.credentials import LoginError
from unmask_operator.kube.kinds import DLMS, KINDS_BY_RESOURCE, OPTIONAL, PODS, ApiKind
from unmask_operator.objects import SERVICE_LABEL, Key
from unmask_operator.settings import Settings

KEY = Key("ns", "demo")
WATCHED = [kind for kind in KINDS_BY_RESOURCE.values() if kind not in OPTIONAL]
KOPFS_OWN = (  # kinds that kopf looks for in the API discovery
    ApiKind("v1", "Namespace", "namespaces"),
    ApiKind("v1", "Event", "events"),
    ApiKind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"),
)
TEN_MINUTES_OF_TRIES = 24
FIVE_MINUTES_OF_TRIES = 2 * 14  # aiohttp repeats a GET once after a dropped connection
FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"  # kopf's default
LAST_STATE = "kopf.zalando.org/last-handled-configuration"


def obj(version, name="p", **more):
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(version)}
    meta |= {"labels": {SERVICE_LABEL: "demo"}, **more.pop("metadata", {})}
    return {"metadata": meta, **more}


def event(change, version, name="p", **more):
    return json.dumps({"type": change, "object": obj(version, name, **more)}).encode() + b"\n"


def bookmark(version):
    return json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}).encode() + b"\n"


def status(code, reason="Reason", message="a message"):
    return {"kind": "Status", "code": code, "reason": reason, "message": message}


def error(code):
    return json.dumps({"type": "ERROR", "object": status(code)}).encode() + b"\n"


class Refusal:
    """An error response instead of a list or stream. Code 0 drops the connection."""

    def __init__(self, code, retry_after=None):
        self.code = code
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


class Scripted:
    """Fake API server with a script for one kind. All other kinds have empty lists and silent watches.

    Lists are answered from `lists`: (version, objects) or (version, objects, continue token). Each watch sends the
    chunks of the next entry of `streams` and ends. Among the chunks, an asyncio.Event is waited for, None is silence,
    and a Refusal breaks the connection. An entry may also be a Refusal. Without an entry, a list is empty and a watch
    stays open.

    Attributes:
        asked: "list" or the resourceVersion of a watch, per request of that kind; `at` has their times.
        all: every request.
    """

    def __init__(self, lists=(), streams=(), kind=PODS):
        self.lists, self.streams, self.kind = list(lists), list(streams), kind
        self.asked, self.at, self.queries, self.all = [], [], [], []
        self.refused_tokens = set()
        self.url = ""

    async def __aenter__(self):
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    def watching(self):
        """Returns the paths that watches were requested for."""
        return {path for method, path, query, _ in self.all if "watch" in query}

    async def _handle(self, request):
        token = request.headers["Authorization"].removeprefix("Bearer ")
        self.all.append((request.method, request.path, dict(request.query), token))
        if token in self.refused_tokens:
            return web.json_response(status(401), status=401)
        if (found := self._discovery(request.path)) is not None:
            return web.json_response(found)
        mine = request.path.endswith(f"/{self.kind.plural}")
        if "watch" in request.query:
            return await self._watch(request, mine)
        return self._list(request, mine)

    def _discovery(self, path):
        kinds = [*KINDS_BY_RESOURCE.values(), *KOPFS_OWN]
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
        self._note(request, "list")
        answer = self.lists.pop(0) if self.lists else (1, ())
        if isinstance(answer, Refusal):
            return self._refuse(request, answer)
        version, items, *token = answer
        return web.json_response({"metadata": {"resourceVersion": str(version), "continue": "".join(token)},
                                  "items": list(items)})  # fmt: skip

    async def _watch(self, request, mine):
        chunks = [None]
        if mine:
            self._note(request, int(request.query["resourceVersion"]))
            chunks = self.streams.pop(0) if self.streams else [None]
        if isinstance(chunks, Refusal):
            return self._refuse(request, chunks)
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            if isinstance(chunk, Refusal):
                request.transport.abort()
                break
            if not isinstance(chunk, bytes):
                await (chunk or asyncio.Event()).wait()
                continue
            await response.write(chunk)
            await asyncio.sleep(0.02)
        return response

    def _note(self, request, what):
        self.asked.append(what)
        self.at.append(asyncio.get_running_loop().time())
        self.queries.append(dict(request.query))

    def _refuse(self, request, refusal):
        if refusal.code == 0:
            request.transport.abort()
        return web.json_response(status(refusal.code), status=refusal.code or 500, headers=refusal.headers)


class Relists:
    """Fake resync that records the lists of kopf."""

    def __init__(self):
        self.paths = []

    def kopf_has_listed(self, path):
        self.paths.append(path)


class Scene:
    """Runs kopf and records the results."""

    def __init__(self, server, settings):
        self.server, self.relists, self.enqueued = server, Relists(), []
        self.operator = program.Operator(settings)
        self.cache: Cache = self.operator._cache
        self.events = EventHandler(self.cache, lambda key, seconds: self.enqueued.append(key))
        self.task = asyncio.create_task(self.operator._watch(self.events, self.relists))

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

    Pauses between attempts are a thousandth of the real ones.
    """
    monkeypatch.setattr(module, "FIRST_BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(module, "LONGEST_BACKOFF_SECONDS", 0.03)
    monkeypatch.setattr(watch_login, "LONGEST_PAUSE_SECONDS", 0.01)

    def begin(server, act, tokens=("t1",), **settings):
        async def scene():
            async with server:
                credentials = ScriptedCredentials(server.url, *tokens)
                monkeypatch.setattr(program, "Credentials", lambda: credentials)
                running = Scene(server, Settings(**settings))
                try:
                    await act(running)
                finally:
                    await running.end()
                return running

        return asyncio.run(scene())

    return begin


async def until_it_ends(scene):
    await asyncio.wait((scene.task,))


def test_kopf_watches_the_operators_kinds_and_writes_nothing(run):
    server = Scripted([(7, [obj(3, "demo")])], kind=DLMS)
    paths = {kind.path(None) for kind in WATCHED}
    assert len(paths) == 10

    async def act(scene):
        await scene.until(lambda: server.watching() == paths)

    scene = run(server, act)
    assert {method for method, _, _, _ in server.all} == {"GET"}
    for _, path, query, _ in server.all:
        if "resourceVersion" in query or "limit" in query:
            expected = None if path == DLMS.path(None) else SERVICE_LABEL
            assert query.get("labelSelector") == expected
        if "watch" in query:
            assert query["allowWatchBookmarks"] == "true"
            assert query["timeoutSeconds"] == "600"
        elif path in paths:
            assert query["limit"] == "100"
    assert sorted(scene.relists.paths) == sorted(["/api", "/api/v1", "/apis", *paths, *{
        kind.root for kind in (*WATCHED, *KOPFS_OWN) if kind.group}])  # fmt: skip
    assert scene.cache.resource(KEY) is not None


def test_namespaces_are_watched_one_by_one_and_nothing_of_the_cluster_is_requested(run):
    server = Scripted()
    paths = {kind.path(namespace) for kind in WATCHED for namespace in ("a", "b")}

    async def act(scene):
        await scene.until(lambda: server.watching() == paths)

    run(server, act, watch_namespaces=("a", "b"))
    objects = {path for _, path, query, _ in server.all if "limit" in query or "watch" in query}
    assert objects == paths


def test_the_selector_of_resources_is_sent_to_the_api_server(run):
    server = Scripted(kind=DLMS)

    async def act(scene):
        await scene.until(lambda: len(server.asked) == 2)

    run(server, act, watch_selector=("track=canary", "!old"))
    assert [query["labelSelector"] for query in server.queries] == ["track=canary,!old"] * 2


def test_a_watch_begins_at_the_lists_version_and_its_events_update_the_cache(run):
    server = Scripted(
        [(7, [obj(3, "old"), obj(4, "gone")])],
        [[event("ADDED", 8, "new") + event("MODIFIED", 9, "old") + event("DELETED", 10, "gone"), None]],
    )

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"old": 9, "new": 8})

    scene = run(server, act)
    assert server.asked == ["list", 7]
    assert scene.enqueued == [KEY] * 5
    assert all("metadata.name" not in query.get("fieldSelector", "") for query in server.queries)


def test_pages_of_a_list_are_applied_one_by_one(run):
    server = Scripted([(7, [obj(3, "a")], "more"), (7, [obj(4, "b")])])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"a": 3, "b": 4})

    run(server, act)
    assert [query.get("continue") for query in server.queries[:2]] == [None, "more"]


def test_lines_may_be_large_and_arrive_in_any_pieces(run):
    large = event("ADDED", 9, "large", padding="x" * 3_000_000)
    stream = event("ADDED", 8, "split") + large + event("ADDED", 10, "last")
    pieces = [stream[:40], stream[40:90], stream[90:1_000_000], stream[1_000_000:]]
    server = Scripted([(7, ())], [[*pieces, None]])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"split": 8, "large": 9, "last": 10})

    run(server, act)
    assert server.asked == ["list", 7]


def test_a_stream_that_ends_is_resumed_from_the_last_version_without_a_list(run):
    streams = [[event("ADDED", 8, "first")], [bookmark(70)], [bookmark(90)], [event("ADDED", 91, "second"), None]]
    server = Scripted([(7, ())], streams)

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"first": 8, "second": 91})

    run(server, act)
    assert server.asked == ["list", 7, 8, 70, 90]


def test_a_connection_that_breaks_within_a_line_loses_nothing(run):
    half = event("ADDED", 9, "second")[:-20]
    server = Scripted([(7, ())], [[event("ADDED", 8, "first") + half, Refusal(0)], [event("ADDED", 9, "second"), None]])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"first": 8, "second": 9})

    run(server, act)
    assert server.asked == ["list", 7, 8]


def test_a_silent_stream_is_opened_again_from_its_version(run, monkeypatch):
    monkeypatch.setattr(module, "INACTIVITY_SECONDS", 0.5)
    server = Scripted([(7, ())], [[None], [None], [event("ADDED", 8, "late"), None]])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"late": 8})

    run(server, act)
    assert server.asked[:4] == ["list", 7, 7, 7]
    assert server.asked.count("list") == 1


def test_an_expired_version_leads_to_a_list_and_notifies_the_resync(run):
    server = Scripted([(7, [obj(3, "a"), obj(4, "b")]), (20, [obj(15, "b")])], [[error(410)]])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"a": 3, "b": 15})
        await scene.until(lambda: len(server.asked) == 4)

    scene = run(server, act)
    assert server.asked == ["list", 7, "list", 20]
    assert scene.relists.paths.count(PODS.path(None)) == 2, (
        "the resync was not notified of each list, so it does not find deletions"
    )


@pytest.mark.parametrize("code", [400, 403, 429, 500, 504])
def test_another_error_inside_a_stream_ends_kopf_and_the_process(run, code):
    server = Scripted([(7, ())], [[event("ADDED", 8, "first"), error(code)]])
    scene = run(server, until_it_ends)
    assert f"'code': {code}" in str(scene.task.exception())
    assert scene.pods() == {"first": 8}


@pytest.mark.parametrize("line", [b"<html>\n", event("ADDED", 9, "second")[:-20]], ids=["no JSON", "half a line"])
def test_a_stream_that_cannot_be_read_ends_kopf_and_so_the_process(run, line):
    server = Scripted([(7, ())], [[event("ADDED", 8, "first") + line]])
    scene = run(server, until_it_ends)
    assert isinstance(scene.task.exception(), ValueError)
    assert scene.pods() == {"first": 8}


def test_a_list_that_expires_half_way_ends_kopf_and_so_the_process(run):
    server = Scripted([(7, [obj(3, "a")], "more"), Refusal(410)])
    scene = run(server, until_it_ends)
    assert scene.task.exception() is not None
    assert scene.errors(410) == 1


def test_a_kind_that_disappears_ends_kopf_and_so_the_process(run):
    server = Scripted([(7, ())], [[bookmark(8)], Refusal(404)], kind=DLMS)
    scene = run(server, until_it_ends)
    assert scene.task.exception() is not None
    assert server.asked == ["list", 7, 8]


@pytest.mark.parametrize("code", [403, 503, *(pytest.param(code, marks=pytest.mark.matrix) for code in (429, 500))])
@pytest.mark.parametrize("where", ["list", "watch"])
def test_kopf_survives_ten_minutes_of_refusals_and_counts_them(run, code, where):
    refusals = [Refusal(code)] * TEN_MINUTES_OF_TRIES
    lists = [*(refusals if where == "list" else ()), (7, [obj(3, "a")])]
    server = Scripted(lists, [*(refusals if where == "watch" else ()), [event("ADDED", 8, "b"), None]])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"a": 3, "b": 8})

    scene = run(server, act)
    assert len(server.asked) == TEN_MINUTES_OF_TRIES + 2
    assert scene.errors(code) == TEN_MINUTES_OF_TRIES


@pytest.mark.parametrize("where", ["list", "watch"])
def test_kopf_survives_five_minutes_without_the_api_server(run, where):
    dropped = [Refusal(0)] * FIVE_MINUTES_OF_TRIES
    lists = [*(dropped if where == "list" else ()), (7, [obj(3, "a")])]
    server = Scripted(lists, [*(dropped if where == "watch" else ()), [event("ADDED", 8, "b"), None]])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"a": 3, "b": 8})

    scene = run(server, act)
    assert server.asked.count("list") == len(lists)
    assert scene.errors(0) >= FIVE_MINUTES_OF_TRIES / 2


@pytest.mark.parametrize("where", ["list", "watch"])
def test_a_throttled_request_waits_as_long_as_the_server_says(run, where):
    throttled = [Refusal(429, retry_after=1)]
    lists = [*(throttled if where == "list" else ()), (7, ())]
    server = Scripted(lists, [*(throttled if where == "watch" else ()), [event("ADDED", 8, "b"), None]])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"b": 8})

    run(server, act)
    first, second = (0, 1) if where == "list" else (1, 2)
    assert server.at[second] - server.at[first] > 0.95


def test_a_rotated_token_is_read_again_and_nothing_is_listed_for_it(run):
    rotated = asyncio.Event()
    server = Scripted([(7, ())], [[bookmark(9), rotated], [event("ADDED", 10, "b"), None]])
    tokens = ("t1", "t2")

    async def act(scene):
        await scene.until(lambda: server.asked == ["list", 7])
        server.refused_tokens.add("t1")
        rotated.set()
        await scene.until(lambda: scene.pods() == {"b": 10})

    run(server, act, tokens)
    assert server.asked == ["list", 7, 9]
    assert {token for *_, token in server.all} == {"t1", "t2"}


def test_a_token_that_is_refused_for_a_while_is_tried_again(run):
    """Simulates the start of an API server, or the time before the kubelet has replaced the token's file."""
    server = Scripted([(7, [obj(3, "a")])])
    server.refused_tokens.add("t1")

    async def act(scene):
        await scene.until(lambda: sum(token == "t1" for *_, token in server.all) >= 20)
        assert server.asked == []
        server.refused_tokens.clear()
        await scene.until(lambda: scene.pods() == {"a": 3})

    run(server, act)


def test_a_login_that_cannot_be_read_is_tried_again(run, monkeypatch):
    monkeypatch.setattr("unmask_operator.handlers.LOGIN_RETRY_SECONDS", 0.01)
    server = Scripted([(7, [obj(3, "a")])])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"a": 3})

    run(server, act, (LoginError("no token"), LoginError("no token"), "t2"))
    assert {token for *_, token in server.all} == {"t2"}


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.kind)
def test_markers_of_another_kopf_operator_stay_and_have_no_effect(run, kind):
    """Checks a finalizer of kopf on an object that is being deleted, and a last state that is no JSON."""
    mark = {
        "finalizers": [FINALIZER],
        "annotations": {LAST_STATE: "no { JSON"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    server = Scripted(
        [(7, [obj(3, "demo", metadata=mark)])], [[event("MODIFIED", 9, "demo", metadata=mark), None]], kind
    )

    async def act(scene):
        await scene.until(lambda: scene.enqueued == [KEY] * 2)

    run(server, act)
    assert {method for method, *_ in server.all} == {"GET"}


def test_an_object_that_kopf_cannot_read_stops_no_other_one(run):
    strange = obj(4, "strange")
    strange["metadata"]["resourceVersion"] = "none"
    server = Scripted([(7, [strange, obj(3, "a")])], [[event("ADDED", 8, "b"), None]])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"a": 3, "b": 8})

    run(server, act)


def test_kopf_logs_neither_events_nor_logins(run, caplog):
    caplog.set_level("DEBUG")
    server = Scripted([(7, [obj(3, "a")])], [[event("ADDED", 8, "b"), None]])

    async def act(scene):
        await scene.until(lambda: scene.pods() == {"a": 3, "b": 8})

    program.logs.configure(Settings(log_level="debug", log_format="json"))
    run(server, act)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("kopf")] == []


def test_a_signal_ends_the_operator_and_not_kopf_alone(run):
    server = Scripted()

    async def act(scene):
        await scene.until(lambda: server.watching())
        os.kill(os.getpid(), signal.SIGTERM)
        await wait_until_async(scene.operator._stop.is_set)
        assert not scene.task.done()

    run(server, act)
