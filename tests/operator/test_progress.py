"""Asking loading pods how far they are."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from unmask_operator.controller.progress import Progress, is_loading, is_news
from unmask_operator.objects import Key
from unmask_operator.state.observed import Load

DEMO = Key("ns", "demo")
STATUS = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "False"}]}
LOADING = {"metadata": {"uid": "uid"}, "status": STATUS}


def run_with_pod(answers, polls, tells="loads", step=5, asked=None, states=()):
    """Poll a pod that gives `answers` in turn (None: it hangs up), every `step` seconds; what it `tells`, and how often
    news were told. Into `asked` go the times, and of `states` is the pod at each poll."""
    told, seen, clock = [], [], [0]
    states = states or [LOADING] * polls

    async def startup(request):
        if asked is not None:
            asked.append(clock[0])
        answer = answers.pop(0)
        if answer is None:
            request.transport.close()
            return web.Response()
        status, body = answer
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(text=text, status=status, content_type="application/json")

    async def scene():
        app = web.Application()
        app.router.add_get("/startup", startup)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        progress = Progress(lambda: [(DEMO, states[clock[0] // step])], told.append, port, lambda: clock[0])
        async with aiohttp.ClientSession() as session:
            for _ in range(polls):
                await progress.poll(session)
                seen.append(getattr(progress, tells).get("uid"))
                clock[0] += step
        await runner.cleanup()

    asyncio.run(scene())
    return seen, told


def loading(percent, phase="weights"):
    return 503, {"status": "loading", "phase": phase, "percent": percent}


def test_progress_is_kept_and_only_steps_are_told():
    seen, told = run_with_pod([loading(10), loading(12), loading(15.5), loading(15.5, "warm-up")], 4)
    assert seen == [Load("weights", 10), Load("weights", 10), Load("weights", 15.5), Load("warm-up", 15.5)]
    assert told == [DEMO] * 3


def test_a_pod_that_does_not_answer_keeps_its_last_word():
    seen, told = run_with_pod([loading(40), None, (200, {"status": "ok"}), (503, ["no"])], 4, step=100)
    assert seen == [Load("weights", 40)] * 4
    assert told == [DEMO]


SILENT = (503, "")


def test_a_pod_that_does_not_answer_is_asked_seldom_until_it_does():
    asked = []
    run_with_pod([SILENT] * 8, 60, asked=asked)
    assert asked == [0, 5, 15, 35, 75, 135, 195, 255]
    asked.clear()
    run_with_pod([SILENT, SILENT, loading(1), loading(2), *[SILENT] * 2], 7, asked=asked)
    assert asked == [0, 5, 15, 20, 25, 30]


def test_a_silent_pod_that_gets_ready_is_asked_at_once():
    ready = {**STATUS, "conditions": [{"type": "Ready", "status": "True"}]}
    variable = {"name": "MODEL_REVISION", "valueFrom": {"configMapKeyRef": {"name": "demo-model", "key": "k"}}}
    spec = {"containers": [{"name": "main", "env": [variable]}]}
    asked = []
    states = [{**LOADING, "spec": spec}] * 6 + [{**LOADING, "spec": spec, "status": ready}] * 3
    run_with_pod(
        [SILENT] * 3 + [(200, {"status": "started", "model_revision": "a" * 40})], 9, asked=asked, states=states
    )
    assert asked == [0, 5, 15, 30]


HUGE = "1" + "0" * 400


@pytest.mark.parametrize("body", ["[" * 60_000, f'{{"phase": "weights", "percent": {HUGE}}}', "\xff", ""])
def test_whatever_a_pod_answers_harms_nobody(body):
    seen, told = run_with_pod([loading(40), (503, body)], 2)
    assert seen == [Load("weights", 40)] * 2
    assert told == [DEMO]


def test_a_phase_is_no_longer_than_the_status_has_room_for():
    seen, _ = run_with_pod([loading(40, "x" * 1000)], 1)
    assert seen == [Load("x" * 64, 40)]


def test_a_pod_that_nobody_asks_about_any_more_is_forgotten():
    async def scene():
        pods = [(DEMO, LOADING)]
        progress = Progress(lambda: pods, lambda _: None, 1)
        progress.loads = {"uid": Load("weights", 1)}
        async with aiohttp.ClientSession() as session:
            await progress.poll(session)
            assert progress.loads
            pods.clear()
            await progress.poll(session)
            assert not progress.loads

    asyncio.run(scene())


def test_news_are_a_phase_or_five_percent():
    assert not is_news(Load("a", 10), Load("a", 14.9))
    assert is_news(Load("a", 10), Load("a", 15))
    assert is_news(Load("a", 10), Load("b", 10))


@pytest.mark.parametrize(
    ("change", "asked"),
    [({}, True), ({"phase": "Pending"}, False), ({"podIP": ""}, False),
     ({"conditions": [{"type": "Ready", "status": "True"}]}, False)],
)  # fmt: skip
def test_who_is_asked(change, asked):
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "False"}], **change}
    assert is_loading({"metadata": {}, "status": status}) is asked


def test_a_pod_on_its_way_out_is_not_asked():
    assert not is_loading({"metadata": {"deletionTimestamp": "t"}, "status": {"phase": "Running", "podIP": "1.2.3.4"}})


def test_a_pod_that_has_started_says_once_what_it_loaded():
    commit = "0123456789" * 4
    progress = Progress(list, lambda key: None)
    variable = {"name": "MODEL_REVISION", "valueFrom": {"configMapKeyRef": {"name": "demo-model", "key": "k"}}}
    pod = {
        "metadata": {"uid": "uid"},
        "spec": {"containers": [{"name": "main", "env": [variable]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert progress.wants_revision(pod)
    assert not progress.wants_revision({**pod, "spec": {"containers": [{"name": "main"}]}})
    assert not progress.wants_revision({**pod, "status": {"phase": "Pending"}})
    progress.revisions["uid"] = commit
    assert not progress.wants_revision(pod)


@pytest.mark.parametrize(
    ("body", "revision"),
    [
        ({"model_revision": "0123456789" * 4}, "0123456789" * 4),
        ({}, ""),
        ({"model_revision": "main"}, ""),
        ({"model_revision": ["x"]}, ""),
    ],
)
def test_the_commit_that_a_pod_tells(body, revision):
    revisions, told = run_with_pod([loading(90), (200, {"status": "started", **body})], 2, tells="revisions")
    assert revisions == [None, revision]
    assert told == [DEMO] * 2
