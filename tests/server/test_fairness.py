"""Tests of fairness between large and small requests: capacity of the queue, scheduling, the time limit."""

import concurrent.futures
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import DecodingParams, EngineOutput, RequestSpec
from runtime.request.resolve import expand_choices
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.client import LocalEngineClient
from runtime.server.metrics import Metrics, RequestMetrics
from tests.server.harness import FAKE, ServerProcess, serving, sse

pytestmark = pytest.mark.processes

KEYS = ("key-of-the-one-client", "key-of-the-other-client")


def frontend(sent: list[Any], queue: int = 1024, slots: int = 128) -> LocalEngineClient:
    """Returns a frontend over one backend that only records the messages it receives."""
    observed = RequestMetrics()
    config, metrics = ServerConfig(max_queue=queue), Metrics("m", observed)
    backend = cast(Any, SimpleNamespace(ready=[0], send=lambda replica, message: sent.append(message)))
    made = LocalEngineClient(config, observed, metrics, backend)
    made.schedule = lambda call: call()  # type: ignore[method-assign]
    made.info = SimpleNamespace(max_num_reqs=slots)  # type: ignore[assignment]
    return made


def spec(id: str, tenant: str = "", prompt: int = 3) -> RequestSpec:
    return RequestSpec(id=id, prompt=list(range(prompt)), max_tokens=4, seed=7, parent_id=id, tenant=tenant)


def refusal(made: LocalEngineClient, count: int, tenant: str = "") -> int:
    """Returns the status with which so many completions are refused; 0 if they fit."""
    try:
        made.check_count(1, count)
        made.check_capacity(count, tenant)
    except RequestError as error:
        return error.status
    return 0


def test_requests_of_many_choices_leave_capacity_for_single_ones() -> None:
    made = frontend([])
    crowds = 0
    while not refusal(made, 128):
        made.submit(expand_choices(spec(f"crowd-{crowds}"), 128))
        crowds += 1
    assert crowds == 8  # of 128 + 1024 slots: as many as the last request took are left for others
    for n in range(128):
        made.submit([spec(f"single-{n}")])
    assert refusal(made, 1) == 429
    made.abort([f"crowd-0-{i}" for i in range(128)])
    assert refusal(made, 1) == 0
    assert refusal(made, 65) == 429
    assert refusal(made, 64) == 0
    assert refusal(made, 577) == 400  # more than one request may ever have
    made.on_outputs(0, [EngineOutput(id="single-1", nfe=1, finish_reason="stop")])
    made.fail_all(RequestError("x"))
    assert not made.live_by_tenant
    assert refusal(made, 576) == 0


def test_frontend_processes_divide_the_limits() -> None:
    made = frontend([], queue=24, slots=8)
    made.config = made.config.replace(frontend_processes=3)
    assert made.max_choices() == 5  # half of a third of 32
    for n in range(11):
        assert refusal(made, 1) == 0
        made.submit([spec(str(n))])
    assert refusal(made, 1) == 429
    with pytest.raises(RequestError, match=r"--max-queue 24, divided by --frontend-processes 3"):
        made.check_capacity(1)


@pytest.mark.parametrize(
    ("prompts", "n", "param", "says"),
    [
        (577, 1, "prompt", "577 prompts: 577 completions"),
        (290, 2, "prompt", "290 prompts with n=2"),
        (1, 577, "n", "n=577: 577 completions"),
    ],
)
def test_too_many_completions_are_refused_with_the_name_of_the_field(
    prompts: int, n: int, param: str, says: str
) -> None:
    """Checks a former error: at the defaults, 577 prompts without `n` were refused because of `n`."""
    with pytest.raises(RequestError, match=says) as refused:
        frontend([]).check_count(prompts, n)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert "limit of 576 per request" in refused.value.message
    frontend([]).check_count(576, 1)


def test_one_keys_requests_leave_capacity_for_another_keys() -> None:
    made = frontend([], queue=90, slots=10)
    came = 0
    while not refusal(made, 1, "greedy"):
        made.submit([spec(f"greedy-{came}", "greedy")])
        came += 1
    assert came == 50
    assert refusal(made, 1, "greedy") == 429
    for n in range(25):
        made.submit([spec(f"polite-{n}", "polite")])
    assert refusal(made, 1, "polite") == 429
    assert refusal(made, 1, "third") == 0
    made.abort([f"greedy-{n}" for n in range(50)])
    assert refusal(made, 1, "polite") == 0


def test_requests_of_one_iteration_are_one_message() -> None:
    sent: list[Any] = []
    due: list[Any] = []
    made = frontend(sent)
    made.schedule = due.append  # type: ignore[method-assign]
    made.submit([spec("a")])
    made.submit([spec("b"), spec("c")])
    assert (sent, len(due)) == ([], 1)
    made.abort(["b"])  # must not overtake the request
    assert [type(message) for message in sent] == [ipc_protocol.Add, ipc_protocol.Abort]
    assert [one.id for one in sent[0].requests()] == ["a", "b", "c"]
    due.pop()()
    made.submit([spec("d")])
    made.on_down(0, "gone")
    due.pop()()
    assert len(sent) == 2  # no backend is left to send it to


def test_choices_of_a_long_prompt_are_sent_once() -> None:
    """128 copies of 4,096 tokens once blocked the frontend for long, and the backend for longer."""
    sent: list[Any] = []
    made = frontend(sent)
    one, other = spec("a", prompt=4096), spec("b", prompt=5)
    specs = [*expand_choices(one, 128), *expand_choices(other, 3), spec("c")]
    made.submit(specs)
    (add,) = sent
    data = ipc_protocol.encode(add)
    assert len(data) < 2 * len(ipc_protocol.encode(ipc_protocol.Add.of([one]))) + 128 * 32
    assert list(ipc_protocol.decode_command(data).requests()) == specs  # type: ignore[union-attr]


def test_different_requests_are_sent_as_they_are() -> None:
    prompt = [1, 2]
    specs = [
        RequestSpec(id="a", prompt=prompt, max_tokens=4),
        RequestSpec(id="b", prompt=prompt, max_tokens=5),
        RequestSpec(
            id="c", prompt=prompt, max_tokens=5, decoding=DecodingParams(algorithm="fixed", values={"steps": 3})
        ),
        RequestSpec(id="d", prompt=[1, 2], max_tokens=5),
    ]
    assert [first for first, _ in ipc_protocol.Add.of(specs).groups] == specs


def ask(server: ServerProcess, **body: Any) -> httpx.Response:
    with server.client() as client:
        return client.post("/v1/completions", json={"prompt": "x", **body})


def live(server: ServerProcess) -> float:
    found = server.metrics()
    return found["unmask_requests_running"] + found["unmask_requests_waiting"]


def test_a_key_with_many_requests_leaves_capacity_for_another(checkpoint: Path) -> None:
    limits = ("--max-num-reqs", "4", "--max-queue", "4", "--drain-timeout", "0.1", "--api-key", ",".join(KEYS))
    with (
        concurrent.futures.ThreadPoolExecutor(8) as pool,
        serving("--model", str(checkpoint), *limits, module=FAKE) as server,
    ):

        def post(key: str, **body: Any) -> int:
            with server.client() as client:
                headers = {"Authorization": f"Bearer {key}"}
                return client.post("/generate", json={"prompt": "x", **body}, headers=headers).status_code

        slow = [pool.submit(post, KEYS[0], max_tokens=1000, cache_salt="endless") for _ in range(8)]
        server.until(lambda: live(server) == 4 and sum(one.done() for one in slow) == 4)
        assert {one.result() for one in slow if one.done()} == {429}
        assert post(KEYS[0]) == 429
        assert post(KEYS[1], max_tokens=2) == 200


@pytest.mark.matrix
def test_the_time_limit_ends_every_choice(checkpoint: Path) -> None:
    limits = ("--request-timeout", "4", "--max-num-reqs", "4")
    with serving("--model", str(checkpoint), *limits, module=FAKE) as server:
        answer = ask(server, n=8, max_tokens=400, cache_salt="endless")
        assert answer.status_code == 504
        assert "--request-timeout" in answer.json()["error"]["message"]
        *_, error, last = sse(ask(server, n=8, max_tokens=400, cache_salt="endless", stream=True).text)
        assert (json.loads(error)["error"]["type"], last) == ("timeout_error", "[DONE]")
        server.until_idle()
        assert server.metrics()['unmask_requests_total{outcome="timeout"}'] == 2


def test_a_small_request_is_answered_before_eight_with_many_choices(server: ServerProcess) -> None:
    gone = threading.Event()

    def crowd() -> bool:
        """Returns whether the request was answered completely."""
        body = {"prompt": "x" * 40, "n": 64, "max_tokens": 300, "ignore_eos": True, "temperature": 1, "stream": True}
        body["decoding"] = {"accept_threshold": 1.0}  # one token per step: none ends before small requests
        with server.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if gone.is_set():
                    return False
                if line == "data: [DONE]":
                    return True
        return False

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        crowds = [pool.submit(crowd) for _ in range(8)]
        try:
            server.until(lambda: live(server) >= 480)
            server.until(lambda: server.metrics()["unmask_requests_running"] >= 64)
            before = server.metrics()["unmask_engine_steps_total"]
            for _ in range(3):
                answer = ask(server, max_tokens=8, ignore_eos=True)
                assert answer.status_code == 200
            steps = server.metrics()["unmask_engine_steps_total"] - before
            assert not any(one.done() for one in crowds)
            assert steps < 100
        finally:
            gone.set()
        assert not any(one.result() for one in crowds)
    server.until_idle()
