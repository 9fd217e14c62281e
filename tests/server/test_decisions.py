"""Tests of /v1/decisions and /v1/systemone: OpenAI's client, the wire format of System One, refusals and load."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime import LLM, Question
from runtime.decisions.prompts import PROMPT_FORMAT
from runtime.server.decisions.protocol import EXAMPLE_MAP, EXAMPLE_QUESTIONS
from tests.server.harness import ServerProcess
from tests.wait import TIMEOUT

CHOICES = [{"value": True}, {"value": "true", "description": "a text"}, {"value": "no"}]
LEVELS = [{"label": "calm"}, {"label": "angry", "description": "very"}]
QUESTIONS: Any = [
    {"type": "predicate", "instructions": "Is it late?"},
    {"type": "choice", "instructions": [{"type": "input_text", "text": "Which?"}], "choices": CHOICES, "name": "which"},
    {"type": "score", "instructions": "How angry?", "levels": LEVELS, "name": "which"},
]  # fmt: skip
ITEMS: Any = [
    {"role": "developer", "content": "You read mails."},
    {"type": "message", "role": "user", "content": "Hello."},
    {"role": "user", "content": [{"type": "input_text", "text": "Mail:", "prompt_cache_breakpoint": {}},
                                 {"type": "input_json", "data": {"subject": "late", "to": [1, None]}}]},
    {"type": "function_call", "call_id": "c1", "name": "track", "arguments": '{"id": 7}'},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "at the depot"}]},
    {"type": "custom_tool_call", "call_id": "c2", "name": "shell", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "none"},
    {"role": "assistant", "phase": "final_answer", "content": [{"type": "output_text", "text": "It is late."}]},
]  # fmt: skip
MAP: Any = {
    "late": {"type": "noul", "instructions": "Is it late?", "criteria": {"true": "a day or more"}},
    "described": {"type": "noul", "criteria": {"false": "on time", "true": {"days": 1}}},
    "kind": {"type": "choice", "instructions": None, "criteria": {"parcel": None, "letter": "flat"}},
    "one": {"type": "choice", "instructions": ["Which", "one?"], "criteria": {"only": None}},
    "anger": {"type": "score", "instructions": {"ask": "How angry?"}, "criteria": ["calm", "angry"]},
    "level": {"type": "score", "criteria": ["only"]},
}


@pytest.fixture
def plain(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def check_answers(answer: Any) -> None:
    predicate, choice, score = answer.answers
    assert (predicate.type, predicate.name, choice.name, score.name) == ("predicate", None, "which", "which")
    values = [one.value for one in choice.probabilities]
    assert [(type(value), value) for value in values] == [(bool, True), (str, "true"), (str, "no")]
    best = max(choice.probabilities, key=lambda one: one.probability)
    assert choice.choice == best.value
    assert choice.confidence == pytest.approx(best.probability * choice.label_mass)
    assert [(one.value, one.label) for one in score.probabilities] == [(0, "calm"), (1, "angry")]
    assert score.score == pytest.approx(score.probabilities[1].probability)
    for one in (choice, score):
        assert sum(each.probability for each in one.probabilities) == pytest.approx(1)
    for one in answer.answers:
        assert 0 <= one.label_mass <= 1
    usage = answer.usage
    assert (usage.output_tokens, usage.total_tokens) == (0, usage.input_tokens)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("given", ["The parcel is late.", ITEMS], ids=["text", "items"])
def test_openai_client(ai: openai.OpenAI, server: ServerProcess, given: Any, joint: bool) -> None:
    asked: Any = {"model": "tiny", "input": given, "questions": QUESTIONS, "prompt_cache_key": "k",
                  "safety_identifier": "s", "extra_body": {"joint": joint}}  # fmt: skip
    raw = ai.decisions.with_raw_response.create(**asked)
    assert raw.headers["X-Unmask-Prompt-Format"] == str(PROMPT_FORMAT)
    assert "X-Unmask-Ignored" not in raw.headers
    first = raw.parse()
    check_answers(first)

    async def again() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=TIMEOUT) as client:
            return await client.decisions.create(**asked)

    second = asyncio.run(again())
    check_answers(second)
    for one, other in zip(first.answers, second.answers, strict=True):
        assert one.label_mass == pytest.approx(other.label_mass, rel=1e-3)
    assert second.usage.input_tokens == first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0


def test_answers_equal_those_of_python(checkpoint: Path, plain: httpx.Client) -> None:
    asked = {"model": "tiny", "input": "The parcel is late.", "questions": QUESTIONS}
    found = plain.post("/v1/decisions", json=asked).json()["answers"]
    questions = [Question.predicate("Is it late?"), Question.choice("Which?", [True, "true", "no"]),
                 Question.score("How angry?", ["calm", "angry - very"])]  # fmt: skip
    with LLM(str(checkpoint), device="cpu") as llm:
        late, _, angry = llm.decide("The parcel is late.", questions)
    assert found[0]["probability"] == pytest.approx(late.score, abs=1e-4)
    assert found[2]["score"] == pytest.approx(angry.score, abs=1e-4)


@pytest.mark.parametrize("route", ["/v1/systemone", "/systemone", "/v1/decisions"])
@pytest.mark.parametrize("state", ["The parcel is late.", {"mail": ["late"]}, [{"role": "user", "content": "late"}]])
def test_a_map_of_questions(plain: httpx.Client, route: str, state: Any) -> None:
    response = plain.post(route, json={"model": "tiny", "state": state, "questions": MAP, "instructions": None})
    assert response.headers["X-Unmask-Prompt-Format"] == str(PROMPT_FORMAT)
    answer = response.json()
    answers = answer["answers"]
    assert list(answers) == list(answer["diagnostics"]) == list(MAP)
    assert {id: each["type"] for id, each in answers.items()} == {id: each["type"] for id, each in MAP.items()}
    assert all(0 < answers[id]["noul"] < 1 for id in ("late", "described"))
    assert sum(answers["kind"]["probabilities"].values()) == pytest.approx(1)
    assert answers["kind"]["choice"] == max(answers["kind"]["probabilities"], key=answers["kind"]["probabilities"].get)
    assert (answers["one"]["probabilities"], answers["one"]["confidence"]) == ({"only": 1.0}, 1.0)
    assert answers["anger"]["legend"] == {"0": "calm", "1": "angry"}
    assert (answers["level"]["score"], answers["level"]["confidence"]) == (0, 1)
    assert answer["usage"].keys() == {"input_tokens", "output_tokens"}
    fields = {"instructions": "You read mails.", "priority": 1, "request_id": "a"}
    longer = plain.post(route, json={"model": "tiny", "state": state, "questions": MAP, **fields})
    assert "X-Unmask-Ignored" not in longer.headers
    assert longer.json()["usage"]["input_tokens"] > answer["usage"]["input_tokens"]


def test_many_questions(plain: httpx.Client) -> None:
    questions = [{"type": "predicate", "instructions": f"Is it {n % 7}?"} for n in range(400)]
    asked = {"model": "tiny", "input": "5", "questions": questions}
    single = plain.post("/v1/decisions", json=asked).json()["answers"]
    assert [one["probability"] for one in single[:7]] == pytest.approx([one["probability"] for one in single[7:14]])
    assert len(single) == 400
    assert plain.post("/v1/decisions", json={**asked, "questions": questions * 2}).status_code == 400


def asked(**changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "x", "questions": QUESTIONS} | changes


def one(**changes: Any) -> dict[str, Any]:
    return asked(questions=[QUESTIONS[0], QUESTIONS[0] | changes])


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1)} if levels else 1


def json_part(data: Any) -> dict[str, Any]:
    return asked(input=[{"role": "user", "content": [{"type": "input_json", "data": data}]}])


IMAGE = {"type": "input_image", "image_url": "data:,"}
WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "no input": ({"model": "tiny", "questions": QUESTIONS}, 400, "input"),
    "no questions": (asked(questions=[]), 400, "questions"),
    "an unknown model": (asked(model="other"), 404, "model"),
    "an image": (asked(input=[{"role": "user", "content": [IMAGE]}]), 400, "input[0].content[0]"),
    "an image in a question": (one(instructions=[IMAGE]), 400, "questions[1].instructions[0]"),
    "an unknown item": (asked(input=[{"type": "computer_call"}]), 400, "input[0]"),
    "a result without its call": (asked(input=[ITEMS[4]]), 400, "input[0]"),
    "an unknown type": (one(type="box"), 400, "questions[1].type"),
    "one choice": (one(type="choice", choices=CHOICES[:1]), 400, "questions[1].choices"),
    "a choice twice": (one(type="choice", choices=[*CHOICES, CHOICES[0]]), 400, "questions[1].choices[3]"),
    "too many labels": (one(type="choice", choices=[{"value": str(n)} for n in range(99)]), 400, "questions[1]"),
    "too many levels": (one(type="score", levels=[{"label": str(n)} for n in range(11)]), 400,
                        "questions[1].levels"),
    "a long state": (asked(input="x " * 600), 400, "questions[0]"),
    "a long question": (one(instructions="x " * 600), 400, "questions[1]"),
    "deep JSON": (json_part(nested(40)), 400, "input[0].content[0]"),
    "JSON that is no object": (json_part([1]), 400, "input[0].content[0]"),
    "assets": ({"model": "tiny", "state": "x", "questions": MAP, "assets": {"a": "data:,"}}, 400, "assets"),
    "a number as state": ({"model": "tiny", "state": 5, "questions": MAP}, 400, "state"),
    "no criterion": ({"model": "tiny", "state": "x", "questions": {"a": {"type": "noul"}}}, 400, "questions.a"),
    "a box": ({"model": "tiny", "state": "x", "questions": {"a": {"type": "box"}}}, 400, "questions.a.type"),
    "no type": ({"model": "tiny", "state": "x", "questions": {"choice": {"criteria": {}}}}, 400,
                "questions.choice.type"),
    "a question like its type": ({"model": "tiny", "state": "x", "questions": {"choice": {"type": "choice"}}}, 400,
                                 "questions.choice.criteria"),
    "a question like a list": ({"model": "tiny", "state": "x", "questions": {"list": {"type": "score"}}}, 400,
                               "questions.list.criteria"),
    "two states": (asked(input="x", state="y"), 400, "state"),
    "instructions beside a list": (asked(instructions="Be exact."), 400, "instructions"),
    "a long salt": (asked(cache_salt="x" * 257), 400, "cache_salt"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_refusals_name_the_question(plain: httpx.Client, case: str) -> None:
    body, status, param = WRONG[case]
    for route in ("/v1/decisions", "/v1/systemone") if isinstance(body["questions"], dict) else ("/v1/decisions",):
        response = plain.post(route, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (status, param), error
        if case in ("a long state", "a long question"):
            assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "example"),
    [
        (asked(questions=["x"]), EXAMPLE_QUESTIONS[0]),
        ({"model": "tiny", "state": "x", "questions": {"a": "x"}}, EXAMPLE_MAP["angry"]),
    ],
)
def test_the_error_of_a_question_of_a_wrong_type_has_an_example(
    plain: httpx.Client, body: dict[str, Any], example: dict[str, str]
) -> None:
    response = plain.post("/v1/systemone" if "state" in body else "/v1/decisions", json=body)
    assert json.loads(response.json()["error"]["message"].split("an object; for example ")[1]) == example


def test_models_metrics_and_openapi(plain: httpx.Client, server: ServerProcess) -> None:
    (model,) = plain.get("/v1/models").json()["models"]
    assert model.keys() == {"name", "description", "release_date"}
    names = [f'unmask_decisions_questions_total{{type="{name}"}}' for name in ("choice", "score")]
    names += ['unmask_forwards_total{kind="read"}', 'unmask_requests_total{outcome="stop"}'] * 3
    before = server.metrics()
    plain.post("/v1/decisions", json=asked())
    for name in sorted(set(names)):  # engines report between steps
        server.until_metric(name, before.get(name, 0) + names.count(name))
    paths = plain.get("/openapi.json").json()["paths"]
    for route in ("/v1/decisions", "/v1/systemone"):
        assert "text/event-stream" not in paths[route]["post"]["responses"]["200"]["content"]


def test_all_reads_of_a_request_take_places_and_end_with_it(fake: ServerProcess) -> None:
    """A tenant holds at most half of the places, so that a second such request has to wait."""
    body = asked(questions=[QUESTIONS[0]] * 400, cache_salt="endless")

    def live() -> float:
        found = fake.metrics()
        return found["unmask_requests_running"] + found["unmask_requests_waiting"]

    async def crowd() -> httpx.Response:
        async with fake.async_client() as client:
            first = asyncio.create_task(client.post("/v1/decisions", json=body))
            while await asyncio.to_thread(live) != 400:
                assert not first.done(), first.result().text
            second = await client.post("/v1/decisions", json=body)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            return second

    second = asyncio.run(crowd())
    assert (second.status_code, "retry-after" in second.headers) == (429, True)
    fake.until(lambda: live() == 0, "no request is left")
