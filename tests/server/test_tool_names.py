"""Tests that a model can call and talk as it wants, but cannot call a function that was not offered, over HTTP.

A table of the tokenizers and formats of calls of the documented families, with the real engine and a scripted model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.server.checkpoint import EOS, MASK, SPECIAL, TAGGED_TEMPLATE, write_checkpoint
from tests.server.dialects import CHAT, MESSAGES, ROUTES, Answer, ask, request, say, tool
from tests.server.dialects import call as hermes
from tests.server.harness import serving

pytestmark = pytest.mark.matrix
SERVER = "tests.server.scripted_model"
JOINED = ">\n"  # a token with the end of a marker and the line break after it
ROME = '{"city": "Rome"}'


def qwen3_coder(name: str, city: str) -> str:
    return f"<tool_call>\n<function={name}>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"


def gemma4(name: str, city: str) -> str:
    return f'<|tool_call>call:{name}{{city:<|"|>{city}<|"|>}}<tool_call|>'


class Form(NamedTuple):
    """A tokenizer and a format of calls."""

    parser: str
    written: Callable[..., str]  # returns a call in this format
    tags: str  # the tokenizer's tokens for tags are "special" or "not special", or it has none ("")


FORMS = {
    "LLaDA2": Form("hermes", hermes, "special"),
    "SDAR, Dream, Fast-dLLM v2": Form("hermes", hermes, "not special"),
    "LLaDA": Form("hermes", hermes, ""),
    "Nemotron": Form("qwen3_coder", qwen3_coder, "special"),
    "marks of gemma4 as text": Form("gemma4", gemma4, ""),
}


def write(directory: Path, tags: str) -> Path:
    """Writes a checkpoint whose template has tools."""
    write_checkpoint(directory, tagged=bool(tags))
    data = json.loads((directory / "tokenizer.json").read_text())
    for token in data["added_tokens"]:
        token["special"] = tags == "special" or token["content"] in SPECIAL
    if not tags:
        last = data["added_tokens"][-1]
        data["added_tokens"].append({**last, "id": last["id"] + 1, "content": JOINED, "special": False})
    (directory / "tokenizer.json").write_text(json.dumps(data))
    model = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**model, "max_position_embeddings": 4096}))
    rows = dict.fromkeys(("model.word_embeddings.weight", "lm_head.weight"), model["vocab_size"])
    weights = {
        name: np.resize(weight, (rows.get(name, len(weight)), *weight.shape[1:]))
        for name, weight in load_file(directory / "model.safetensors").items()
    }
    save_file(weights, directory / "model.safetensors")
    config = {"chat_template": TAGGED_TEMPLATE, "mask_token": SPECIAL[0], "eos_token": SPECIAL[EOS - MASK]}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module", params=FORMS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Form]]:
    form = FORMS[request.param]
    model = write(tmp_path_factory.mktemp("models") / "tiny", form.tags)
    flags = ("--device", "cpu", "--tool-call-parser", form.parser, "--reasoning-parser", "think")
    with (
        serving("--model", str(model), "--served-model-name", "tiny", *flags, module=SERVER) as server,
        server.client() as client,
    ):
        yield client, form


def offered(route: str, *, strict: bool) -> list[dict[str, Any]]:
    return [tool(route, name, strict=strict) for name in ("weather", "clock_of_a_city")]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("strict", [False, True], ids=["free", "strict"])
def test_a_model_talks_and_calls_what_was_offered(served: tuple[httpx.Client, Form], route: str, strict: bool) -> None:
    client, form = served
    good, other = (form.written(name, city="Rome") for name in ("weather", "weathen"))
    called = ("weather", ROME)
    cases = {
        "Hello, <b>x</b>: 1 > 0.": Answer("Hello, <b>x</b>: 1 > 0."),
        good: Answer(calls=(called,), reason="tool_calls"),
        f"Look.\n{good}\n{good}": Answer("Look.", (called, called), reason="tool_calls"),
        other: Answer(calls=(called,), reason="tool_calls"),
        f"Look.\n{other}\n{good}\n{other}": Answer("Look.", (called,) * 3, reason="tool_calls"),
    }
    for text, expected in cases.items():
        body = request(route, say(text), tools=offered(route, strict=strict), temperature=0)
        for stream in (False, True):
            assert (text, ask(client, route, body, stream)) == (text, expected)


def test_a_mark_that_begins_no_named_call_constrains_nothing(served: tuple[httpx.Client, Form]) -> None:
    client, form = served
    if form.parser != "hermes":
        return
    late = '<tool_call>\n{"arguments": {"city": "Rome"}, "name": "%s"}\n</tool_call>'
    cases = {
        late % "weather": Answer(calls=(("weather", ROME),), reason="tool_calls"),
        late % "weathen": Answer(late % "weathen"),
        "Write <tool_call> and JSON.": Answer("Write <tool_call> and JSON."),
    }
    for text, expected in cases.items():
        body = request(CHAT, say(text), tools=offered(CHAT, strict=False), temperature=0)
        assert (text, ask(client, CHAT, body, stream=False)) == (text, expected)


def test_a_name_may_only_be_what_the_choice_leaves(served: tuple[httpx.Client, Form]) -> None:
    """`allowed_tools` restricts names too. Without a tool to call, markup is text, and a thought may have any."""
    client, form = served
    good = form.written("weather", city="Rome")
    asked = request(CHAT, say(good), tools=offered(CHAT, strict=False), temperature=0)
    allowed = [{"type": "function", "function": {"name": "clock_of_a_city"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}}
    limited = ask(client, CHAT, {**asked, "tool_choice": choice})
    assert {name for name, _ in limited.calls} <= {"clock_of_a_city"}
    assert ask(client, CHAT, {**asked, "tool_choice": "none"}).content == good
    assert ask(client, CHAT, {**asked, "tools": []}).content == good
    twice = client.post(CHAT, json={**asked, "tools": asked["tools"] * 2})
    assert (twice.status_code, twice.json()["error"]["param"]) == (400, "tools[2].function.name")
    thought = f"<think>\n{form.written('wind', city='x')}\n</think>\n\nyes"
    for route in (CHAT, MESSAGES):
        body = request(route, say(thought), tools=offered(route, strict=False), temperature=0)
        answer = ask(client, route, body)
        assert (answer.content, answer.reasoning, answer.calls) == ("yes", form.written("wind", city="x"), ())
