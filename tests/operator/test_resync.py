"""Each kind is listed and followed: against an API server that answers from a script, and in simulated time."""

import asyncio
import itertools
import json
import random

import pytest
from aiohttp import web

from tests.simulated_time import now, run_simulated
from tests.wait import TIMEOUT, wait_until_async
from unmask_operator.client.client import Client
from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import CHILDREN, POD_MONITORS, PODS, SERVICES, kind_of
from unmask_operator.client.login import Login
from unmask_operator.client.store import Store
from unmask_operator.controller import watches
from unmask_operator.controller.watches import (
    DISCOVERY_SECONDS,
    KINDS,
    LONGEST_PAUSE_SECONDS,
    NEEDED,
    SETTLE_READY_SECONDS,
    SETTLE_SECONDS,
    UNASKED_LOOKS,
    Watches,
    settle_seconds,
)
from unmask_operator.objects import SERVICE_LABEL, Key
from unmask_operator.process.metrics import Metrics
from unmask_operator.settings import Settings
from unmask_operator.state.plan import MISSING_CRD

KEY = Key("ns", "demo")


def _pod(ready):
    return {"status": {"conditions": [{"type": "Ready", "status": ready}]}}


@pytest.mark.parametrize(
    ("kind", "obj", "seconds"),
    [
        (SERVICES, {}, 0.0),
        (PODS, {}, SETTLE_SECONDS),
        (PODS, _pod("False"), SETTLE_SECONDS),
        (PODS, _pod("True"), SETTLE_READY_SECONDS),
        *((kind, {}, SETTLE_SECONDS) for kind in CHILDREN),
    ],
)
def test_an_edit_is_carried_out_at_once_and_a_burst_of_changes_is_waited_for(kind, obj, seconds):
    assert settle_seconds(kind, obj) == seconds


def obj(version, name="p", **more):
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": meta | {"labels": {SERVICE_LABEL: "demo"}}, **more}


def event(change, version, name="p", **more):
    return json.dumps({"type": change, "object": obj(version, name, **more)}).encode() + b"\n"


def bookmark(version):
    return json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}).encode() + b"\n"


HALF = 7000  # the version of a list that has another page
EXPIRED = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


class Scripted:
    """An API server. Lists answer from `lists`, (version, names); each watch sends the chunks of the next entry of
    `streams`, and then ends; None in it is silence. Without an entry, a watch stays open."""

    def __init__(self, lists, streams):
        self.lists, self.streams = list(lists), list(streams)
        self.asked = []  # "list", or the version that a watch goes on from
        self.queries, self.tokens = [], []
        self.idle = asyncio.Event()

    async def handle(self, request):
        self.queries.append(dict(request.query))
        self.tokens.append(request.headers["Authorization"])
        if "watch" not in request.query:
            self.asked.append("list")
            answer = self.lists.pop(0)
            if isinstance(answer, int):
                return web.json_response({**EXPIRED, "code": answer}, status=answer)
            version, names = answer
            items = [obj(v, name) for name, v in names.items()]
            meta = {"resourceVersion": str(version), **({"continue": "more"} if version == HALF else {})}
            return web.json_response({"metadata": meta, "items": items})
        self.asked.append(int(request.query["resourceVersion"]))
        chunks = self.streams.pop(0) if self.streams else [None]
        if isinstance(chunks, int):
            return web.json_response({**EXPIRED, "code": chunks}, status=chunks)
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            if chunk is None:
                if not self.streams:
                    self.idle.set()
                await asyncio.Event().wait()
            await response.write(chunk)
            await asyncio.sleep(0.02)
        return response


def events(stream):
    """How many of a stream's lines a client takes for events that are no errors."""
    whole = b"".join(chunk for chunk in stream if chunk) if isinstance(stream, list) else b""
    return sum(line.startswith(b'{"type": ') and b'"ERROR"' not in line for line in whole.split(b"\n")[:-1])


def follow(lists, streams, kind=PODS, silences=()):
    """One watch against a scripted server, until the server has nothing more to tell. Returns the server, the store,
    and what was news. Of the first streams `silences` are the limits; the others have one that is never reached."""
    random.seed(1)

    async def scene():
        server, store, news = Scripted(lists, streams), Store(), []
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        tokens = iter(["t1", *["t2"] * 99])
        client = Client(lambda: Login(f"http://127.0.0.1:{runner.addresses[0][1]}", next(tokens)))
        told, heard, whole = sum(map(events, streams)), [], client.watch
        limits = itertools.chain(silences, itertools.repeat(10 * TIMEOUT))

        def watch(*asked):
            def take(change, obj):
                heard.append(change)
                asked[-1](change, obj)

            return whole(*asked[:-1], take, silence=next(limits))

        client.watch = watch
        every = Watches(client, store, lambda key, seconds: news.append(key), Settings(), Metrics(store, lambda: 0))
        (one,) = (watch for watch in every._watches if watch.kind is kind)
        task = asyncio.create_task(one.run())
        waiting = asyncio.create_task(server.idle.wait())
        await asyncio.wait((task, waiting), timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        assert server.idle.is_set()
        await wait_until_async(lambda: len(heard) >= told)  # what was sent may not have been read yet
        task.cancel()
        await client.close()
        await runner.cleanup()
        return server, store, news

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watches, "LONGEST_PAUSE_SECONDS", 0.05)
        return asyncio.run(scene())


def pods(store):
    return {pod["metadata"]["name"]: int(pod["metadata"]["resourceVersion"]) for pod in store.pods(KEY)}


def test_a_list_is_followed_from_its_version_and_events_change_what_is_known():
    server, store, news = follow(
        [(7, {"old": 3, "gone": 4})],
        [[event("ADDED", 8, "new") + event("MODIFIED", 9, "old") + event("DELETED", 10, "gone"), None]],
    )
    assert server.asked == ["list", 7]
    assert pods(store) == {"old": 9, "new": 8}
    assert news == [KEY] * 5
    listing, watching = server.queries
    assert watching["labelSelector"] == listing["labelSelector"] == SERVICE_LABEL
    assert watching["allowWatchBookmarks"] == "true"
    assert 500 < int(watching["timeoutSeconds"]) < 700


def test_lines_come_in_any_pieces_and_may_be_large():
    large = event("ADDED", 9, "large", padding="x" * 3_000_000)
    whole = event("ADDED", 8, "split") + large + event("ADDED", 10, "last")
    pieces = [whole[:40], whole[40:90], whole[90:1_000_000], whole[1_000_000:]]
    server, store, _ = follow([(7, {})], [[*pieces, None]])
    assert pods(store) == {"split": 8, "large": 9, "last": 10}
    assert server.asked == ["list", 7]


def test_half_a_line_at_the_end_is_none_and_the_next_stream_goes_on_before_it():
    half = event("ADDED", 9, "second")[:-20]
    server, store, _ = follow([(7, {})], [[event("ADDED", 8, "first") + half], [event("ADDED", 9, "second"), None]])
    assert server.asked == ["list", 7, 8]
    assert pods(store) == {"first": 8, "second": 9}


def test_a_bookmark_is_where_the_next_stream_goes_on_from():
    server, _, _ = follow([(7, {})], [[bookmark(70), bookmark(90)], []])
    assert server.asked[:3] == ["list", 7, 90]


def test_what_went_while_a_list_expired_half_way_is_forgotten():
    server, store, news = follow([(HALF, {"a": 3, "b": 4}), 410, (7020, {"b": 4})], [])
    assert server.asked == ["list", "list", "list", 7020]
    assert pods(store) == {"b": 4}
    assert news == [KEY] * 3


@pytest.mark.parametrize("how", ["in the stream", "as the answer"])
def test_a_version_that_is_too_old_is_listed_anew_and_what_went_meanwhile_is_forgotten(how, caplog):
    caplog.set_level("INFO")
    error = json.dumps({"type": "ERROR", "object": EXPIRED}).encode() + b"\n"
    server, store, news = follow([(7, {"a": 3, "b": 4}), (20, {"b": 4})], [410 if how == "as the answer" else [error]])
    assert server.asked == ["list", 7, "list", 20]
    assert pods(store) == {"b": 4}
    assert news == [KEY] * 3
    assert "pods are listed anew: too old resource version" in caplog.text


def test_an_etcd_of_older_versions_is_followed_from_where_it_is():
    """Its objects are older than what is known, and ignored: the Lease tells of it, and the process starts over."""
    server, store, _ = follow([(700, {"a": 600}), (20, {"a": 10})], [410])
    assert server.asked == ["list", 700, "list", 20]
    assert pods(store) == {"a": 600}


def test_a_stream_that_says_nothing_for_too_long_is_dead_and_the_kind_is_listed_anew(caplog):
    server, store, _ = follow([(7, {"a": 3}), (9, {})], [[None], [bookmark(10), None]], silences=[1.0])
    assert server.asked == ["list", 7, "list", 9]
    assert pods(store) == {}
    assert "cannot watch pods: GET /api/v1/pods: not even a bookmark for 1 s" in caplog.text


def test_a_line_that_is_no_event_is_no_reason_to_end(caplog):
    server, _, _ = follow([(7, {}), (8, {})], [[b"<html>\n"]])
    assert server.asked == ["list", 7, "list", 8]
    assert "cannot watch pods: a watch of pods has a line that is no event" in caplog.text


def test_a_token_that_is_not_good_any_more_is_read_again_and_nothing_is_listed_for_it():
    server, _, _ = follow([(7, {})], [401])
    assert server.asked == ["list", 7, 7]
    assert server.tokens == ["Bearer t1", "Bearer t1", "Bearer t2"]


def test_resources_are_listed_before_each_stream_in_case_the_last_one_left_out_a_new_field():
    server, _, _ = follow([(7, {}), (9, {})], [[bookmark(8)]], kind=SERVICES)
    assert server.asked == ["list", 7, "list", 9]


class Fallible:
    """A client whose lists hold one Service and fail for the kinds of `fails`; watches say nothing for ever."""

    def __init__(self, fails=(), missing=()):
        self.fails, self.missing = set(fails), set(missing)
        self.listed = []
        self.at_once = self.most_at_once = 0

    async def list(self, kind, namespace, selector, keep):
        self.listed.append((namespace, kind))
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if kind in self.missing:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if kind in self.fails:
            raise ApiError(500, "InternalError", "no")
        return [keep(obj(7))] if kind == kind_of("v1", "Service") else [], 7

    async def watch(self, *asked):
        await asyncio.Event().wait()


def run(client, lists, store=None, namespaces=()):
    """All watches until so many lists were asked for and answered; returns them, their metrics, and what was news."""
    store = store or Store()
    metrics, news = Metrics(store, lambda: 0), []

    async def scene():
        settings = Settings(watch_namespaces=namespaces)
        every = Watches(client, store, lambda key, wait: news.append(key), settings, metrics)
        task = asyncio.create_task(every.run())
        await wait_until_async(lambda: len(set(client.listed)) >= lists and not client.at_once)
        await asyncio.sleep(3 * LONGEST_PAUSE_SECONDS)  # what must not happen would
        assert not task.done()
        task.cancel()
        return every

    return run_simulated(scene()), metrics, news


def test_few_kinds_are_listed_at_once():
    client = Fallible()
    every, _, _ = run(client, 2 * len(KINDS), namespaces=("a", "b"))
    assert every.known.is_set()
    assert len(client.listed) == 2 * len(KINDS)
    assert client.most_at_once == watches.LISTS_AT_ONCE


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_kind_that_cannot_be_listed_is_named_and_holds_up_only_what_needs_it(kind, caplog):
    every, metrics, news = run(Fallible({kind}), len(KINDS))
    assert every.known.is_set() == (kind not in NEEDED)
    assert {need.kind for need in NEEDED} == {"DiffusionLMService", "Pod", "Deployment", "ControllerRevision"}
    assert f"cannot list {kind.plural}: no (500 InternalError)" in caplog.text
    assert metrics.registry.get_sample_value("unmask_operator_api_errors_total", {"status": "500"}) >= 1
    if kind.kind != "Service":
        assert news == [KEY], "what one list brings is news though another fails"


def test_nothing_is_known_before_every_kind_was_asked_for():
    """A create would tell of a child that is there; but who takes over must not write what is there."""
    client = Fallible()

    async def slow(kind, namespace, selector, keep, whole=client.list):
        if kind is CHILDREN[0]:
            await asyncio.Event().wait()
        return await whole(kind, namespace, selector, keep)

    client.list = slow
    every, _, _ = run(client, len(KINDS) - 1)
    assert not every.known.is_set()


def test_what_fails_is_tried_again_after_growing_pauses_without_an_end():
    tries, store = [], Store()

    class Client:
        async def list(self, *asked, **how):
            tries.append(now())
            if len(tries) > 1100:
                raise asyncio.CancelledError
            raise ApiError(500, "InternalError", "no")

    async def scene():
        every = Watches(Client(), store, lambda key, wait: None, Settings(), Metrics(store, lambda: 0))
        (one,) = (watch for watch in every._watches if watch.kind is PODS)
        await one.run()

    with pytest.raises(asyncio.CancelledError):
        run_simulated(scene())
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(tries)]
    assert pauses == [1, 2, 4, 8, 16] + [LONGEST_PAUSE_SECONDS] * 1095


@pytest.mark.parametrize("waits", [True, False])
def test_a_kind_that_is_missing_is_looked_for_soon_where_a_resource_waits_and_else_seldom(waits):
    client, store = Fallible(missing={POD_MONITORS}), Store()
    conditions = [{"type": "UpToDate", "status": "False", "reason": MISSING_CRD}] if waits else []
    store.put(SERVICES, obj(3, "demo", status={"conditions": conditions}))

    async def scene():
        every = Watches(client, store, lambda key, wait: None, Settings(), Metrics(store, lambda: 0))
        (one,) = (watch for watch in every._watches if watch.kind is POD_MONITORS)
        await one._once()
        return every, now()

    every, passed = run_simulated(scene())
    assert passed == pytest.approx(DISCOVERY_SECONDS * (1 if waits else UNASKED_LOOKS), abs=0.1)
    assert every.apis == frozenset()


def test_a_kind_that_comes_is_watched_and_one_that_goes_is_forgotten():
    service, monitor = obj(3, "demo"), obj(9, "monitor")
    watching, store, seen = [], Store(), []

    class Client:
        made = 0

        async def list(self, kind, namespace, selector, keep):
            Client.made += 1
            if Client.made == 2:
                return [keep(monitor)], 9
            raise ApiError(404, "NotFound", "the server could not find the requested resource")

        async def watch(self, kind, namespace, selector, version, take):
            watching.append(version)
            seen.append((every.apis, len(store.children(KEY))))
            raise ApiError(404, "NotFound", "the server could not find the requested resource")

    async def scene():
        nonlocal every
        every = Watches(Client(), store, lambda key, wait: news.append(key), Settings(), Metrics(store, lambda: 0))
        store.put(SERVICES, service)
        (one,) = (watch for watch in every._watches if watch.kind is POD_MONITORS)
        task = asyncio.create_task(one.run())
        await wait_until_async(lambda: Client.made >= 3, interval=1.0)
        await asyncio.sleep(DISCOVERY_SECONDS)
        task.cancel()

    every, news = None, []
    run_simulated(scene())
    assert watching == [9]
    assert seen == [(frozenset({POD_MONITORS.api}), 1)]
    assert every.apis == frozenset()
    assert store.children(KEY) == {}
    assert len(news) >= 4, "its coming and its going, and what came and went with it"
