"""Invalid requests are refused with the name of the field, on every route."""

from typing import Any

import pytest

from tests.server.dialects import CHAT, CITY, MESSAGES, RESPONSES, request, tool

TEXT, GENERATE, INFILL = "/v1/completions", "/generate", "/v1/infill"
USER = {"role": "user", "content": "hello"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
TEXT_BLOCK = {"type": "text", "text": "An entry."}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}
SERVER_BLOCKS = [{"type": "compaction", "content": "x"}, {"type": "fallback"}]
FLAGS = {"add_generation_prompt": False, "continue_final_message": True}
BEGUN = {"messages": [USER, {"role": "assistant", "content": "x"}]}
CONTINUED = {**BEGUN, **FLAGS}
CLOCK, WEATHER = tool(CHAT, "clock"), tool(CHAT)
FUNCTION, OTHER = tool(RESPONSES), tool(MESSAGES)
NAMED = {"type": "function", "function": {"name": "other"}}
# Texts that are no numbers of JSON, or beyond floats.
NO_NUMBERS = (
    *("", " 7", "7 ", "7\n", "+7", "07", "7.", ".7", "7_0", "0x7", "\u0667", "true", "nan", "Infinity", "1e999"),
    "7" * 65,
)
NO_INTEGERS = (*NO_NUMBERS, "20.5", "-2", -2)


def functions(count: int, prefix: str) -> list[Any]:
    return [tool(RESPONSES, f"{prefix}{i}") for i in range(count)]


def namespace(name: str, *tools: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": tools}


def document(source: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "document", "source": source}]}]}


def cited(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "search_result", "content": content}]}]}


def holding(part: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [USER, {"role": role, "content": [part]}]}


BASES: dict[str, dict[str, Any]] = {
    CHAT: request(CHAT, "hello", max_tokens=8),
    RESPONSES: request(RESPONSES, "hello", max_tokens=8),
    MESSAGES: request(MESSAGES, "hello", max_tokens=8),
    "/v1/messages/count_tokens": {"messages": [USER]},
    TEXT: {},
    GENERATE: {},
    INFILL: {},
    "/tokenize": {},
}
CASES: dict[str, list[tuple[dict[str, Any], str]]] = {
    TEXT: [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [40.5]}, "prompt"),
        ({"prompt": [40.0, True]}, "prompt"),
        ({"prompt": [[40.0, "a"]]}, "prompt"),
        ({"prompt": [40.0, [41]]}, "prompt"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "suffix": "b" * 600}, "suffix"),
        ({"prompt": "a" * 510, "suffix": "bb"}, "suffix"),
        ({"prompt": "a", "suffix": 3}, "suffix"),
        ({"prompt": "a", "suffix": "b", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "suffix": "b", "max_nfe": 3}, "max_nfe"),
        ({"prompt": "a", "suffix": "b", "response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": "x", "logprobs": 20, "n": 128, "max_tokens": 100}, "logprobs"),
        ({"prompt": ["x"] * 128, "logprobs": 20, "max_tokens": 100}, "logprobs"),
        ({"prompt": [[5] * 200] * 64, "echo": True, "logprobs": 20, "max_tokens": 0}, "echo"),
        ({"prompt": "a", "stream": True, "stream_options": {"include_obfuscation": "yes"}},
         "stream_options.include_obfuscation"),
    ],
    GENERATE: [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "messages": [USER]}, "prompt"),
        ({"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ({"messages": [USER], "parse_special": True}, "parse_special"),
        ({"prompt": "a", "max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        *(({"prompt": "a", "max_tokens": wrong}, "max_tokens") for wrong in (20.5, True, [20], 1e300, 0, *NO_INTEGERS)),
        *(({"prompt": "a", "temperature": wrong}, "temperature") for wrong in (True, [0.5], *NO_NUMBERS)),
        ({"prompt": "a", "max_tokens": 2**31 + 1}, "max_tokens"),
        ({"prompt": "a", "stream_mode": "fast"}, "stream_mode"),
        ({"prompt": "a", "regex": "a", "structured_outputs": {"regex": "b"}}, "structured_outputs"),
        ({"prompt": "a", "structured_outputs": {"regex": "b", "disable_any_whitespace": True}},
         "structured_outputs.disable_any_whitespace"),
        ({"messages": []}, "messages"),
        ({"messages": [USER] * 100}, "messages"),
        ({**CONTINUED, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
    "/tokenize": [
        *(({"prompt": "a", name: True}, name) for name in FLAGS),
        ({"messages": [USER], "parse_special": True}, "parse_special"),
        ({"prompt": "a", "parse_special": 1}, "parse_special"),
    ],
    CHAT: [
        ({"messages": []}, "messages"),
        ({"messages": [USER, {"role": "user", "content": None}]}, "messages[1].content"),
        ({"messages": [USER, {"role": "cat", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{**USER, "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}]},
         "messages[1].tool_calls[0].function.name"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "1"}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]},
                       {"role": "tool", "tool_call_id": "x", "content": "1"}]}, "messages[1].tool_call_id"),
        (holding({"type": "image_url", "image_url": {"url": "x"}}), "messages[1].content[0]"),
        (holding({"type": "thinking", "thinking": "hm"}), "messages[1].content[0]"),
        (holding({"type": "thinking", "thinking": 5}, "assistant"), "messages[1].content[0]"),
        (holding({"type": "thinking", "thinking": ["hm"]}, "assistant"), "messages[1].content[0]"),
        (holding({"type": "thinking", "thinking": [{"type": "text", "text": {}}]}, "assistant"),
         "messages[1].content[0]"),
        (holding({"type": ["thinking"]}, "assistant"), "messages[1].content[0].type"),
        (holding({"type": "reasoned"}, "assistant"), "messages[1].content[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"name": "weather"}]}, "tools[0].function"),
        ({"tools": [tool(CHAT, "a b")]}, "tools[0].function.name"),
        ({"tools": [tool(CHAT, "a" * 129)]}, "tools[0].function.name"),
        ({"tools": [CLOCK, WEATHER, CLOCK]}, "tools[2].function.name"),
        ({"tools": [tool(CHAT, "f", {"type": "string"})]}, "tools[0].function.parameters"),
        ({"tools": [tool(CHAT, "f", [])]}, "tools[0].function.parameters"),
        ({"tools": [CLOCK], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "custom", "custom": {"name": "patch"}}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "custom", "custom": {"name": "patch"}}]}}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"echo": True}, "echo"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"bad_words": ["a"]}, "bad_words"),
        ({"documents": [{}]}, "documents"),
        ({"chat_template": "x"}, "chat_template"),
        ({"frequency_penalty": False}, "frequency_penalty"),
        ({"user": True}, "user"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 20, "n": 128, "max_tokens": 100}, "top_logprobs"),
        ({"response_format": {"type": "json_object", "schema": "no JSON"}}, "response_format"),
        ({**CONTINUED, "response_format": {"type": "json_object"}}, "response_format"),
        ({**CONTINUED, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({**CONTINUED, "guided_choice": ["a"]}, "guided_choice"),
        ({**CONTINUED, "tools": [CLOCK], "tool_choice": "required"}, "tool_choice"),
        ({**CONTINUED, "add_generation_prompt": True}, "continue_final_message"),
        ({**FLAGS, "messages": [USER]}, "continue_final_message"),
        ({**FLAGS, "messages": [*BEGUN["messages"], USER]}, "continue_final_message"),
        ({**FLAGS, "messages": [USER, {"role": "assistant", "content": "a", "tool_calls": [CALL]}]}, "messages[1]"),
        ({**FLAGS, "messages": [USER, {"role": "assistant", "reasoning_content": "a"}]}, "messages[1]"),
        ({**FLAGS, "messages": [USER, {"role": "assistant", "content": "<tool_call>\n{"}], "tools": [CLOCK]}, "tools"),
    ],
    RESPONSES: [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"include": ["reasoning.encrypted_content"] * 65}, "include"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"stream": True, "stream_mode": "denoise"}, "stream_mode"),
        ({"stream_options": {}}, "stream_options"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 2**40}, "max_output_tokens"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"decoding": {"wibble": 1}}, "decoding.wibble"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"id": "x"}]}, "input[0]"),
        ({"input": [{"id": "x", "content": "hi"}]}, "input[0]"),
        ({"input": [{"id": "x", "call_id": "c", "output": "o"}]}, "input[0]"),
        ({"input": [{"type": "mesage", "role": "user", "content": "x"}]}, "input[0]"),
        ({"input": [{"type": "computer_use", "call_id": "x"}]}, "input[0]"),
        ({"input": [{"type": "configuration_update", "text": {}}]}, "input[0]"),
        ({"input": [{"type": "custom_tool_call", "name": "patch"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": {}}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0]"),
        ({"input": [{"type": "additional_tools", "role": "developer"}]}, "input[0].tools"),
        ({"input": [{"type": "additional_tools", "tools": {}}]}, "input[0].tools"),
        ({"input": [{"type": "additional_tools", "tools": [{"name": "f"}]}]}, "input[0].tools[0].type"),
        ({"input": [{"type": "additional_tools", "tools": [{"type": "function"}]}]}, "input[0].tools[0].name"),
        ({"input": [{"type": "additional_tools", "tools": [FUNCTION]}], "tools": [FUNCTION]}, "input[0].tools[0].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER]}, "tools[0].name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"tools": [tool(RESPONSES, "f", {"type": "string"})]}, "tools[0].parameters"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        ({"tools": [namespace("a", namespace("b", FUNCTION))]}, "tools[0].tools[0].type"),
        ({"tools": [namespace("a", FUNCTION, FUNCTION)]}, "tools[0].tools[1].name"),
        ({"tools": [namespace("a", *functions(200, "f")), namespace("b", *functions(57, "g"))]}, "tools"),
        ({"tools": [namespace("a", FUNCTION)], "tool_choice": {"type": "function", "name": "c"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION, {"type": "mcp"}], "tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "web_search"}]}}, "tool_choice"),
    ],
    MESSAGES: [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "content": SERVER_BLOCKS}]}, "messages"),
        (holding(IMAGE), "messages[1].content[0]"),
        ({"messages": [{"role": "user", "content": [TEXT_BLOCK, IMAGE]}]}, "messages[0].content[1]"),
        (holding(USE), "messages[1].content[0]"),
        (holding({"type": "tool_result", "tool_use_id": "1"}, "assistant"), "messages[1].content[0]"),
        (holding({"type": "tool_result"}), "messages[1].content[0]"),
        ({"messages": [USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c2", "content": "x"}]}]}, "messages[2].content[0].tool_use_id"),
        *((document(source), "messages[0].content[0]") for source in (
            IMAGE["source"], {"type": "url", "url": "u"}, {"type": "content", "content": [IMAGE]}, "x", {}, [],
            {"type": "text", "data": 5}, {"type": "content", "content": []}, {"type": "content", "content": [
                TEXT_BLOCK, IMAGE]}, {"type": "content", "content": [{**IMAGE, "text": "x"}]},
            {"type": "content", "content": [{"text": "x"}]}, {"type": "content", "content": [
                {"type": "text", "text": 5}]})),
        *((cited(content), "messages[0].content[0]") for content in (
            [], [IMAGE], [TEXT_BLOCK, IMAGE], {}, 5, None)),
        (cited([{"type": "text"}]), "messages[0].content[0].content[0]"),
        ({"system": [{"type": "tool_result", "tool_use_id": "1"}]}, "system[0]"),
        ({"system": [{"type": "document", "source": {"type": "text", "data": "x"}}]}, "system[0]"),
        ({"tools": [{"input_schema": CITY}]}, "tools[0].name"),
        ({"tools": [OTHER, OTHER]}, "tools[1].name"),
        ({"tools": [tool(MESSAGES, "f", {"type": "string"})]}, "tools[0].input_schema"),
        ({"tools": [OTHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [OTHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["a"], "stop": "b"}, "stop"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stream_mode": "denoise"}, "stream_mode"),
        ({"decoding": {"wibble": 1}}, "decoding"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_format": {"type": "xml"}}, "output_format"),
        ({"output_format": {"type": "json_object"}, "output_config": {"format": {"type": "text"}}}, "output_format"),
        ({**BEGUN, "output_config": {"format": {"type": "json_object"}}}, "output_config.format"),
        ({**BEGUN, "tools": [OTHER], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"messages": [USER, {"role": "assistant", "content": [TEXT_BLOCK, USE]}]}, "messages[1]"),
        (holding({"type": "thinking", "thinking": "a"}, "assistant"), "messages[1]"),
    ],
    "/v1/messages/count_tokens": [
        ({"messages": [{"role": "assistant", "content": SERVER_BLOCKS}]}, "messages"),
        (holding(IMAGE), "messages[1].content[0]"),
        ({"tools": [OTHER, OTHER]}, "tools[1].name"),
    ],
    INFILL: [
        ({}, "text"),
        ({"text": "a<mask:2>", "segments": []}, "text"),
        ({"text": "abc"}, "text"),
        ({"segments": []}, "segments"),
        ({"segments": [{"text": "a"}, {}]}, "segments[1]"),
        ({"segments": [{"text": "a", "mask": 1}]}, "segments[0]"),
        ({"segments": [{"text": "a"}, {"mask": -1}]}, "segments"),
        ({"segments": [{"text": "a"}, {"mask": "3.5"}]}, "segments[1].mask"),
        ({"text": "<mask:2>"}, "text"),
        ({"text": "a<mask:0>"}, "text"),
        ({"text": "a<mask:4097>"}, "text"),
        ({"text": "a" + "<mask:1>b" * 257}, "text"),
        ({"text": "a<mask:4000>" + "b<mask:4000>" * 3}, "text"),
        ({"text": "a<mask:2>" + "b" * 5000}, "text"),
        ({"text": "a<mask:2>", "max_tokens": 4}, "max_tokens"),
        ({"text": "a<mask:2>", "stop": "b"}, "stop"),
        ({"text": "a<mask:2>", "stop_token_ids": [5]}, "stop_token_ids"),
        ({"text": "a<mask:2>", "regex": "a"}, "regex"),
        ({"text": "a<mask:2>", "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"text": "a<mask:2>", "stream_mode": "denoise"}, "stream_mode"),
    ],
}  # fmt: skip
ROWS = [(route, body, param) for route, cases in CASES.items() for body, param in cases]


@pytest.mark.parametrize(("route", "body", "param"), ROWS, ids=[f"{n}-{row[0]}-{row[2]}" for n, row in enumerate(ROWS)])
def test_the_field_is_named(client: Any, route: str, body: dict[str, Any], param: str) -> None:
    refused = client.post(route, json={**BASES[route], **body})
    assert refused.status_code == 400, refused.text
    assert len(refused.text) < 1000
    error = refused.json()["error"]
    if route.startswith(MESSAGES):
        assert (refused.json()["type"], error["type"]) == ("error", "invalid_request_error")
        assert error["message"].startswith(f"{param}: ")
    else:
        assert error["param"] == param
        assert error["message"].startswith((f"{param}: ", f"{param.partition('.')[0]}: "))


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [CLOCK], "tool_choice": "required"}, "tool_choice"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"tools": [CLOCK], "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ],
)
def test_an_engine_without_grammars_and_a_template_with_tools_refuse_more(
    scripted: Any, more: dict[str, Any], param: str
) -> None:
    with scripted.client() as client:
        refused = client.post(CHAT, json={**BASES[CHAT], **more})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
