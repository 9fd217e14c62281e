"""Tools that are not functions: the request is answered, functions stay usable, and the header names the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime.tokenizer import Tokenizer
from tests.server.harness import SCRIPTED, ServerProcess, serving, sse_events
from tests.server.test_dialect_parts import CALL, CHAT_TOOL, CITY, FUNCTION, TOOL, message, respond, say

HOSTED: list[dict[str, Any]] = [
    {"type": "web_search", "external_web_access": False},
    {"type": "web_search_preview", "user_location": {"type": "approximate", "country": "CH"}},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation", "output_format": "png"},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "mcp", "server_label": "files", "server_url": "http://127.0.0.1:1", "require_approval": "never"},
    {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}},
]
SERVER_TOOLS: list[dict[str, Any]] = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
    {"type": "memory_20250818", "name": "memory"},
    {"type": "mcp_toolset", "mcp_server_name": "files"},
]
CUSTOM: list[dict[str, Any]] = [
    {"type": "custom", "custom": {"name": "patch", "description": "Patches."}},
    {"type": "web_search"},
]


@pytest.fixture(scope="module")
def server(scripted: ServerProcess) -> ServerProcess:
    return scripted


@pytest.fixture(scope="module")
def strict(tagged: Path) -> Any:
    flags = ("--served-model-name", "tiny", "--strict-fields")
    with serving("--model", str(tagged), *flags, module=SCRIPTED) as server, server.client() as client:
        yield client


def request(route: str, tools: list[Any], **more: Any) -> dict[str, Any]:
    """Returns a request to a route, with a function among its tools that the answer calls."""
    if route == "responses":
        return respond(CALL, tools=[*tools, FUNCTION], **more)
    if route == "messages":
        return message(CALL, tools=[*tools, TOOL], **more)
    content = [{"role": "user", "content": say(CALL)}]
    return {"model": "tiny", "messages": content, "tools": [*tools, CHAT_TOOL], **more}


CASES = [
    *(pytest.param("responses", tool, id=f"responses-{tool['type']}") for tool in HOSTED),
    *(pytest.param("messages", tool, id=f"messages-{tool['type']}") for tool in SERVER_TOOLS),
    *(pytest.param("chat/completions", tool, id=f"chat-{tool['type']}") for tool in CUSTOM),
]


@pytest.mark.parametrize(("route", "tool"), CASES)
def test_functions_stay_usable_among_other_tools(client: httpx.Client, route: str, tool: dict[str, Any]) -> None:
    for stream in (False, True):
        taken = client.post(f"/v1/{route}", json=request(route, [tool], stream=stream))
        assert taken.status_code == 200, taken.text
        assert taken.headers["x-unmask-ignored"] == f"tools.{tool['type']}"
        assert "weather" in taken.text
        assert "Z\\u00fcrich" in taken.text or "Zürich" in taken.text


@pytest.mark.parametrize(("route", "tool"), CASES)
def test_strict_fields_refuse_other_tools(strict: httpx.Client, route: str, tool: dict[str, Any]) -> None:
    refused = strict.post(f"/v1/{route}", json=request(route, [tool]))
    assert refused.status_code == 400
    assert f"tools.{tool['type']}: is not supported" in refused.json()["error"]["message"]
    assert strict.post(f"/v1/{route}", json=request(route, [])).status_code == 200


@pytest.mark.parametrize(
    ("route", "tool", "choice"),
    [
        ("responses", {"type": "web_search"}, {"type": "web_search"}),
        ("responses", {"type": "custom", "name": "patch"}, {"type": "custom", "name": "patch"}),
        ("responses", {"type": "mcp", "server_label": "files"}, {"type": "mcp", "server_label": "files"}),
        ("responses", {"type": "web_search"},
         {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}),
        ("chat/completions", CUSTOM[0], {"type": "custom", "custom": {"name": "patch"}}),
        ("chat/completions", CUSTOM[0], {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "custom", "custom": {"name": "patch"}}]}}),
        ("messages", SERVER_TOOLS[0], {"type": "tool", "name": "web_search"}),
    ],
)  # fmt: skip
def test_a_choice_of_an_unsupported_tool_is_refused(client: httpx.Client, route: str, tool: Any, choice: Any) -> None:
    refused = client.post(f"/v1/{route}", json=request(route, [tool], tool_choice=choice))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("tool_choice: ")


@pytest.mark.parametrize(
    ("route", "tool", "choice"),
    [
        ("responses", {"type": "web_search"}, "required"),
        ("chat/completions", CUSTOM[0], "required"),
        ("messages", SERVER_TOOLS[0], {"type": "any"}),
    ],
)
def test_a_required_call_needs_a_function(client: httpx.Client, route: str, tool: Any, choice: Any) -> None:
    refused = client.post(f"/v1/{route}", json=request(route, [], tool_choice=choice) | {"tools": [tool]})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("tool_choice: requires a call, but there are no tools")


def test_allowed_tools_restrict_the_functions(client: httpx.Client) -> None:
    other = {**FUNCTION, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]}
    taken = client.post("/v1/responses", json=respond("fine", tools=[FUNCTION, other], tool_choice=choice))
    assert taken.status_code == 200, taken.text
    both = client.post("/v1/responses", json=respond("fine", tools=[FUNCTION, other]))
    assert taken.json()["usage"]["input_tokens"] < both.json()["usage"]["input_tokens"]


def namespace(name: str, *functions: str, **more: Any) -> dict[str, Any]:
    tools = [{"type": "function", "name": each, "parameters": CITY} for each in functions]
    return {"type": "namespace", "name": name, "description": f"Tools of {name}.", "tools": tools, **more}


def call(name: str) -> str:
    return CALL.replace("weather", name)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tools", "offered", "scope"),
    [
        ([namespace("mcp__sky", "weather")], "weather", "mcp__sky"),
        ([FUNCTION, namespace("mcp__sky__", "weather")], "mcp__sky__weather", "mcp__sky__"),
        ([namespace("sky", "weather"), namespace("sea", "weather")], "sea__weather", "sea"),
    ],
)
def test_a_function_of_a_namespace_can_be_called(
    client: httpx.Client, tools: list[Any], offered: str, scope: str, stream: bool
) -> None:
    body = respond(call(offered), tools=tools, stream=stream)
    answer = client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert "x-unmask-ignored" not in answer.headers
    response = sse_events(answer.text)[-1][1]["response"] if stream else answer.json()
    (item,) = response["output"]
    assert (item["name"], item["namespace"]) == ("weather", scope)
    assert response["tools"] == tools
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "12 degrees"}
    history = [{"role": "user", "content": "hello"}, item, result, {"role": "user", "content": say("It is 12.")}]
    again = client.post("/v1/responses", json={**body, "stream": False, "input": history})
    assert again.json()["output"][0]["content"][0]["text"] == "It is 12."


def test_a_function_without_namespace_has_none(client: httpx.Client) -> None:
    tools = [FUNCTION, namespace("sky", "other")]
    (item,) = client.post("/v1/responses", json=respond(CALL, tools=tools)).json()["output"]
    assert item["name"] == "weather"
    assert "namespace" not in item


@pytest.mark.parametrize(
    ("tools", "more", "says"),
    [
        ([{"type": "namespace", "tools": []}], {}, "tools[0].name: "),
        ([namespace("a", tools=[namespace("b", "c")])], {}, "tools[0].tools[0].type: "),
        ([namespace("a", "b", "b")], {}, "tools[0].tools[1]"),
        ([namespace("a", *(f"f{i}" for i in range(200))), namespace("b", *(f"g{i}" for i in range(200)))], {},
         "tools: defines 400 functions"),
        ([namespace("a", "b")], {"tool_choice": {"type": "function", "name": "c"}}, "tool_choice: 'c' is not among"),
    ],
)  # fmt: skip
def test_a_malformed_namespace_is_refused(client: httpx.Client, tools: Any, more: Any, says: str) -> None:
    refused = client.post("/v1/responses", json=respond("x", tools=tools, **more))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(says)


def test_tools_of_other_types_within_a_namespace_are_ignored(client: httpx.Client) -> None:
    inner = [{"type": "custom", "name": "patch"}, {"type": "function", "name": "weather", "parameters": CITY}]
    answer = client.post("/v1/responses", json=respond(CALL, tools=[namespace("sky", tools=inner)]))
    assert answer.headers["x-unmask-ignored"] == "tools.tools.custom"
    assert answer.json()["output"][0]["namespace"] == "sky"


DROPPED: list[dict[str, Any]] = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["x"], "results": [{"text": "y"}]},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGVsbG8="},
    {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "code": "1", "container_id": "c",
     "outputs": [{"type": "logs", "logs": "1"}]},
    {"type": "computer_call", "id": "cu_1", "call_id": "c", "action": {"type": "wait"}, "pending_safety_checks": [],
     "status": "completed"},
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "data:"}},
    {"type": "mcp_list_tools", "id": "ml_1", "server_label": "files", "tools": [{"name": "a", "input_schema": {}}]},
    {"type": "mcp_approval_request", "id": "ma_1", "server_label": "files", "name": "a", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "ma_1", "approve": True},
    {"type": "mcp_call", "id": "mc_1", "server_label": "files", "name": "a", "arguments": "{}", "output": "x"},
    {"type": "tool_search_call", "call_id": "t", "execution": "client", "arguments": {"query": "x"}},
    {"type": "tool_search_output", "call_id": "t", "execution": "client", "status": "completed", "tools": []},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "program", "id": "pr_1", "call_id": "p", "code": "f()", "fingerprint": "x"},
    {"type": "program_output", "id": "po_1", "call_id": "p", "result": "1", "status": "completed"},
]  # fmt: skip


@pytest.mark.parametrize("item", DROPPED, ids=lambda item: item["type"])
def test_items_of_hosted_tools_do_not_end_a_request(client: httpx.Client, item: dict[str, Any]) -> None:
    history = [{"role": "user", "content": "hello"}, item, {"role": "user", "content": say("fine")}]
    answer = client.post("/v1/responses", json={"model": "tiny", "input": history})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-unmask-ignored"] == f"input.{item['type']}"
    assert answer.json()["output"][0]["content"][0]["text"] == "fine"


@pytest.mark.parametrize("item", DROPPED[:1], ids=lambda item: item["type"])
def test_strict_fields_refuse_items_of_hosted_tools(strict: httpx.Client, item: dict[str, Any]) -> None:
    history = [{"role": "user", "content": "hello"}, item, {"role": "user", "content": say("fine")}]
    refused = strict.post("/v1/responses", json={"model": "tiny", "input": history})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(f"input.{item['type']}: ")


@pytest.mark.parametrize(
    ("call", "result", "name", "text"),
    [
        ({"type": "custom_tool_call", "id": "ct_1", "call_id": "c1", "name": "patch", "input": "a\nb"},
         {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}, "patch", "done"),
        ({"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": ""},
         {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
         "patch", "done"),
        ({"type": "local_shell_call", "id": "ls_1", "call_id": "c1", "status": "completed",
          "action": {"type": "exec", "command": ["ls"], "env": {}}},
         {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}, "local_shell", "a.txt"),
        ({"type": "local_shell_call", "id": "ls_1", "call_id": "c1", "status": "completed",
          "action": {"type": "exec", "command": ["ls"], "env": {}}},
         {"type": "local_shell_call_output", "id": "ls_1", "output": "a.txt"}, "local_shell", "a.txt"),
        ({"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}, "status": "completed"},
         {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "a.txt", "stderr": "", "outcome":
          {"type": "exit", "exit_code": 0}}]}, "shell", '"stdout": "a.txt"'),
        ({"type": "apply_patch_call", "call_id": "c1", "operation": {"type": "delete_file", "path": "a.txt"},
          "status": "completed"},
         {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed", "output": "gone"},
         "apply_patch", "gone"),
    ],
)  # fmt: skip
def test_calls_of_client_tools_stay_in_the_history(
    client: httpx.Client, call: dict[str, Any], result: dict[str, Any], name: str, text: str
) -> None:
    history = [{"role": "user", "content": "hello"}, call, result, {"role": "user", "content": say("fine")}]
    answer = client.post("/v1/responses", json={"model": "tiny", "input": history})
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"] == "fine"
    short = client.post("/v1/responses", json={"model": "tiny", "input": [history[0], history[-1]]})
    assert answer.json()["usage"]["input_tokens"] >= short.json()["usage"]["input_tokens"] + len(name) + len(text)


def test_a_custom_call_in_the_history_of_a_chat_is_rendered(client: httpx.Client, tagged: Path) -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "a\nb"}}
    history = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    ids = client.post("/tokenize", json={"messages": history}).json()["tokens"]
    assert '{"name": "patch", "arguments": {"input": "a\\nb"}}' in Tokenizer(tagged).decode(ids)


BLOCKS: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "st_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "st_1", "content": [
        {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e", "page_age": None}]},
    {"type": "web_search_tool_result", "tool_use_id": "st_1", "content":
        {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}},
    {"type": "web_fetch_tool_result", "tool_use_id": "st_1", "content": {"type": "web_fetch_result", "url": "u"}},
    {"type": "code_execution_tool_result", "tool_use_id": "st_1", "content":
        {"type": "code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": []}},
    {"type": "mcp_tool_use", "id": "mt_1", "name": "a", "server_name": "files", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "mt_1", "is_error": False, "content": [{"type": "text", "text": "x"}]},
    {"type": "container_upload", "file_id": "f"},
    {"type": "mcp_tool_listing", "mcp_server_name": "files", "tools": [{"name": "a", "input_schema": {}}]},
    {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": None},
]  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["type"])
@pytest.mark.parametrize("first", [True, False])
def test_blocks_of_server_tools_do_not_end_a_request(client: httpx.Client, block: dict[str, Any], first: bool) -> None:
    text = {"type": "text", "text": "I looked."}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [block, text] if first else [text, block]},
        {"role": "user", "content": say("fine")},
    ]
    answer = client.post("/v1/messages", json={"model": "tiny", "max_tokens": 50, "messages": history})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-unmask-ignored"] == f"messages.content.{block['type']}"
    assert answer.json()["content"][0]["text"] == "fine"
    history[1]["content"] = [text]
    shorter = client.post("/v1/messages", json={"model": "tiny", "max_tokens": 50, "messages": history})
    assert answer.json()["usage"]["input_tokens"] == shorter.json()["usage"]["input_tokens"]


# Each form of the blocks that Anthropic's API has in messages and in results of tools.
SOURCE = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
TEXT_BLOCK = {"type": "text", "text": "An entry."}
CITED = {"type": "search_result", "source": "u", "title": "t", "content": [TEXT_BLOCK], "citations": {"enabled": True}}
FORMS: list[dict[str, Any]] = [
    *BLOCKS,
    TEXT_BLOCK,
    CITED,
    {"type": "image", "source": SOURCE},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}, "title": "t"},
    {"type": "document", "source": {"type": "content", "content": [TEXT_BLOCK]}},
    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "tool_use", "id": "call_2", "name": "weather", "input": {"city": "x"}},
    {"type": "tool_result", "tool_use_id": "call_1", "content": [CITED]},
    {"type": "tool_result", "tool_use_id": "call_1", "content": [TEXT_BLOCK, CITED]},
    {"type": "tool_result", "tool_use_id": "call_1"},
    {"type": "tool_reference", "tool_name": "weather"},
    {"type": "compaction", "content": "Earlier."},
    {"type": "browser_state", "content": []},
    {"type": "tool_search_tool_result", "tool_use_id": "st_1", "content":
        {"type": "tool_search_tool_search_result", "tool_references": []}},
    {"type": "bash_code_execution_tool_result", "tool_use_id": "st_1", "content":
        {"type": "bash_code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": [
            {"type": "bash_code_execution_output", "file_id": "f"}]}},
    {"type": "text_editor_code_execution_tool_result", "tool_use_id": "st_1", "content":
        {"type": "text_editor_code_execution_view_result", "content": "x", "file_type": "text"}},
    {"type": "code_execution_tool_result", "tool_use_id": "st_1", "content":
        {"type": "encrypted_code_execution_result", "encrypted_stdout": "x", "content": [
            {"type": "code_execution_output", "file_id": "f"}]}},
    {"type": "web_fetch_tool_result", "tool_use_id": "st_1", "content":
        {"type": "web_fetch_tool_result_error", "error_code": "unavailable"}},
    {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e"},
    {"type": "web_fetch_result", "url": "u", "content": {"type": "document", "source": SOURCE}},
    {"type": "code_execution_output", "file_id": "f"},
    {"type": "web_search_tool_result_error", "error_code": "unavailable"},
]  # fmt: skip


def called(content: Any) -> list[Any]:
    """Returns a conversation with a tool result of this content."""
    use = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "x"}}
    return [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": content}]},
        {"role": "user", "content": say("fine")},
    ]


@pytest.mark.parametrize("block", FORMS, ids=lambda block: block["type"])
def test_every_block_is_answered_or_refused(client: httpx.Client, block: dict[str, Any]) -> None:
    user = {"role": "user", "content": say("fine")}
    within = called("x")
    within[2]["content"].append(block)
    histories = [
        called([block]),
        called([TEXT_BLOCK, block]),
        within,
        [user, {"role": "assistant", "content": [block]}],
        [{"role": "assistant", "content": [block]}],
        [{"role": "assistant", "content": [block]}, user],
        [{"role": "user", "content": [block]}],
        [{"role": "system", "content": [block]}, user],
    ]
    bodies = [{"model": "tiny", "messages": history, "system": say("fine")} for history in histories]
    bodies += [{"model": "tiny", "messages": [user], "system": [block]}]
    for body in bodies:
        statuses = {client.post("/v1/messages/count_tokens", json=body).status_code}
        for stream in (False, True):
            answer = client.post("/v1/messages", json={**body, "max_tokens": 8, "stream": stream})
            assert "event: error" not in answer.text, (body, answer.text)
            statuses.add(answer.status_code)
        assert statuses in ({200}, {400}), body


def test_a_result_of_other_blocks_is_their_json(client: httpx.Client) -> None:
    counts = []
    for content in ([CITED], json.dumps([CITED])):
        body = {"model": "tiny", "messages": called(content)}
        counts.append(client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"])
        answer = client.post("/v1/messages", json={**body, "max_tokens": 50})
        assert answer.json()["content"][0]["text"] == "fine"
    assert counts[0] == counts[1]


IMAGE = {"type": "image", "source": SOURCE}
FILE = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGVsbG8="}}
INPUT_IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8=", "detail": "auto"}


def viewed(route: str, part: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """Returns a request with an image or a file among the texts of a tool result."""
    if route == "messages":
        parts = [part, *({"type": "text", "text": text} for text in texts)]
        return {"model": "tiny", "max_tokens": 50, "messages": called(parts)}
    if route == "chat/completions":
        content = [part, *({"type": "text", "text": text} for text in texts)]
        made = {"id": "c1", "type": "function", "function": {"name": "view_image", "arguments": "{}"}}
        history = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "c1", "content": content},
            {"role": "user", "content": say("fine")},
        ]
        return {"model": "tiny", "messages": history}
    parts = [part, *({"type": "input_text", "text": text} for text in texts)]
    call = {"type": "function_call", "call_id": "c1", "name": "view_image", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": parts}
    user = {"role": "user", "content": say("fine")}
    return {"model": "tiny", "input": [{"role": "user", "content": "hello"}, call, result, user]}


@pytest.mark.parametrize("texts", [[], ["An entry."]], ids=["alone", "text"])
@pytest.mark.parametrize(
    ("route", "part", "path"),
    [
        ("messages", IMAGE, "messages.content.content"),
        ("messages", FILE, "messages.content.content"),
        ("responses", INPUT_IMAGE, "input.output"),
        ("responses", {"type": "input_file", "file_data": "data:application/pdf;base64,aGVsbG8="}, "input.output"),
        ("chat/completions", {"type": "image_url", "image_url": {"url": "data:"}}, "messages.content"),
        ("chat/completions", {"type": "image_url", "image_url": 5, "text": 5}, "messages.content"),
        ("chat/completions", {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "messages.content"),
        ("chat/completions", {"type": "file", "file": {"file_data": "data:"}}, "messages.content"),
    ],
)
def test_images_and_files_in_a_tools_result_do_not_end_a_request(
    client: httpx.Client, strict: httpx.Client, route: str, part: dict[str, Any], path: str, texts: list[str]
) -> None:
    ignored = f"{path}.{part['type']}"
    for stream in (False, True):
        answer = client.post(f"/v1/{route}", json={**viewed(route, part, texts), "stream": stream})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-unmask-ignored"] == ignored
        assert stream or "fine" in answer.text
    refused = strict.post(f"/v1/{route}", json=viewed(route, part, texts))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(f"{ignored}: is not supported")


DOCUMENTS: list[dict[str, Any]] = [
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "An entry."}},
    {"type": "document", "source": {"type": "content", "content": [TEXT_BLOCK]}, "citations": {"enabled": True}},
    {"type": "document", "source": {"type": "content", "content": "An entry."}, "cache_control": {"type": "ephemeral"}},
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: json.dumps(document["source"]))
def test_documents_of_text_are_their_text(client: httpx.Client, document: dict[str, Any]) -> None:
    def count(history: list[Any]) -> int:
        answer = client.post("/v1/messages", json={"model": "tiny", "max_tokens": 50, "messages": history})
        assert answer.status_code == 200, answer.text
        assert "x-unmask-ignored" not in answer.headers
        assert answer.json()["content"][0]["text"] == "fine"
        tokens: int = answer.json()["usage"]["input_tokens"]
        return tokens

    user = {"type": "text", "text": say("fine")}
    assert count([{"role": "user", "content": [document, user]}]) == count(
        [{"role": "user", "content": [TEXT_BLOCK, user]}]
    )
    assert count(called([document])) == count(called([TEXT_BLOCK]))


@pytest.mark.parametrize(
    "source",
    [FILE["source"], {"type": "url", "url": "u"}, {"type": "content", "content": [IMAGE]}, {"type": "text", "data": 5},
     {"type": "content", "content": []}, {"type": "content", "content": [TEXT_BLOCK, IMAGE]},
     {"type": "content", "content": [{**IMAGE, "text": "x"}]}, {"type": "content", "content": [{"text": "x"}]},
     {"type": "content", "content": [{"type": "text", "text": 5}]}, "x", {}, []],
)  # fmt: skip
def test_other_documents_of_the_user_are_refused(client: httpx.Client, source: Any) -> None:
    content = [{"type": "document", "source": source}]
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
        refused = client.post(path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == (
            "messages[0].content[0]: documents other than text are not supported; send their text"
        )
    system = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}], "system": DOCUMENTS[:1]}
    assert client.post("/v1/messages", json=system).json()["error"]["message"].startswith("system[0]: document blocks")


def test_thinking_of_every_type_but_disabled_enables_reasoning(client: httpx.Client) -> None:
    def count(kind: str) -> int:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "thinking": {"type": kind}}
        tokens: int = client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
        return tokens

    assert count("disabled") < count("enabled") == count("adaptive") == count("between_tools")


def test_search_results_of_the_user_are_their_text(client: httpx.Client, strict: httpx.Client) -> None:
    user = {"type": "text", "text": say("fine")}
    counts = []
    for block in (CITED, TEXT_BLOCK):
        body = {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": [block, user]}]}
        answer = client.post("/v1/messages", json=body)
        assert answer.json()["content"][0]["text"] == "fine"
        counts.append(answer.json()["usage"]["input_tokens"])
        if block is CITED:
            assert set(answer.headers["x-unmask-ignored"].split(", ")) == {
                "messages.content.title",
                "messages.content.source",
            }
            assert strict.post("/v1/messages", json=body).status_code == 400
    assert counts[0] == counts[1]


@pytest.mark.parametrize("content", [[], [IMAGE], [TEXT_BLOCK, IMAGE], [{"type": "text"}], 5, {}, None])
def test_search_results_without_text_are_refused(client: httpx.Client, content: Any) -> None:
    body = {
        "model": "tiny",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": [{**CITED, "content": content}]}],
    }
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        refused = client.post(path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("messages[0].content[0]")


def test_functions_that_an_item_adds_are_callable(client: httpx.Client, strict: httpx.Client) -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION, {"type": "web_search"}]}
    history = [{"role": "user", "content": "hello"}, added, {"role": "user", "content": say(CALL)}]
    body = {"model": "tiny", "input": history}
    answer = client.post("/v1/responses", json=body)
    (item,) = answer.json()["output"]
    assert (item["type"], item["name"]) == ("function_call", "weather")
    assert answer.headers["x-unmask-ignored"] == "input.tools.web_search"
    shorter = client.post("/v1/responses", json={**body, "input": [history[0], history[2]], "tools": [FUNCTION]})
    assert shorter.json()["usage"]["input_tokens"] == answer.json()["usage"]["input_tokens"]
    assert strict.post("/v1/responses", json=body).status_code == 400
    twice = client.post("/v1/responses", json={**body, "tools": [FUNCTION]})
    assert twice.json()["error"]["message"].startswith("input[1].tools[0].name: 'weather' is also that of tools[0]")
    grouped = {**added, "tools": [namespace("sky", "weather")]}
    (item,) = client.post("/v1/responses", json={**body, "input": [grouped, history[2]]}).json()["output"]
    assert item["namespace"] == "sky"


def test_items_of_an_answer_are_sent_back_with_strict_fields(strict: httpx.Client) -> None:
    first = strict.post("/v1/responses", json=respond("fine"))
    history = [{"role": "user", "content": "hello"}, *first.json()["output"], {"role": "user", "content": say("again")}]
    again = strict.post("/v1/responses", json={"model": "tiny", "input": history})
    assert again.status_code == 200, again.text
    assert again.json()["output"][0]["content"][0]["text"] == "again"


def test_a_tool_without_a_type_is_a_function(client: httpx.Client, strict: httpx.Client) -> None:
    tools = [{"function": CHAT_TOOL["function"]}]
    for used in (client, strict):
        answer = used.post("/v1/chat/completions", json=request("chat/completions", []) | {"tools": tools})
        assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    refused = client.post("/v1/chat/completions", json=request("chat/completions", [{"name": "weather"}]))
    assert refused.json()["error"]["message"] == "tools[0].function: is missing; describe the function"
    refused = client.post("/v1/responses", json=respond("x", tools=[CHAT_TOOL]))
    assert refused.json()["error"]["message"] == "tools[0].name: is missing; name the function"


@pytest.mark.parametrize("content", [[IMAGE], [{"type": "text", "text": "What is this?"}, IMAGE]])
def test_an_image_of_the_user_is_refused(client: httpx.Client, content: list[Any]) -> None:
    body = {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": content}]}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        refused = client.post(path, json=body)
        assert refused.status_code == 400
        assert "image blocks are not supported" in refused.json()["error"]["message"]
    parts = [INPUT_IMAGE if part is IMAGE else {**part, "type": "input_text"} for part in content]
    refused = client.post("/v1/responses", json={"model": "tiny", "input": [{"role": "user", "content": parts}]})
    assert refused.status_code == 400
    assert "input_image parts are not supported, only text" in refused.json()["error"]["message"]


def test_messages_without_any_supported_block_are_refused(client: httpx.Client) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "assistant", "content": BLOCKS[:2]}]}
        refused = client.post(path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("messages: has no text, call or result that the server")


def test_the_openai_client_reads_a_namespaced_call(scripted: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as ai:
        tools: Any = [namespace("sky", "weather"), {"type": "web_search"}]
        (item,) = ai.responses.create(model="tiny", input=say(CALL), tools=tools).output
        assert item.type == "function_call"
        assert json.loads(item.arguments) == {"city": "Zürich"}
        assert item.namespace == "sky"


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"type": "item_reference", "id": "x"}, "input[0]"),
        ({"type": "mesage", "role": "user", "content": "x"}, "input[0]"),
        ({"id": "x"}, "input[0]: refers to an item of an earlier response"),
        ({"id": "x", "content": "hi"}, "input[0]: message items need role"),
        ({"id": "x", "call_id": "c", "output": "o"}, "input[0]: message items need"),
        ({"type": "additional_tools", "role": "developer"}, "input[0].tools: Field required"),
        ({"type": "additional_tools", "tools": [{"name": "f"}]}, "input[0].tools[0].type: Field required"),
        ({"type": "additional_tools", "tools": {}}, "input[0].tools: Input should be an array"),
        ({"type": "additional_tools", "tools": [{"type": "function"}]}, "input[0].tools[0].name: is missing"),
        ({"type": "configuration_update", "text": {}}, "input[0]: configuration_update items are not supported"),
        ({"type": "custom_tool_call", "name": "patch"}, "input[0]: custom_tool_call items need call_id"),
        ({"type": "function_call", "name": "f", "call_id": "c", "arguments": {}}, "input[0]: function_call items have"),
        ({"type": "function_call_output", "call_id": "c", "output": {}}, "input[0]: function_call_output items have"),
    ],
)
def test_malformed_items_are_refused(client: httpx.Client, item: dict[str, Any], says: str) -> None:
    refused = client.post("/v1/responses", json={"model": "tiny", "input": [item]})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(says)


def test_output_of_a_hosted_tool_may_be_included_with_it(client: httpx.Client) -> None:
    body = respond("fine", include=["web_search_call.action.sources"])
    refused = client.post("/v1/responses", json=body)
    assert refused.json()["error"]["param"] == "include[0]"
    tools = [{"type": "web_search"}]
    assert client.post("/v1/responses", json={**body, "tools": tools}).status_code == 200
    added = {"type": "additional_tools", "role": "developer", "tools": tools}
    assert (
        client.post(
            "/v1/responses", json={**body, "input": [added, {"role": "user", "content": say("fine")}]}
        ).status_code
        == 200
    )


def test_servers_of_a_toolset_are_ignored_with_it(client: httpx.Client) -> None:
    server = {"type": "url", "name": "files", "url": "http://127.0.0.1:1"}
    body = message("fine", mcp_servers=[server])
    assert client.post("/v1/messages", json=body).json()["error"]["message"].startswith("mcp_servers: ")
    taken = client.post("/v1/messages", json={**body, "tools": [SERVER_TOOLS[-1]]})
    assert taken.headers["x-unmask-ignored"].split(", ") == ["mcp_servers", "tools.mcp_toolset"]
