"""Tests of structured output over HTTP, on the shipped demo: ``openai`` client, streams, refusals, other requests."""

import asyncio
import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import openai
import psutil
import pydantic
import pytest

from runtime.server.serving import preprocessor
from runtime.server.serving.request_body import ClientGone
from runtime.structured_output.gbnf import CheckResult
from runtime.structured_output.sandbox import SandboxLimits
from tests.request.test_sampling_params import INFO
from tests.server.dialects import tool
from tests.server.harness import ServerProcess, serving
from tests.server.limits import MASK_LIMITS, TRIAL_LIMITS
from tests.server.test_executors import Client, settle
from tests.wait import TIMEOUT, wait_until

pytestmark = pytest.mark.processes

CHAT: Any = {
    "model": "unmask-demo",
    "messages": [{"role": "user", "content": "Anna, 34, lives in Rome. Write this as JSON."}],
    "max_tokens": 80,
}


class Person(pydantic.BaseModel):
    name: str
    age: int
    city: str


@pytest.fixture(scope="module")
def server(demo: ServerProcess) -> ServerProcess:
    return demo


def test_parse_gives_an_object(ai: openai.OpenAI) -> None:
    answer = ai.chat.completions.parse(**CHAT, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Anna", age=34, city="Rome")
    with ai.chat.completions.stream(**CHAT, response_format=Person) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


def test_a_stream_brings_the_same_text(ai: openai.OpenAI) -> None:
    asked = {**CHAT, "response_format": {"type": "json_object"}, "n": 2, "temperature": 1, "seed": 7}
    complete = [choice.message.content for choice in ai.chat.completions.create(**asked).choices]
    texts = ["", ""]
    for chunk in ai.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == complete
    assert all(isinstance(json.loads(text), dict) for text in texts)


REPLY = {"type": "object", "properties": {"reply": {"type": "string", "minLength": 20}}, "required": ["reply"]}
FORMAT = {"type": "json_schema", "schema": REPLY}
USER = [{"role": "user", "content": "Hello"}]
OPENAI: dict[str, Any] = {"model": "unmask-demo", "messages": USER, "response_format": FORMAT}
CALL: dict[str, Any] = {
    "model": "unmask-demo", "messages": USER,
    "tools": [{"type": "function", "function": {"name": "say", "parameters": REPLY}}], "tool_choice": "required",
}  # fmt: skip


def ending(answer: dict[str, Any]) -> str:
    """Returns the reason of the end, in any API."""
    (choice,) = answer.get("choices") or [answer]
    return str(choice.get("finish_reason") or answer.get("stop_reason") or answer.get("status"))


def last_event(client: Any, route: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the event of a stream that has the reason of the end."""
    lines = client.post(route, json={**body, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    (found,) = (
        each.get("response", {**each, **each.get("delta", {})})
        for each in events
        if each.get("type") in ("message_delta", "response.completed", "response.incomplete")
        or each.get("event") == "final"
        or (each.get("choices") and each["choices"][0]["finish_reason"])
    )
    return dict(found)


@pytest.mark.parametrize(
    ("route", "limit", "body", "ends", "cut"),
    [
        ("/v1/chat/completions", "max_tokens", OPENAI, "stop", "length"),
        ("/v1/chat/completions", "max_tokens", CALL, "tool_calls", "length"),
        ("/v1/completions", "max_tokens", {"prompt": "Hello", "structured_outputs": {"json": REPLY}}, "stop", "length"),
        ("/generate", "max_tokens", {"prompt": "Hello", "structured_outputs": {"json": REPLY}}, "stop", "length"),
        ("/v1/responses", "max_output_tokens", {"input": "Hello", "text": {"format": {**FORMAT, "name": "x"}}},
         "completed", "incomplete"),
        ("/v1/messages", "max_tokens", {"messages": USER, "output_config": {"format": FORMAT}}, "end_turn",
         "max_tokens"),
    ],
)  # fmt: skip
def test_an_answer_ends_in_its_format_or_says_how_long_it_would_be(
    demo: ServerProcess, route: str, limit: str, body: dict[str, Any], ends: str, cut: str
) -> None:
    asked = {"model": "unmask-demo", "temperature": 1.5, "seed": 3, **body}
    with demo.client() as client:
        refused = client.post(route, json={**asked, limit: 3}).json()
        assert ending(refused) == cut
        (needed,) = re.findall(r"has (\d+) tokens, and it may have 3", refused["warning"])
        assert last_event(client, route, {**asked, limit: 3})["warning"] == refused["warning"]
        for length in (int(needed), int(needed) + 5):
            whole = client.post(route, json={**asked, limit: length}).json()
            assert ending(whole) == ends
            assert "did not end this answer itself" in whole["warning"]
            event = last_event(client, route, {**asked, limit: length})
            assert (ending(event), event["warning"]) == (ends, whole["warning"])
        free = client.post(route, json={**asked, limit: int(needed), "structured_complete": False}).json()
        assert "warning" not in free


WORDS = ["red", "blue"]


@pytest.mark.parametrize(
    ("route", "form"),
    [
        ("/generate", {"structured_outputs": {"choice": WORDS}}), ("/generate", {"guided_choice": WORDS}),
        ("/generate", {"regex": "red|blue"}), ("/generate", {"guided_regex": "red|blue"}),
        ("/generate", {"ebnf": 'root ::= "red" | "blue"'}), ("/generate", {"guided_grammar": 'start: "red" | "blue"'}),
        ("/generate", {"json_schema": {"enum": WORDS}}), ("/generate", {"guided_json": {"enum": WORDS}}),
        ("/generate", {"guided_choice": WORDS, "structured_outputs": {"choice": WORDS}}),
        ("/generate", {"structured_outputs": {"choice": WORDS, "json": None, "disable_any_whitespace": False}}),
        ("/v1/completions", {"structured_outputs": {"choice": WORDS}}),
        ("/v1/completions", {"guided_json": {"enum": WORDS}}),
    ],
)  # fmt: skip
def test_every_alias_constrains_the_answer(demo: ServerProcess, route: str, form: dict[str, Any]) -> None:
    with demo.client() as client:
        answer = client.post(route, json={"prompt": "A colour:", "max_tokens": 20, **form}).json()
    text = answer["text"] if route == "/generate" else answer["choices"][0]["text"]
    assert text.strip('"') in WORDS


def compiler(server: ServerProcess) -> psutil.Process:
    """Returns the process that compiles grammars, after a small grammar has started it."""
    numbers = itertools.count()

    def started() -> list[psutil.Process]:
        with server.client() as client:
            asked = {"prompt": "a", "max_tokens": 4, "regex": f"start {next(numbers)}"}
            client.post("/generate", json=asked).raise_for_status()
        return server.trials()

    (process,) = wait_until(started, "the compiler")
    return process


def test_a_large_schema_does_not_delay_other_requests(demo: ServerProcess) -> None:
    """The schema takes a second to compile, in the server and in the engine. The server's compiler is suspended."""
    names = [f"p{i}" for i in range(1200)]
    large = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}
    process = compiler(demo)
    with demo.client() as client, demo.client() as other, ThreadPoolExecutor(1) as pool:
        process.suspend()
        try:
            job = pool.submit(client.post, "/v1/chat/completions", json={**CHAT, "guided_json": large})
            for _ in range(5):
                assert other.get("/health").status_code == 200
                assert other.post("/generate", json={"prompt": "a", "max_tokens": 4}).status_code == 200
            assert not job.done()
        finally:
            process.resume()
        answer = job.result()
    assert answer.status_code == 200, answer.text


def test_a_schema_with_many_optional_properties_is_refused(demo: ServerProcess) -> None:
    odd = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1200)}}
    with demo.client() as client:
        refused = client.post("/v1/chat/completions", json={**CHAT, "structured_outputs": {"json": odd}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "structured_outputs.json")
    assert "<state>" not in refused.text


def test_the_length_limit_applies_to_a_schema_in_a_string(demo: ServerProcess) -> None:
    with demo.client() as client:
        refused = client.post("/generate", json={"prompt": "a", "guided_json": "[" + "{}," * 30_000 + "{}]"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "guided_json")
    assert "characters" in refused.text


@pytest.fixture(scope="module")
def strict() -> Iterator[ServerProcess]:
    """Yields the demo with the compiler's default limit of CPU time."""
    limits = {f"{TRIAL_LIMITS}.compile_seconds": SandboxLimits().compile_seconds}
    with serving("--device", "cpu", "--max-num-reqs", "16", limits=limits) as server:
        yield server


def used(server: ServerProcess) -> dict[int, float]:
    """Returns the seconds of CPU time that each compiler process has used."""
    found = {}
    for process in server.trials():
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = process.cpu_times().user
    return found


@pytest.mark.matrix
def test_strict_tools_with_a_grammar_beyond_the_limits_are_not_constrained(strict: ServerProcess) -> None:
    slow = {"type": "object", "properties": {"a": {"const": "compile for 20 s"}}}
    functions = [{"name": "f", "parameters": slow, "strict": True}, {"name": "g", "strict": True}]
    body = {**CHAT, "tools": [{"type": "function", "function": each} for each in functions]}
    with strict.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-unmask-ignored"] == "tools.function.strict"
        refused = client.post("/v1/chat/completions", json={**body, "tool_choice": "required"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


@pytest.mark.matrix
def test_a_grammar_that_compiles_for_minutes_is_refused_and_delays_others_little(strict: ServerProcess) -> None:
    slow = {"const": "compile for 20 s"}
    tools = [tool("/v1/chat/completions", "f", {"type": "object", "properties": {"a": slow}})]
    asked: Any = [({"guided_json": slow}, "guided_json"), ({"tools": tools, "tool_choice": "required"}, "tool_choice")]
    with strict.client() as client, ThreadPoolExecutor(1) as pool:
        for more, param in asked:
            before = used(strict)
            job = pool.submit(client.post, "/v1/chat/completions", json={**CHAT, **more})
            wait_until(lambda before=before: any(t > before.get(pid, 0) + 0.1 for pid, t in used(strict).items()))
            other = client.post("/generate", json={"prompt": "a", "max_tokens": 4, "regex": f"c|{param}"})
            assert other.status_code == 200, other.text
            refused = job.result()
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
            assert "takes more than 1.5 s to compile" in refused.text
            compilers = used(strict).keys()
            again = client.post("/v1/chat/completions", json={**CHAT, **more})
            assert (again.status_code, again.text) == (400, refused.text)
            assert used(strict).keys() == compilers  # compiling it again would have ended the process


@pytest.fixture(scope="module")
def impatient() -> Iterator[ServerProcess]:
    """Yields the demo with almost no CPU time for the masks of an answer."""
    limits = {f"{MASK_LIMITS}.seconds": 1e-9}
    with serving("--device", "cpu", "--max-num-reqs", "16", limits=limits) as server:
        yield server


ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "completions": ("/v1/completions", {"prompt": "a", "max_tokens": 8}),
    "generate": ("/generate", {"prompt": "a", "max_tokens": 8}),
    "responses": ("/v1/responses", {"input": "a", "max_output_tokens": 8}),
}
FORM = {
    "format": {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"a": {"type": "null"}}}}
}


@pytest.mark.parametrize("name", ROUTES)
def test_a_grammar_whose_masks_take_too_long_is_a_client_error(impatient: ServerProcess, name: str) -> None:
    path, body = ROUTES[name]
    with impatient.client() as client:
        for stream in (False, True):  # the second is refused at once, as the first exceeded the limit
            asked = {"text": FORM} if name == "responses" else {"structured_outputs": {"regex": f"[a-z ]+{name}"}}
            answer = client.post(path, json={**body, **asked, "stream": stream})
            assert answer.status_code == (200 if stream else 400), answer.text
            assert "s of CPU time to apply; send a simpler one" in answer.text
            assert "server_error" not in answer.text
        assert client.post(path, json=body).status_code == 200


def test_grammars_of_disconnected_clients_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    begun, release = threading.Event(), threading.Event()

    class Sandbox:
        def __init__(self, *args: Any) -> None: ...

        def result(self, text: str) -> None: ...

        def check(self, text: str) -> CheckResult:
            tried.append(text)
            begun.set()
            assert release.wait(TIMEOUT)
            return CheckResult()

    monkeypatch.setattr(preprocessor, "GrammarSandbox", Sandbox)

    async def everything() -> None:
        checker = preprocessor.Preprocessor(lambda: (INFO, cast(Any, SimpleNamespace(directory=Path()))))

        def check(client: Client, grammar: str) -> asyncio.Task[None]:
            return asyncio.create_task(checker.check_grammar(cast(Any, client), grammar, "regex"))

        first = check(Client(), "first")
        assert await asyncio.to_thread(begun.wait, TIMEOUT)
        clients = [Client() for _ in range(12)]
        abandoned = [check(client, f"abandoned {n}") for n, client in enumerate(clients)]
        last = check(Client(), "last")
        await settle()
        for client in clients:
            client.gone.set()
        results = await asyncio.gather(*abandoned, return_exceptions=True)
        assert [type(result) for result in results] == [ClientGone] * 12
        release.set()
        await asyncio.wait_for(asyncio.gather(first, last), TIMEOUT)

    asyncio.run(everything())
    assert tried == ["first", "last"]
