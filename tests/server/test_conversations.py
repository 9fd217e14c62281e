"""The conversation of each chat API becomes messages of a chat template. What the server ignores is named."""

import json
from typing import Any

import pytest

from runtime.errors import RequestError
from runtime.server.anthropic.protocol import MessagesRequest
from runtime.server.openai.protocol import ChatRequest
from runtime.server.openai.responses_protocol import ResponsesRequest
from runtime.server.serving.request_body import ignored_fields, parse_body
from tests.server.dialects import CHAT, MESSAGES, RESPONSES, request, tool

Messages = list[dict[str, Any]]


def convert(route: str, history: Any, **fields: Any) -> tuple[Messages, list[str]]:
    """Returns the messages of the template, and the paths of what is ignored."""
    data = json.dumps(request(route, history, **fields)).encode()
    if route == RESPONSES:
        items = parse_body(ResponsesRequest, data)
        return items.to_chat(items.tool_config().origins).messages, ignored_fields(items)
    body = parse_body(ChatRequest if route == CHAT else MessagesRequest, data)
    return body.to_chat().messages, ignored_fields(body)


def user(content: Any = "hello") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = "", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def result(content: Any = "2", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content": content, **more}


def called(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    """An assistant message of a chat with a call."""
    calls = [{"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}]
    return assistant(tool_calls=calls, **more)


TEXT = {"type": "text", "text": "An entry."}
HO = {"type": "text", "text": "ho"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
CALLED = called("add", {"a": 1})
# Results of tools that are neither text nor parts, and what the model gets.
VALUES = [(json.loads(text), text) for text in ("5", "1.5", "true", '{"a": ["é"]}', '[1, "a"]', '[{"a": 1}]')]
# A history, the messages of the template, and the ignored paths.
CHATS: list[tuple[Messages, Messages, list[str]]] = [
    ([{**user(), "name": "critic"}], [{**user(), "name": "critic"}], []),
    ([{"role": "developer", "content": "short"}], [{"role": "system", "content": "short"}], []),
    ([user([{"type": "text", "text": "hel", "cache_control": {}}, {"type": "text", "text": "lo"}])], [user()], []),
    ([assistant(None, refusal="no")], [assistant("no")], []),
    ([assistant(None, audio={"id": "a"}, reasoning_content="hm")], [assistant(reasoning_content="hm")], []),
    ([called("add", '{"a": 1}'), result()], [CALLED, result()], []),
    ([called("add", " "), result("")], [called("add", {}), result("")], []),
    ([called("add", "[1]")], [called("add", "[1]")], []),
    ([assistant(function_call={"name": "add", "arguments": "{"}), {"role": "function", "name": "add", "content": "2"}],
     [assistant(tool_calls=[{"type": "function", "function": {"name": "add", "arguments": "{"}}]),
      {"role": "tool", "name": "add", "content": "2"}], []),
    ([assistant(tool_calls=[{"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "a\nb"}}]), result()],
     [called("patch", {"input": "a\nb"}), result()], []),
    ([CALLED, result([IMAGE, TEXT])], [CALLED, result("An entry.")], ["messages.content.image_url"]),
    ([CALLED, result([{"type": "image_url", "image_url": 5, "text": 5}])], [CALLED, result("")],
     ["messages.content.image_url"]),
    ([CALLED, result([{"type": "input_audio", "input_audio": {}}, {"type": "file", "file": {}}])],
     [CALLED, result("")], ["messages.content.input_audio", "messages.content.file"]),
    ([assistant([{"type": "thinking", "thinking": "hm", "signature": "x", "self": 1, "mood": 1}, HO])],
     [assistant("ho", reasoning_content="hm")], ["messages.content.self", "messages.content.mood"]),
    ([assistant([{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"text": "m"}]}, HO])],
     [assistant("ho", reasoning_content="hm")], []),
    ([assistant([{"type": "reasoning", "reasoning": "hm"}, HO])], [assistant("ho", reasoning_content="hm")], []),
    ([assistant([{"type": "reasoning", "text": "h"}, {"type": "redacted_thinking", "data": "x"},
                 {"type": "thinking", "text": "m"}, HO])], [assistant("ho", reasoning_content="hm")], []),
    ([assistant([{"type": "reasoning", "reasoning": "hm"}, HO], reasoning="no")],
     [assistant("ho", reasoning_content="no")], []),
    *(([CALLED, result(value)], [CALLED, result(text)], []) for value, text in VALUES),
    ([CALLED, {"role": "function", "content": 2}], [CALLED, {"role": "tool", "content": "2"}], []),
]  # fmt: skip

SHELL = {"type": "local_shell_call", "id": "ls_1", "call_id": "c1", "action": {"command": ["ls"]}}
DONE = {"type": "function_call_output", "call_id": "c1", "output": "2"}
ADD = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
OTHER_TOOLS = [{"type": "function", "name": "weather"}, {"type": "web_search"}]
ITEMS: list[tuple[Messages, Messages, list[str]]] = [
    ([{"type": "message", "role": "developer", "content": "short"},
      user([{"type": "input_text", "text": "hel"}, {"type": "input_text", "text": "lo"}]),
      {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
      assistant([{"type": "output_text", "text": "well", "annotations": [], "logprobs": []}], id="m", status="x"),
      ADD, DONE, user("and?")],
     [{"role": "system", "content": "short"}, user(), called("add", {"a": 1}, reasoning_content="hm") | {
         "content": "well"}, result(), user("and?")], []),
    ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}],
     [assistant(reasoning_content="hm")], []),
    *(([user(), {"type": kind, "id": "i", "call_id": "c", "status": "completed", "output": {"a": 1}, **more}, user()],
       [user(), user()], [f"input.{kind}"])
      for kind, more in [
          ("web_search_call", {"action": {"type": "search"}}), ("computer_call_output", {}),
          ("mcp_list_tools", {"tools": [{"name": "a", "input_schema": {}}]}), ("mcp_approval_response", {}),
          ("tool_search_output", {"tools": []}), ("compaction", {}), ("program", {"code": "f()"})]),
    ([{"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": ""},
      {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]}],
     [called("patch", {"input": ""}), result("done")], []),
    ([SHELL, DONE], [called("local_shell", {"action": {"command": ["ls"]}}), result()], []),
    ([SHELL, {"type": "local_shell_call_output", "id": "ls_1", "output": "2"}],
     [called("local_shell", {"action": {"command": ["ls"]}}), result()], []),
    ([{"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
      {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "é"}]}],
     [called("shell", {"action": {"commands": ["ls"]}}), result('[{"stdout": "é"}]')], []),
    ([{"type": "apply_patch_call", "call_id": "c1", "operation": {"type": "delete_file"}},
      {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed"}],
     [called("apply_patch", {"operation": {"type": "delete_file"}}), result("")], []),
    ([ADD, {**DONE, "output": [{"type": "input_image", "image_url": "data:"}, {"type": "input_text", "text": "2"}]}],
     [CALLED, result()], ["input.output.input_image"]),
    ([ADD, {**DONE, "output": [{"type": "input_file", "file_data": "data:"}]}], [CALLED, result("")],
     ["input.output.input_file"]),
    *(([ADD, {**DONE, "output": value}], [CALLED, result(text)], []) for value, text in VALUES),
    ([user(), {"type": "additional_tools", "role": "developer", "tools": OTHER_TOOLS}], [user()],
     ["input.tools.web_search"]),
]  # fmt: skip

USE = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
PICTURE = {"type": "image", "source": SOURCE}
PDF = {"type": "document", "source": {**SOURCE, "media_type": "application/pdf"}}
CITED = {"type": "search_result", "source": "u", "title": "t", "content": [TEXT], "citations": {"enabled": True}}
DOCUMENTS: list[dict[str, Any]] = [
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "An entry."}},
    {"type": "document", "source": {"type": "content", "content": [TEXT]}, "citations": {"enabled": True}},
    {"type": "document", "source": {"type": "content", "content": "An entry."}, "cache_control": {"type": "ephemeral"}},
]
BLOCKS: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "st_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "st_1", "content": [
        {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e", "page_age": None}]},
    {"type": "web_search_tool_result", "tool_use_id": "st_1", "content":
        {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}},
    {"type": "code_execution_tool_result", "tool_use_id": "st_1", "content":
        {"type": "encrypted_code_execution_result", "encrypted_stdout": "x", "content": [
            {"type": "code_execution_output", "file_id": "f"}]}},
    {"type": "mcp_tool_use", "id": "mt_1", "name": "a", "server_name": "files", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "mt_1", "is_error": False, "content": [{"type": "text", "text": "x"}]},
    {"type": "container_upload", "file_id": "f"},
    {"type": "tool_reference", "tool_name": "weather"},
    {"type": "compaction", "content": "Earlier."},
    {"type": "mcp_tool_listing", "mcp_server_name": "files", "tools": [{"name": "a", "input_schema": {}}]},
    {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": None},
]  # fmt: skip


def used(content: Any) -> Messages:
    """Returns a conversation of messages with a tool result of this content."""
    return [user(), assistant([USE]), user([{"type": "tool_result", "tool_use_id": "c1", "content": content}])]


def of_result(content: str) -> Messages:
    return [user(), CALLED, result(content)]


TURNS: list[tuple[Messages, Messages, list[str]]] = [
    ([user([{**HO, "cache_control": {"type": "ephemeral"}}]),
      assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
                 HO, USE]),
      user([{"type": "text", "text": "so"}, {"type": "tool_result", "tool_use_id": "c1", "content": [
          {"type": "text", "text": "2"}]}, {"type": "text", "text": "and?"}])],
     [user("ho"), {**CALLED, "content": "ho", "reasoning_content": "hm"}, user("so"), result(), user("and?")], []),
    ([assistant(HO["text"]), assistant([HO]), user()], [assistant("ho"), assistant("ho"), user()], []),
    *(([assistant(content), user()], [assistant("ho"), user()], [f"messages.content.{block['type']}"])
      for block in BLOCKS for content in ([block, HO], [HO, block])),
    *(([user([HO, document])], [user("hoAn entry.")], []) for document in DOCUMENTS),
    *((used([document]), of_result("An entry."), []) for document in DOCUMENTS),
    ([user([CITED, HO])], [user("An entry.ho")], ["messages.content.title", "messages.content.source"]),
    (used([TEXT]), of_result("An entry."), []),
    (used([CITED]), of_result(json.dumps([CITED])), []),
    *((used(value), of_result(text), []) for value, text in VALUES),
    (used([PICTURE]), of_result(""), ["messages.content.content.image"]),
    (used([PICTURE, TEXT]), of_result("An entry."), ["messages.content.content.image"]),
    (used([PDF]), of_result(""), ["messages.content.content.document"]),
    (used([{"type": "tool_reference", "tool_name": "x"}]), of_result(""), ["messages.content.content.tool_reference"]),
]  # fmt: skip
CASES = [(route, *case) for route, cases in ((CHAT, CHATS), (RESPONSES, ITEMS), (MESSAGES, TURNS)) for case in cases]


@pytest.mark.parametrize(("route", "history", "messages", "ignored"), CASES)
def test_a_history_becomes_messages(route: str, history: Messages, messages: Messages, ignored: list[str]) -> None:
    found, paths = convert(route, history)
    assert found == messages
    assert sorted(paths) == sorted(ignored)


def test_instructions_and_systems_are_first() -> None:
    expected = [{"role": "system", "content": "be brief"}, user()]
    assert convert(RESPONSES, "hello", instructions="be brief") == (expected, [])
    assert convert(MESSAGES, "hello", system="be brief") == (expected, [])
    assert convert(MESSAGES, "hello", system=[{"type": "text", "text": t} for t in ("be ", "brief")]) == (expected, [])


BILLING = "x-anthropic-billing-header: cc_version=2.1.1; cc_entrypoint=cli; cch=00001;"


@pytest.mark.parametrize(
    ("system", "content"),
    [
        ([{"type": "text", "text": BILLING}, {"type": "text", "text": "About."}], "About."),
        ([{"type": "text", "text": f"{BILLING}\n"}, {"type": "text", "text": "About."}], "About."),
        ([{"type": "text", "text": f"\n{BILLING}\n\nAbout."}], "About."),
        (f"{BILLING}\nAbout.", "About."),
        (f"About: {BILLING}", f"About: {BILLING}"),
    ],
)
def test_a_billing_line_at_the_start_of_a_system_prompt_is_removed(system: Any, content: str) -> None:
    """It differs in each request, so that the prefix cache would find nothing after it."""
    assert convert(MESSAGES, BILLING, system=system)[0] == [{"role": "system", "content": content}, user(BILLING)]


@pytest.mark.parametrize(
    ("tools", "call", "name"),
    [
        ([("sky", "add")], ("add", "sky"), "add"),
        ([("sky__", "add"), ("", "add")], ("add", "sky__"), "sky__add"),
        ([("sky", "add"), ("sea", "add")], ("add", "sea"), "sea__add"),
        ([("sky", "sub"), ("", "add")], ("add", None), "add"),
    ],
)
def test_calls_in_a_history_have_the_names_that_are_offered(tools: Any, call: Any, name: str) -> None:
    offered = [
        {"type": "namespace", "name": scope, "tools": [tool(RESPONSES, each)]} if scope else tool(RESPONSES, each)
        for scope, each in tools
    ]
    history = [{**ADD, "name": call[0], "namespace": call[1]}, DONE]
    assert convert(RESPONSES, history, tools=offered)[0] == [called(name, {"a": 1}), result()]


# Each form of the blocks that Anthropic's API has in messages and in results of tools.
FORMS: list[dict[str, Any]] = [
    *BLOCKS, TEXT, CITED, PICTURE, PDF, *DOCUMENTS, USE,
    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "tool_result", "tool_use_id": "c1", "content": [CITED]},
    {"type": "tool_result", "tool_use_id": "c1"},
    {"type": "browser_state", "content": []},
    {"type": "bash_code_execution_tool_result", "tool_use_id": "st_1", "content":
        {"type": "bash_code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": [
            {"type": "bash_code_execution_output", "file_id": "f"}]}},
    {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e"},
    {"type": "web_fetch_result", "url": "u", "content": {"type": "document", "source": SOURCE}},
    {"type": "web_search_tool_result_error", "error_code": "unavailable"},
]  # fmt: skip


@pytest.mark.parametrize("block", FORMS, ids=lambda block: block["type"])
def test_every_block_is_text_or_refused_by_its_path(block: dict[str, Any]) -> None:
    within = used("x")
    within[2]["content"].append(block)
    for history, more in (
        (used([block]), {}), (used([TEXT, block]), {}), (within, {}), ([user([block])], {}),
        ([assistant([block])], {}), ([assistant([block]), user()], {}), ([user(), assistant([block])], {}),
        ([{"role": "system", "content": [block]}, user()], {}), ([user()], {"system": [block]}),
    ):  # fmt: skip
        refused = None
        try:
            messages, _ = convert(MESSAGES, history, **more)
        except RequestError as error:
            refused = error
        if refused is None:
            assert all(isinstance(message["content"], str) for message in messages)
        else:
            assert refused.status == 400
            assert (refused.param or "").startswith(("messages", "system"))
