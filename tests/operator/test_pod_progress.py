"""Tests of the polls of pods for the progress of loading, the loaded commit and the adapters."""

import asyncio
import json
from collections import Counter

import aiohttp
import pytest

from tests.networks import needs_ipv6
from tests.operator.clients import answer, http_server
from unmask_operator.controller import pod_progress as progress_module
from unmask_operator.controller.pod_progress import PodProgress, StartupReport, is_loading
from unmask_operator.objects import Key
from unmask_operator.plan.observed import Adapter, Load
from unmask_operator.pod_http import PODS_PER_SERVICE, PodRequestError

DEMO = Key("ns", "demo")
NOT_READY = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "False"}]}
READY = {**NOT_READY, "conditions": [{"type": "Ready", "status": "True"}]}
LOADING = {"metadata": {"uid": "uid"}, "spec": {"containers": []}, "status": NOT_READY}
VARIABLE = {"name": "MODEL_REVISION", "valueFrom": {"configMapKeyRef": {"name": "demo-model", "key": "k"}}}
OF_HUB = {**LOADING, "spec": {"containers": [{"name": "main", "env": [VARIABLE]}]}}
LOADED = {**OF_HUB, "status": READY}
FOLLOWS = {"containers": [], "volumes": [{"name": "adapters", "configMap": {"name": "demo-adapters"}}]}
SERVES = {"metadata": {"uid": "uid"}, "spec": FOLLOWS, "status": READY}
ADAPTERS = {"legal": "hf://a/legal", "chess": "demo://chess"}
COMMIT = "0123456789" * 4
SILENT = (503, "")


class Polls:
    """Polls one pod every `step` seconds: one of `pods` per poll, and one of `answers` (status, body) per request."""

    def __init__(self, answers, pods, step=5, adapters=ADAPTERS):
        answers = iter(answers)
        self.asked, self.notified, self.loads, self.revisions, self.adapters = [], [], [], [], []
        clock = 0

        async def get_text(session, address, path, port, timeout, statuses):
            assert path == "/startup"
            self.asked.append(clock)
            status, body = next(answers) or (0, "")
            if status not in statuses:
                raise PodRequestError("no answer")
            return body if isinstance(body, str) else json.dumps(body)

        async def poll_all():
            nonlocal clock
            pod = lambda: [(DEMO, pods[clock // step])]  # noqa: E731
            progress = PodProgress(pod, self.notified.append, lambda key: adapters, 1, lambda: clock)
            for _ in pods:
                await progress.poll(None)
                for found in ("loads", "revisions", "adapters"):
                    getattr(self, found).append(getattr(progress, found).get("uid"))
                clock += step

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(progress_module, "get_text", get_text)
            asyncio.run(poll_all())


def loading(percent, phase="weights"):
    return 503, {"status": "loading", "phase": phase, "percent": percent}


def started(**members):
    return 200, {"status": "started", **members}


def serving(**states):
    """Returns the answer of a started pod with the state of each adapter, and its uri if that is not the list's."""
    parts = {name: state.split() for name, state in states.items()}
    adapters = {name: {"state": one[0], "uri": [*one, ADAPTERS[name]][1]} for name, one in parts.items()}
    for one in adapters.values():
        if one["state"] == "failed":
            one["message"] = "why"
    return started(adapters=adapters)


def test_progress_is_stored_and_only_steps_are_reported():
    polls = Polls(
        [loading(10), loading(14.9), loading(15), loading(15, "warm-up"), loading(101, "x" * 99)], [LOADING] * 5
    )
    steps = [("weights", 10), ("weights", 10), ("weights", 15), ("warm-up", 15), ("x" * 64, 100)]
    assert polls.loads == [Load(*step) for step in steps]
    assert polls.notified == [DEMO] * 4


@needs_ipv6
def test_a_pod_is_read_over_http_at_its_ipv6_address():
    status = {**NOT_READY, "podIP": "::1", "podIPs": [{"ip": "::1"}, {"ip": "127.0.0.1"}]}

    async def load():
        handler = answer(json.dumps(loading(10)[1]), 503)
        async with http_server(handler, path="/startup", host="::1") as port, aiohttp.ClientSession() as session:
            pods = [(DEMO, {**LOADING, "status": status})]
            progress = PodProgress(lambda: pods, lambda key: None, lambda key: {}, port)
            await progress.poll(session)
            return progress.loads

    assert asyncio.run(load()) == {"uid": Load("weights", 10)}


@pytest.mark.parametrize(
    "bad",
    [
        None, (500, loading(50)[1]), (200, {"status": "ok"}), (503, ["no"]), (503, ""), (503, "["),
        (503, '{"status": "started", "adapters": {}, "x": ' + "[" * 60_000),
        (503, f'{{"phase": "weights", "percent": {"1" + "0" * 400}}}'),
    ],
)  # fmt: skip
def test_a_pod_without_a_valid_answer_keeps_its_last_progress(bad):
    polls = Polls([loading(40), bad], [LOADING] * 2, step=100)
    assert polls.loads == [Load("weights", 40)] * 2
    assert polls.notified == [DEMO]


@pytest.mark.parametrize(
    ("answers", "pods", "asked"),
    [
        ([SILENT] * 8, [LOADING] * 60, [0, 5, 15, 35, 75, 135, 195, 255]),
        ([SILENT, SILENT, loading(1), loading(2), SILENT, SILENT], [LOADING] * 7, [0, 5, 15, 20, 25, 30]),
        # immediately when it gets Ready
        ([*[SILENT] * 3, started(model_revision=COMMIT)], [OF_HUB] * 6 + [LOADED] * 3, [0, 5, 15, 30]),
        # adapters: until the pod follows the list, then rarely; failed ones as often as the pod retries
        ([serving(), serving(legal="loading"), serving(legal="ready hf://a/before", chess="ready"),
          *[serving(legal="ready", chess="ready")] * 2], [SERVES] * 300, [0, 5, 10, 15, 15 + 1200]),
        ([serving(legal="failed", chess="ready")] * 4, [SERVES] * 20, [0, 30, 60, 90]),
        ([], [{**SERVES, "spec": {"containers": []}}] * 4, []),
    ],
)  # fmt: skip
def test_pods_are_polled_while_they_may_report_something_new(answers, pods, asked):
    assert Polls(answers, pods).asked == asked


def test_the_progress_of_a_deleted_pod_is_dropped():
    polls = Polls([loading(1)], [LOADING, {**LOADING, "metadata": {"uid": "another", "deletionTimestamp": "t"}}])
    assert polls.loads == [Load("weights", 1), None]


@pytest.mark.parametrize(
    ("metadata", "status", "expected"),
    [
        ({}, {}, True), ({}, {"phase": "Pending"}, False), ({}, {"podIP": ""}, False),
        ({}, {"conditions": READY["conditions"]}, False), ({"deletionTimestamp": "t"}, {}, False),
    ],
)  # fmt: skip
def test_only_running_pods_that_are_not_ready_are_polled_for_progress(metadata, status, expected):
    assert is_loading({"metadata": metadata, "status": {**NOT_READY, **status}}) is expected


def test_the_commit_of_a_started_pod_is_requested_once():
    progress = PodProgress(list, lambda key: None, lambda key: {})
    assert progress.needs_revision(LOADED)
    assert not progress.needs_revision({**LOADED, "spec": LOADING["spec"]})
    assert not progress.needs_revision({**LOADED, "status": {"phase": "Pending"}})
    progress.revisions["uid"] = COMMIT
    assert not progress.needs_revision(LOADED)


@pytest.mark.parametrize(
    ("body", "revision"),
    [({"model_revision": COMMIT}, COMMIT), ({}, ""), ({"model_revision": "main"}, ""), ({"model_revision": ["x"]}, "")],
)
def test_only_a_valid_commit_of_a_pod_is_stored(body, revision):
    polls = Polls([loading(90), started(**body)], [LOADING] * 2)
    assert polls.revisions == [None, revision]
    assert polls.notified == [DEMO] * 2


def test_the_listed_adapters_of_ready_pods_are_stored():
    strange = serving(legal="failed", chess="ready hf://a/before")
    strange[1]["adapters"]["strange"] = {"state": "ready", "uri": "/"}
    polls = Polls([serving(legal="ready"), started(), strange], [{**SERVES, "status": NOT_READY}, SERVES, SERVES])
    legal, chess = Adapter(ADAPTERS["legal"], "failed", "why"), Adapter("hf://a/before", "ready", "")
    assert polls.adapters == [None, {}, {"legal": legal, "chess": chess}]
    assert polls.notified == [DEMO] * 3  # first of the commit
    polls = Polls([serving(legal="failed", chess="ready")] * 4, [SERVES] * 20)
    assert polls.notified == [DEMO]


def test_a_new_list_is_polled_for_immediately():
    adapters = {"chess": ADAPTERS["chess"]}

    class Growing(list):
        def __getitem__(self, at):
            if at == 10:
                adapters["legal"] = ADAPTERS["legal"]
            return SERVES

    answers = [serving(chess="ready"), serving(chess="ready"), serving(chess="ready", legal="ready")]
    assert Polls(answers, Growing([SERVES] * 15), adapters=adapters).asked == [0, 50, 55]


def test_the_phase_of_each_report_of_a_loading_pod_is_passed_on():
    reported = []
    progress = PodProgress(list, lambda key: None, lambda key: {}, phase_reported=lambda *of: reported.append(of))
    pods = [(DEMO, {"metadata": {"uid": uid}, "spec": {}}, {}) for uid in "ab"]
    progress._update(pods, [StartupReport(Load("weights", 10.0)), None])
    progress._update(pods, [StartupReport(Load("weights", 11.0)), StartupReport()])
    assert reported == [(DEMO, "a", "weights")] * 2


def test_slow_pods_of_one_service_delay_a_poll_no_longer_than_its_limit(monkeypatch):
    """More pods of the service never answer than are read concurrently."""
    tried = Counter()

    async def startup(session, address, port, adapters, parsing):
        tried[address] += 1
        if address == "slow":
            await asyncio.Event().wait()
        return StartupReport(Load("weights", 10))

    def pod(service, number):
        return Key("ns", service), {**LOADING, "metadata": {"uid": number}, "status": {**NOT_READY, "podIP": service}}

    pods = [pod("slow", number) for number in range(100)] + [pod("quick", number) for number in range(100, 120)]
    progress = PodProgress(lambda: pods, lambda key: None, lambda key: {})
    for name, value in (("TIMEOUT_SECONDS", 1.0), ("POLL_SECONDS", 1.0), ("startup", startup)):
        monkeypatch.setattr(progress_module, name, value)
    asyncio.run(progress.poll(None))
    assert set(progress.loads) == set(range(100, 120))
    assert tried["slow"] == PODS_PER_SERVICE
