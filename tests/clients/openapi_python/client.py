"""Generates a client from the running server's ``/openapi.json``, and uses it with its types."""

import importlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from checks import COMPUTE, KEY, MODEL, RECORD, SCHEMA, SERVER, SUM, SUM_ANSWER, check, main, same, user_message

FOLDER = Path(tempfile.mkdtemp(prefix="generated-"))
sys.path.insert(0, str(FOLDER))


def generated() -> None:
    asked = urllib.request.Request(f"{SERVER}/openapi.json", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(asked) as answer:
        (FOLDER / "openapi.json").write_bytes(answer.read())
    program = Path(sys.executable).with_name("openapi-python-client")
    command = [
        program, "generate", "--path", FOLDER / "openapi.json", "--output-path", FOLDER / "made", "--meta", "none",
    ]  # fmt: skip
    result = subprocess.run([*command, "--fail-on-warning"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def call(route: str, body: str = "", **fields: Any) -> Any:
    """Calls a route with the generated code, and returns its answer."""
    made, models = importlib.import_module("made"), importlib.import_module("made.models")
    client = made.AuthenticatedClient(base_url=SERVER, token=KEY, raise_on_unexpected_status=True, timeout=60.0)
    (file,) = (FOLDER / "made" / "api").glob(f"*/{route}.py")
    module = importlib.import_module(f"made.api.{file.parent.name}.{route}")
    return module.sync(client=client, **({"body": getattr(models, body).from_dict(fields)} if body else {}))


@check("basic")
def generates_without_a_warning() -> None:
    generated()


@check("basic")
def answers_have_types() -> None:
    models = importlib.import_module("made.models")
    answer = call("chat_completions", "ChatRequest", messages=user_message(SUM))
    assert isinstance(answer, models.ChatAnswer), answer
    same(answer.choices[0].message.content, SUM_ANSWER)
    assert answer.usage.completion_tokens > 5, answer
    same(call("models").data[0].id, MODEL)
    same(call("generate", "GenerateRequest", messages=user_message(SUM)).text, SUM_ANSWER)
    same(call("messages", "MessagesRequest", messages=user_message(SUM), max_tokens=64).content[0].text, SUM_ANSWER)
    same(call("responses", "ResponsesRequest", input=SUM).output[0].content[0].text, SUM_ANSWER)


@check("structured")
def a_form() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    answer = call("chat_completions", "ChatRequest", messages=user_message(RECORD), response_format=form)
    same(set(json.loads(answer.choices[0].message.content)), set(SCHEMA["properties"]))


@check("tools")
def a_call() -> None:
    function = {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    }
    tools = [{"type": "function", "function": function}]
    answer = call("chat_completions", "ChatRequest", messages=user_message(COMPUTE), tools=tools)
    (one,) = answer.choices[0].message.tool_calls
    same(one.function.name, "calculator")
    assert "812" in json.loads(one.function.arguments)["expression"], one


@check("more")
def refusals_have_types_too() -> None:
    models = importlib.import_module("made.models")
    refused = call("chat_completions", "ChatRequest", messages=user_message(SUM), model="another")
    assert isinstance(refused, models.ErrorResponse), refused
    same(refused.error.code, "model_not_found")


main()
