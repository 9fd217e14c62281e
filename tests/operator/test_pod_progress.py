"""Tests of the polls of pods for the progress of loading."""

import asyncio
import json
from collections import Counter

import aiohttp
import pytest
from aiohttp import web

from tests.networks import needs_ipv6
from unmask_operator.controller import pod_progress as progress_module
from unmask_operator.controller.pod_progress import PodProgress, StartupReport, is_loading, is_significant_change
from unmask_operator.objects import Key
from unmask_operator.plan.observed import Adapter, Load
from unmask_operator.pod_http import PODS_PER_SERVICE

DEMO = Key("ns", "demo")


@pytest.fixture(autouse=True)
def first_attempt(monkeypatch):
    """Sets a timeout that slow answers do not exceed."""
    monkeypatch.setattr(progress_module, "TIMEOUT_SECONDS", 600.0)


STATUS = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "False"}]}
LOADING = {"metadata": {"uid": "uid"}, "spec": {"containers": []}, "status": STATUS}


def run_with_pod(answers, polls, attribute="loads", step=5, asked=None, states=(), adapters=None, address="127.0.0.1"):
    """Polls a pod every `step` seconds. Returns an attribute of the progress per poll, and the keys that were notified.

    Args:
        answers: responses of the pod in order; None closes the connection.
        polls: number of polls.
        attribute: attribute of PodProgress to read after each poll.
        asked: receives the times of the requests.
        states: the pod at each poll.
        adapters: adapters of the spec.
        address: address of the pod.
    """
    notified, seen, clock = [], [], [0]
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
        await web.TCPSite(runner, address, 0).start()
        port = runner.addresses[0][1]
        now = lambda: states[clock[0] // step]  # noqa: E731
        progress = PodProgress(
            lambda: [(DEMO, now())], notified.append, lambda key: adapters or {}, port, lambda: clock[0]
        )
        async with aiohttp.ClientSession() as session:
            for _ in range(polls):
                await progress.poll(session)
                seen.append(getattr(progress, attribute).get("uid"))
                clock[0] += step
        await runner.cleanup()

    asyncio.run(scene())
    return seen, notified


def loading(percent, phase="weights"):
    return 503, {"status": "loading", "phase": phase, "percent": percent}


def test_the_phase_of_each_report_of_a_loading_pod_is_passed_on():
    reported = []

    async def scene():
        progress = PodProgress(list, lambda key: None, lambda key: {}, phase_reported=lambda *of: reported.append(of))
        pods = [(DEMO, {"metadata": {"uid": uid}, "spec": {}}, {}) for uid in "ab"]
        progress._update(pods, [StartupReport(Load("weights", 10.0)), None])
        progress._update(pods, [StartupReport(Load("weights", 11.0)), StartupReport()])

    asyncio.run(scene())
    assert reported == [(DEMO, "a", "weights")] * 2


def test_progress_is_stored_and_only_steps_are_reported():
    seen, notified = run_with_pod([loading(10), loading(12), loading(15.5), loading(15.5, "warm-up")], 4)
    assert seen == [Load("weights", 10), Load("weights", 10), Load("weights", 15.5), Load("warm-up", 15.5)]
    assert notified == [DEMO] * 3


@needs_ipv6
def test_a_pod_with_an_ipv6_address_reports_its_progress():
    state = {**LOADING, "status": {**LOADING["status"], "podIP": "::1", "podIPs": [{"ip": "::1"}, {"ip": "127.0.0.1"}]}}
    progress = run_with_pod([loading(10)], 1, states=[state], address="::1")
    assert progress == ([Load("weights", 10)], [DEMO])


def test_a_pod_that_does_not_answer_keeps_its_last_progress():
    seen, notified = run_with_pod([loading(40), None, (200, {"status": "ok"}), (503, ["no"])], 4, step=100)
    assert seen == [Load("weights", 40)] * 4
    assert notified == [DEMO]


SILENT = (503, "")


def test_a_pod_that_does_not_answer_is_polled_at_increasing_intervals():
    asked = []
    run_with_pod([SILENT] * 8, 60, asked=asked)
    assert asked == [0, 5, 15, 35, 75, 135, 195, 255]
    asked.clear()
    run_with_pod([SILENT, SILENT, loading(1), loading(2), *[SILENT] * 2], 7, asked=asked)
    assert asked == [0, 5, 15, 20, 25, 30]


def test_a_pod_without_answer_is_polled_immediately_when_it_gets_ready():
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
def test_invalid_answers_of_a_pod_are_ignored(body):
    seen, notified = run_with_pod([loading(40), (503, body)], 2)
    assert seen == [Load("weights", 40)] * 2
    assert notified == [DEMO]


def test_a_phase_is_truncated_to_the_limit_of_the_status():
    seen, _ = run_with_pod([loading(40, "x" * 1000)], 1)
    assert seen == [Load("x" * 64, 40)]


def test_the_progress_of_a_deleted_pod_is_dropped():
    async def scene():
        pods = [(DEMO, LOADING)]
        progress = PodProgress(lambda: pods, lambda _: None, lambda _: {}, 1)
        progress.loads = {"uid": Load("weights", 1)}
        async with aiohttp.ClientSession() as session:
            await progress.poll(session)
            assert progress.loads
            pods.clear()
            await progress.poll(session)
            assert not progress.loads

    asyncio.run(scene())


def test_a_step_of_progress_is_a_phase_or_five_percent():
    assert not is_significant_change(Load("a", 10), Load("a", 14.9))
    assert is_significant_change(Load("a", 10), Load("a", 15))
    assert is_significant_change(Load("a", 10), Load("b", 10))


@pytest.mark.parametrize(
    ("change", "asked"),
    [({}, True), ({"phase": "Pending"}, False), ({"podIP": ""}, False),
     ({"conditions": [{"type": "Ready", "status": "True"}]}, False)],
)  # fmt: skip
def test_only_running_pods_that_are_not_ready_are_polled_for_progress(change, asked):
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "False"}], **change}
    assert is_loading({"metadata": {}, "status": status}) is asked


def test_a_terminating_pod_is_not_polled():
    assert not is_loading({"metadata": {"deletionTimestamp": "t"}, "status": {"phase": "Running", "podIP": "1.2.3.4"}})


def test_the_commit_of_a_started_pod_is_requested_once():
    commit = "0123456789" * 4
    progress = PodProgress(list, lambda key: None, lambda key: {})
    variable = {"name": "MODEL_REVISION", "valueFrom": {"configMapKeyRef": {"name": "demo-model", "key": "k"}}}
    pod = {
        "metadata": {"uid": "uid"},
        "spec": {"containers": [{"name": "main", "env": [variable]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert progress.needs_revision(pod)
    assert not progress.needs_revision({**pod, "spec": {"containers": [{"name": "main"}]}})
    assert not progress.needs_revision({**pod, "status": {"phase": "Pending"}})
    progress.revisions["uid"] = commit
    assert not progress.needs_revision(pod)


@pytest.mark.parametrize(
    ("body", "revision"),
    [
        ({"model_revision": "0123456789" * 4}, "0123456789" * 4),
        ({}, ""),
        ({"model_revision": "main"}, ""),
        ({"model_revision": ["x"]}, ""),
    ],
)
def test_only_a_valid_commit_of_a_pod_is_stored(body, revision):
    revisions, notified = run_with_pod([loading(90), (200, {"status": "started", **body})], 2, attribute="revisions")
    assert revisions == [None, revision]
    assert notified == [DEMO] * 2


READY = {**STATUS, "conditions": [{"type": "Ready", "status": "True"}]}
FOLLOWS = {"containers": [], "volumes": [{"name": "adapters", "configMap": {"name": "demo-adapters"}}]}
SERVES = {"metadata": {"uid": "uid"}, "spec": FOLLOWS, "status": READY}
ADAPTERS = {"legal": "hf://a/legal", "chess": "demo://chess"}


def serving(**states):
    """Returns the answer of a started pod with the state of each adapter.

    A state may be followed by a uri; otherwise the uri is that of the list.
    """
    states = {
        name: {"state": state, "uri": uri or ADAPTERS[name]} | ({"message": "why"} if state == "failed" else {})
        for name, (state, _, uri) in ((name, word.partition(" ")) for name, word in states.items())
    }
    return 200, {"status": "started", "adapters": states}


def test_adapters_are_polled_until_the_pod_follows_the_list_and_then_rarely():
    asked = []
    answers = [
        serving(),
        serving(legal="loading"),
        serving(legal="ready hf://a/before", chess="ready"),
        serving(legal="ready", chess="ready"),
        serving(legal="ready", chess="ready"),
    ]
    seen, notified = run_with_pod(answers, 300, "adapters", asked=asked, states=[SERVES] * 300, adapters=ADAPTERS)
    assert asked == [0, 5, 10, 15, 15 + 1200]
    assert seen[2]["legal"] == Adapter("hf://a/before", "ready", "")
    assert seen[-1] == {name: Adapter(uri, "ready", "") for name, uri in ADAPTERS.items()}
    assert len(notified) == 4


def test_a_pod_with_a_failed_adapter_is_polled_as_often_as_it_retries():
    asked = []
    failing = serving(legal="failed", chess="ready")
    seen, notified = run_with_pod([failing] * 4, 20, "adapters", asked=asked, states=[SERVES] * 20, adapters=ADAPTERS)
    assert asked == [0, 30, 60, 90]
    assert seen[0]["legal"] == Adapter(ADAPTERS["legal"], "failed", "why")
    assert notified == [DEMO]


def test_a_new_list_is_polled_for_immediately():
    asked, adapters = [], {"chess": ADAPTERS["chess"]}

    class Growing(list):
        def __getitem__(self, at):
            if at == 10:
                adapters["legal"] = ADAPTERS["legal"]
            return SERVES

    answers = [serving(chess="ready"), serving(chess="ready"), serving(chess="ready", legal="ready")]
    run_with_pod(answers, 15, "adapters", asked=asked, states=Growing([SERVES]), adapters=adapters)
    assert asked == [0, 50, 55]


def test_adapters_of_pods_that_are_not_ready_and_unknown_adapters_are_dropped():
    early = {**SERVES, "status": STATUS}
    answers = [
        serving(legal="ready"),
        serving(legal="ready", chess="ready"),
    ]
    answers[1][1]["adapters"]["strange"] = {"state": "ready", "uri": "/"}
    seen, _ = run_with_pod(answers, 2, "adapters", states=[early, SERVES], adapters=ADAPTERS)
    assert seen[0] is None
    assert seen[1].keys() == ADAPTERS.keys()


def test_ready_pods_without_adapters_are_not_polled():
    asked = []
    without_containers = {**SERVES, "spec": {"containers": []}}
    run_with_pod([], 4, "adapters", asked=asked, states=[without_containers] * 4, adapters=ADAPTERS)
    assert asked == []


def test_a_pod_at_rest_is_polled_no_more_than_once_per_thousand_seconds():
    """Checks this with loaded adapters. Polls do not use the API server, and pods get few."""
    services, polls = 50, 2 * 720
    asked, clock = Counter(), [0.0]

    async def scene():
        progress = PodProgress(lambda: pods, lambda _: None, lambda _: ADAPTERS, 1, lambda: clock[0])
        pods = [(Key("ns", f"s{i}"), {**SERVES, "metadata": {"uid": f"u{i}"}}) for i in range(services)]
        for _ in range(polls):
            await progress.poll(None)
            clock[0] += 5

    async def startup(session, address, port, adapters, parsing):
        asked[clock[0] >= 5] += 1
        return StartupReport(None, "", {name: Adapter(uri, "ready", "") for name, uri in ADAPTERS.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask_operator.controller.pod_progress.startup", startup)
        asyncio.run(scene())
    assert asked[False] == services
    assert 0 < asked[True] / services <= 5 * polls / 1000


def test_slow_pods_of_one_service_delay_a_poll_no_longer_than_its_limit(monkeypatch):
    """Checks that a poll ends, although more pods never answer than are read concurrently."""
    monkeypatch.setattr(progress_module, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(progress_module, "POLL_SECONDS", 0.2)
    tried = Counter()

    async def startup(session, address, port, adapters, parsing):
        tried[address] += 1
        if address == "slow":
            await asyncio.Event().wait()
        return StartupReport(Load("weights", 10))

    def pod(service, number, address):
        status = {**STATUS, "podIP": address}
        return Key("ns", service), {**LOADING, "metadata": {"uid": f"{service}-{number}"}, "status": status}

    async def scene():
        pods = [pod("slow", n, "slow") for n in range(100)] + [pod("quick", n, "quick") for n in range(20)]
        progress = PodProgress(lambda: pods, lambda _: None, lambda _: {})
        await progress.poll(None)
        return progress.loads

    monkeypatch.setattr(progress_module, "startup", startup)
    loads = asyncio.run(scene())
    assert set(loads) == {f"quick-{n}" for n in range(20)}
    assert tried["slow"] == PODS_PER_SERVICE


@pytest.mark.parametrize("filler", ["[", '{"a":', "[1,", '"' + "x" * 300_000])
def test_a_large_or_deeply_nested_answer_is_ignored(filler):
    body = '{"status": "started", "adapters": {}, "x": ' + filler * (200_000 // len(filler) + 1)
    seen, notified = run_with_pod([loading(40), (503, body)], 2)
    assert seen == [Load("weights", 40)] * 2
    assert notified == [DEMO]
