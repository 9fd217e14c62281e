"""Tools that are not functions: the request is answered, functions stay usable, and the header names the rest."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.dialects import CHAT, MESSAGES, RESPONSES, Answer, ask, call, read, request, say, tool
from tests.server.harness import ServerProcess, sse_events

ROME = call(city="Rome")
CALLED = Answer(calls=(("weather", '{"city": "Rome"}'),), reason="tool_calls")
TOOLS: list[tuple[str, dict[str, Any]]] = [
    (RESPONSES, {"type": "web_search", "external_web_access": False}),
    (RESPONSES, {"type": "code_interpreter", "container": {"type": "auto"}}),
    (RESPONSES, {"type": "local_shell"}),
    (RESPONSES, {"type": "mcp", "server_label": "files", "server_url": "u", "require_approval": "never"}),
    (RESPONSES, {"type": "tool_search", "description": "Finds.", "parameters": {"type": "object"}}),
    (RESPONSES, {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": 'start: "a"'}}),
    (MESSAGES, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}),
    (MESSAGES, {"type": "computer_20250124", "name": "computer", "display_width_px": 1}),
    (MESSAGES, {"type": "mcp_toolset", "mcp_server_name": "files"}),
    (CHAT, {"type": "custom", "custom": {"name": "patch", "description": "Patches."}}),
    (CHAT, {"type": "web_search"}),
]


@pytest.fixture(scope="module")
def server(scripted: ServerProcess) -> ServerProcess:
    return scripted


@pytest.fixture(scope="module")
def picky(strict: ServerProcess) -> Any:
    with strict.client() as client:
        yield client


def message(refused: httpx.Response) -> str:
    assert refused.status_code == 400
    return str(refused.json()["error"]["message"])


@pytest.mark.parametrize(("route", "other"), TOOLS, ids=[f"{route}-{other['type']}" for route, other in TOOLS])
def test_functions_stay_usable_among_other_tools(
    client: httpx.Client, picky: httpx.Client, route: str, other: dict[str, Any]
) -> None:
    body = request(route, say(ROME), tools=[other, tool(route)])
    for stream in (False, True):
        taken = client.post(route, json={**body, "stream": stream})
        assert taken.headers["x-unmask-ignored"] == f"tools.{other['type']}"
        assert read(route, taken.text, stream) == CALLED
    assert message(picky.post(route, json=body)).startswith(f"tools.{other['type']}: is not supported")
    assert ask(picky, route, {**body, "tools": [tool(route)]}) == CALLED


def test_a_tool_without_a_type_is_a_function(client: httpx.Client, picky: httpx.Client) -> None:
    tools = [{"function": tool(CHAT)["function"]}]
    assert ask(client, CHAT, request(CHAT, say(ROME), tools=tools)) == CALLED
    assert ask(picky, CHAT, request(CHAT, say(ROME), tools=tools)) == CALLED


def test_allowed_tools_restrict_the_functions(client: httpx.Client) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]}
    body = request(RESPONSES, say("fine"), tools=[tool(RESPONSES), tool(RESPONSES, "other")])
    both, one = (client.post(RESPONSES, json={**body, **more}).json() for more in ({}, {"tool_choice": choice}))
    assert one["usage"]["input_tokens"] < both["usage"]["input_tokens"]


def namespace(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": f"Tools of {name}.", "tools": tools or [tool(RESPONSES)]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tools", "offered", "scope"),
    [
        ([namespace("mcp__sky")], "weather", "mcp__sky"),
        ([tool(RESPONSES), namespace("mcp__sky__")], "mcp__sky__weather", "mcp__sky__"),
        ([namespace("sky"), namespace("sea")], "sea__weather", "sea"),
        ([tool(RESPONSES), namespace("sky", tool(RESPONSES, "other"))], "weather", None),
    ],
)
def test_a_function_of_a_namespace_can_be_called(
    client: httpx.Client, tools: list[Any], offered: str, scope: str | None, stream: bool
) -> None:
    body = request(RESPONSES, say(call(offered, city="Rome")), tools=tools, stream=stream)
    answer = client.post(RESPONSES, json=body)
    assert "x-unmask-ignored" not in answer.headers
    response = sse_events(answer.text)[-1][1]["response"] if stream else answer.json()
    (item,) = response["output"]
    assert (item["name"], item.get("namespace")) == ("weather", scope)
    assert response["tools"] == json.loads(json.dumps(tools))


def test_the_openai_client_reads_a_namespaced_call(ai: openai.OpenAI) -> None:
    tools: Any = [namespace("sky"), {"type": "web_search"}]
    (item,) = ai.responses.create(model="tiny", input=say(ROME), tools=tools).output
    assert item.type == "function_call"
    assert (json.loads(item.arguments), item.namespace) == ({"city": "Rome"}, "sky")


def test_tools_of_other_types_within_a_namespace_are_ignored(client: httpx.Client) -> None:
    tools = [namespace("sky", {"type": "custom", "name": "patch"}, tool(RESPONSES))]
    answer = client.post(RESPONSES, json=request(RESPONSES, say(ROME), tools=tools))
    assert answer.headers["x-unmask-ignored"] == "tools.tools.custom"
    assert answer.json()["output"][0]["namespace"] == "sky"


# What of a history is ignored; tests/server/test_conversations.py has the rest.
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
USE = {"type": "server_tool_use", "id": "st_1", "name": "web_search", "input": {}}
CITED = {"type": "search_result", "title": "t", "content": [{"type": "text", "text": "x"}]}
MADE = {"id": "c1", "type": "function", "function": {"name": "view", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
HISTORIES: list[tuple[str, list[dict[str, Any]], str]] = [
    (RESPONSES, [SEARCH], "input.web_search_call"),
    (MESSAGES, [{"role": "assistant", "content": [USE]}], "messages.content.server_tool_use"),
    (MESSAGES, [{"role": "user", "content": [CITED]}], "messages.content.title"),
    (CHAT, [{"role": "assistant", "tool_calls": [MADE]}, {"role": "tool", "tool_call_id": "c1", "content": [IMAGE]}],
     "messages.content.image_url"),
]  # fmt: skip


@pytest.mark.parametrize(("route", "history", "ignored"), HISTORIES)
def test_items_of_other_tools_do_not_end_a_request(
    client: httpx.Client, picky: httpx.Client, route: str, history: list[Any], ignored: str
) -> None:
    body = request(route, [{"role": "user", "content": "hello"}, *history, {"role": "user", "content": say("fine")}])
    answer = client.post(route, json=body)
    assert answer.headers["x-unmask-ignored"] == ignored
    assert read(route, answer.text, stream=False) == Answer("fine")
    assert message(picky.post(route, json=body)).startswith(f"{ignored}: is not supported")


def test_items_of_an_answer_are_sent_back_with_strict_fields(picky: httpx.Client) -> None:
    first = picky.post(RESPONSES, json=request(RESPONSES, say("fine"))).json()["output"]
    history = [{"role": "user", "content": "hello"}, *first, {"role": "user", "content": say("again")}]
    assert ask(picky, RESPONSES, request(RESPONSES, history)) == Answer("again")


def test_functions_that_an_item_adds_are_callable(client: httpx.Client, picky: httpx.Client) -> None:
    hello, asked = ({"role": "user", "content": content} for content in ("hello", say(ROME)))
    added = {"type": "additional_tools", "role": "developer", "tools": [tool(RESPONSES), {"type": "web_search"}]}
    body = request(RESPONSES, [hello, added, asked])
    answer = client.post(RESPONSES, json=body)
    assert read(RESPONSES, answer.text, stream=False) == CALLED
    assert answer.headers["x-unmask-ignored"] == "input.tools.web_search"
    direct = client.post(RESPONSES, json=request(RESPONSES, [hello, asked], tools=[tool(RESPONSES)]))
    assert direct.json()["usage"]["input_tokens"] == answer.json()["usage"]["input_tokens"]
    assert picky.post(RESPONSES, json=body).status_code == 400
    grouped = {**added, "tools": [namespace("sky")]}
    (item,) = client.post(RESPONSES, json=request(RESPONSES, [grouped, asked])).json()["output"]
    assert item["namespace"] == "sky"


def test_fields_of_hosted_tools_are_allowed_with_them(client: httpx.Client) -> None:
    body = request(RESPONSES, say("fine"), include=["web_search_call.action.sources"])
    assert message(client.post(RESPONSES, json=body)).startswith("include[0]: ")
    tools = [{"type": "web_search"}]
    added = [{"type": "additional_tools", "role": "developer", "tools": tools}, *body["input"]]
    for more in ({"tools": tools}, {"input": added}):
        assert client.post(RESPONSES, json={**body, **more}).status_code == 200
    body = request(MESSAGES, say("fine"), mcp_servers=[{"type": "url", "name": "files", "url": "u"}])
    assert message(client.post(MESSAGES, json=body)).startswith("mcp_servers: ")
    taken = client.post(MESSAGES, json={**body, "tools": [{"type": "mcp_toolset", "mcp_server_name": "files"}]})
    assert taken.headers["x-unmask-ignored"].split(", ") == ["mcp_servers", "tools.mcp_toolset"]


def test_thinking_of_every_type_but_disabled_enables_reasoning(client: httpx.Client) -> None:
    def count(kind: str) -> int:
        body = {"messages": [{"role": "user", "content": "hello"}], "thinking": {"type": kind}}
        return int(client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"])

    assert count("disabled") < count("enabled") == count("adaptive") == count("between_tools")
