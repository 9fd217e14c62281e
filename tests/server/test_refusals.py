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
    CHAT: request(CHAT, "hello", max_tokens=8), RESPONSES: request(RESPONSES, "hello", max_tokens=8),
    MESSAGES: request(MESSAGES, "hello", max_tokens=8), "/v1/messages/count_tokens": {"messages": [USER]}, TEXT: {},
    GENERATE: {}, INFILL: {}, "/tokenize": {},
}  # fmt: skip
# Bodies that are refused, by route and the name of the field in the error.
CASES: dict[str, dict[str, list[dict[str, Any]]]] = {
    TEXT: {
        "prompt": [{"prompt": ""}, {"prompt": []}, {"prompt": [40.5]}, {"prompt": [40.0, True]},
                   {"prompt": [[40.0, "a"]]}, {"prompt": [40.0, [41]]}],
        "prompt[1]": [{"prompt": ["a", ""]}], "temperature": [{"prompt": "a", "temperature": -1}],
        "suffix": [{"prompt": "a", "suffix": "b" * 600}, {"prompt": "a" * 510, "suffix": "bb"},
                   {"prompt": "a", "suffix": 3}],
        "max_tokens": [{"prompt": "a", "suffix": "b", "max_tokens": 0}],
        "max_nfe": [{"prompt": "a", "suffix": "b", "max_nfe": 3}],
        "response_format": [{"prompt": "a", "suffix": "b", "response_format": {"type": "json_object"}}],
        "logprobs": [{"prompt": "x", "logprobs": 20, "n": 128, "max_tokens": 100},
                     {"prompt": ["x"] * 128, "logprobs": 20, "max_tokens": 100}],
        "echo": [{"prompt": [[5] * 200] * 64, "echo": True, "logprobs": 20, "max_tokens": 0}],
        "stream_options.include_obfuscation": [
            {"prompt": "a", "stream": True, "stream_options": {"include_obfuscation": "yes"}}],
    },
    GENERATE: {
        "prompt": [{}, {"prompt": ""}, {"prompt": "a", "messages": [USER]}],
        "chat_template_kwargs": [{"prompt": "a", "chat_template_kwargs": {}}],
        "add_generation_prompt": [{"prompt": "a", "add_generation_prompt": True}],
        "continue_final_message": [{"prompt": "a", "continue_final_message": True}],
        "parse_special": [{"messages": [USER], "parse_special": True}],
        "min_tokens": [{"prompt": "a", "max_tokens": 3, "min_tokens": 4}],
        "max_tokens": [*({"prompt": "a", "max_tokens": wrong} for wrong in (20.5, True, [20], 1e300, 0, *NO_INTEGERS)),
                       {"prompt": "a", "max_tokens": 2**31 + 1}],
        "temperature": [*({"prompt": "a", "temperature": wrong} for wrong in (True, [0.5], *NO_NUMBERS))],
        "stream_mode": [{"prompt": "a", "stream_mode": "fast"}],
        "structured_outputs": [{"prompt": "a", "regex": "a", "structured_outputs": {"regex": "b"}},
                               {**CONTINUED, "structured_outputs": {"regex": "a"}}],
        "structured_outputs.disable_any_whitespace": [
            {"prompt": "a", "structured_outputs": {"regex": "b", "disable_any_whitespace": True}}],
        "messages": [{"messages": []}, {"messages": [USER] * 100}],
    },
    "/tokenize": {**{name: [{"prompt": "a", name: True}] for name in FLAGS},
                  "parse_special": [{"messages": [USER], "parse_special": True}, {"prompt": "a", "parse_special": 1}]},
    CHAT: {
        "messages": [{"messages": []}],
        "messages[1].content": [{"messages": [USER, {"role": "user", "content": None}]}],
        "messages[1].role": [{"messages": [USER, {"role": "cat", "content": "x"}]}],
        "messages[0].tool_calls": [{"messages": [{**USER, "tool_calls": [CALL]}]}],
        "messages[1].tool_calls[0].function.name": [
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}]}],
        "messages[0]": [{"messages": [{"role": "tool", "tool_call_id": "x", "content": "1"}]}],
        "messages[1].tool_call_id": [
            {"messages": [{"role": "assistant", "tool_calls": [CALL]},
                          {"role": "tool", "tool_call_id": "x", "content": "1"}]}],
        "messages[1].content[0]": [
            holding({"type": "image_url", "image_url": {"url": "x"}}), holding({"type": "thinking", "thinking": "hm"}),
            holding({"type": "thinking", "thinking": 5}, "assistant"),
            holding({"type": "thinking", "thinking": ["hm"]}, "assistant"),
            holding({"type": "thinking", "thinking": [{"type": "text", "text": {}}]}, "assistant"),
            holding({"type": "reasoned"}, "assistant"), holding("x"), holding({"type": "text"})],
        "messages[1].content[0].text": [holding({"type": "text", "text": 5})],
        "messages[1].content[0].type": [holding({"type": ["thinking"]}, "assistant")],
        "tools[0].function.name": [{"tools": [{"type": "function", "function": {}}]}, {"tools": [tool(CHAT, "a b")]},
                                   {"tools": [tool(CHAT, "a" * 129)]}],
        "tools[0].function": [{"tools": [{"type": "function"}]}, {"tools": [{"name": "weather"}]}],
        "tools[2].function.name": [{"tools": [CLOCK, WEATHER, CLOCK]}],
        "tools[0].function.parameters": [
            {"tools": [tool(CHAT, "f", {"type": "string"})]}, {"tools": [tool(CHAT, "f", [])]}],
        "tool_choice": [{"tools": [CLOCK], "tool_choice": NAMED}, {"tools": [CLOCK], "tool_choice": "always"},
                        {"tool_choice": "required"}, {"tools": [{"type": "web_search"}], "tool_choice": "required"},
                        {"tools": [CLOCK], "tool_choice": {"type": "custom", "custom": {"name": "patch"}}},
                        {"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
                            "mode": "auto", "tools": [{"type": "custom", "custom": {"name": "patch"}}]}}},
                        {**CONTINUED, "tools": [CLOCK], "tool_choice": "required"}],
        "functions": [{"functions": [{"name": "f"}]}], "function_call": [{"function_call": {"name": "f"}}],
        "skip_special_tokens": [{"skip_special_tokens": False}], "echo": [{"echo": True}],
        "length_penalty": [{"length_penalty": 2}], "allowed_token_ids": [{"allowed_token_ids": [1]}],
        "bad_words": [{"bad_words": ["a"]}], "documents": [{"documents": [{}]}],
        "chat_template": [{"chat_template": "x"}], "frequency_penalty": [{"frequency_penalty": False}],
        "user": [{"user": True}], "logprobs": [{"logprobs": 0}],
        "top_logprobs": [{"logprobs": True, "top_logprobs": 20, "n": 128, "max_tokens": 100}],
        "response_format": [{"response_format": {"type": "json_object", "schema": "no JSON"}},
                            {**CONTINUED, "response_format": {"type": "json_object"}}],
        "structured_outputs": [{**CONTINUED, "structured_outputs": {"regex": "a"}}],
        "guided_choice": [{**CONTINUED, "guided_choice": ["a"]}],
        "continue_final_message": [{**CONTINUED, "add_generation_prompt": True}, {**FLAGS, "messages": [USER]},
                                   {**FLAGS, "messages": [*BEGUN["messages"], USER]}],
        "messages[1]": [{**FLAGS, "messages": [USER, {"role": "assistant", "content": "a", "tool_calls": [CALL]}]},
                        {**FLAGS, "messages": [USER, {"role": "assistant", "reasoning_content": "a"}]}],
        "tools": [{**FLAGS, "messages": [USER, {"role": "assistant", "content": "<tool_call>\n{"}], "tools": [CLOCK]}],
    },
    RESPONSES: {
        "previous_response_id": [{"previous_response_id": "resp_1"}], "conversation": [{"conversation": "c"}],
        "prompt": [{"prompt": {"id": "p"}}], "background": [{"background": True}],
        "truncation": [{"truncation": "sometimes"}], "include[0]": [{"include": ["file_search_call.results"]}],
        "include": [{"include": ["reasoning.encrypted_content"] * 65}],
        "response_format": [{"response_format": {"type": "json_object"}}],
        "text.format": [{"text": {"format": {"type": "xml"}}}],
        "stream_mode": [{"stream": True, "stream_mode": "denoise"}], "stream_options": [{"stream_options": {}}],
        "max_output_tokens": [{"max_output_tokens": 0}, {"max_output_tokens": 2**40}],
        "max_tokens": [{"max_tokens": 3}], "decoding.wibble": [{"decoding": {"wibble": 1}}],
        "input": [{"input": []}, {"input": 3}, {"input": "x" * 600}],
        "input[0]": [{"input": [{"role": "user"}]}, {"input": [{"type": "item_reference", "id": "x"}]},
                     {"input": [{"id": "x"}]}, {"input": [{"id": "x", "content": "hi"}]},
                     {"input": [{"id": "x", "call_id": "c", "output": "o"}]},
                     {"input": [{"type": "mesage", "role": "user", "content": "x"}]},
                     {"input": [{"type": "computer_use", "call_id": "x"}]},
                     {"input": [{"type": "configuration_update", "text": {}}]},
                     {"input": [{"type": "custom_tool_call", "name": "patch"}]},
                     {"input": [{"type": "function_call", "call_id": "x"}]},
                     {"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": {}}]},
                     {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}],
        "input[0].role": [{"input": [{"role": "critic", "content": "x"}]}],
        "input[0].content[0]": [{"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}],
        "input[0].tools": [{"input": [{"type": "additional_tools", "role": "developer"}]},
                           {"input": [{"type": "additional_tools", "tools": {}}]}],
        "input[0].tools[0].type": [{"input": [{"type": "additional_tools", "tools": [{"name": "f"}]}]}],
        "input[0].tools[0].name": [{"input": [{"type": "additional_tools", "tools": [{"type": "function"}]}]},
                                   {"input": [{"type": "additional_tools", "tools": [FUNCTION]}], "tools": [FUNCTION]}],
        "tools[0].name": [{"tools": [{"type": "function"}]}, {"tools": [WEATHER]},
                          {"tools": [{"type": "namespace", "tools": []}]}],
        "tools[1].name": [{"tools": [FUNCTION, FUNCTION]}],
        "tools[0].parameters": [{"tools": [tool(RESPONSES, "f", {"type": "string"})]}],
        "tools[0].tools[0].type": [{"tools": [namespace("a", namespace("b", FUNCTION))]}],
        "tools[0].tools[1].name": [{"tools": [namespace("a", FUNCTION, FUNCTION)]}],
        "tools": [{"tools": [namespace("a", *functions(200, "f")), namespace("b", *functions(57, "g"))]}],
        "tool_choice": [{"tools": [namespace("a", FUNCTION)], "tool_choice": {"type": "function", "name": "c"}},
                        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}},
                        {"tool_choice": "required"},
                        {"tools": [FUNCTION, {"type": "mcp"}], "tool_choice": {"type": "mcp", "server_label": "x"}},
                        {"tools": [FUNCTION],
                         "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}}],
    },
    MESSAGES: {
        "messages": [{"messages": []}, {"messages": [{"role": "assistant", "content": SERVER_BLOCKS}]}],
        "messages[0].role": [{"messages": [{"role": "critic", "content": "x"}]}],
        "messages[1].content[0]": [
            holding(IMAGE), holding(USE), holding({"type": "tool_result", "tool_use_id": "1"}, "assistant"),
            holding({"type": "tool_result"})],
        "messages[0].content[1]": [{"messages": [{"role": "user", "content": [TEXT_BLOCK, IMAGE]}]}],
        "messages[2].content[0].tool_use_id": [
            {"messages": [USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c2", "content": "x"}]}]}],
        "messages[0].content[0]": [
            *(document(source) for source in (
                IMAGE["source"], {"type": "url", "url": "u"}, "x", {}, [], {"type": "text", "data": 5})),
            *(document({"type": "content", "content": content}) for content in (
                [IMAGE], [], [TEXT_BLOCK, IMAGE], [{**IMAGE, "text": "x"}], [{"text": "x"}],
                [{"type": "text", "text": 5}])),
            *(cited(content) for content in ([], [IMAGE], [TEXT_BLOCK, IMAGE], {}, 5, None))],
        "messages[0].content[0].content[0]": [cited([{"type": "text"}])],
        "system[0]": [{"system": [{"type": "tool_result", "tool_use_id": "1"}]},
                      {"system": [{"type": "document", "source": {"type": "text", "data": "x"}}]}],
        "tools[0].name": [{"tools": [{"input_schema": CITY}]}], "tools[1].name": [{"tools": [OTHER, OTHER]}],
        "tools[0].input_schema": [{"tools": [tool(MESSAGES, "f", {"type": "string"})]}],
        "tool_choice.name": [{"tools": [OTHER], "tool_choice": {"type": "tool"}}],
        "tool_choice": [{"tools": [OTHER], "tool_choice": {"type": "tool", "name": "x"}},
                        {"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "any"}},
                        {**BEGUN, "tools": [OTHER], "tool_choice": {"type": "any"}}],
        "max_tokens": [{"max_tokens": 0}], "stop_sequences": [{"stop_sequences": [""]}],
        "stop": [{"stop_sequences": ["a"], "stop": "b"}], "container": [{"container": "c"}],
        "mcp_servers": [{"mcp_servers": [{}]}], "response_format": [{"response_format": {"type": "json_object"}}],
        "stream_mode": [{"stream_mode": "denoise"}], "decoding": [{"decoding": {"wibble": 1}}],
        "return_step_map": [{"return_step_map": True}],
        "output_config.format": [{"output_config": {"format": {"type": "xml"}}},
                                 {**BEGUN, "output_config": {"format": {"type": "json_object"}}}],
        "output_format": [{"output_format": {"type": "xml"}},
                          {"output_format": {"type": "json_object"}, "output_config": {"format": {"type": "text"}}}],
        "messages[1]": [{"messages": [USER, {"role": "assistant", "content": [TEXT_BLOCK, USE]}]},
                        holding({"type": "thinking", "thinking": "a"}, "assistant")],
    },
    "/v1/messages/count_tokens": {
        "messages": [{"messages": [{"role": "assistant", "content": SERVER_BLOCKS}]}],
        "messages[1].content[0]": [holding(IMAGE)], "tools[1].name": [{"tools": [OTHER, OTHER]}],
    },
    INFILL: {
        "text": [{}, {"text": "a<mask:2>", "segments": []}, {"text": "abc"}, {"text": "<mask:2>"},
                 {"text": "a<mask:0>"}, {"text": "a<mask:4097>"}, {"text": "a" + "<mask:1>b" * 257},
                 {"text": "a<mask:4000>" + "b<mask:4000>" * 3}, {"text": "a<mask:2>" + "b" * 5000}],
        "segments": [{"segments": []}, {"segments": [{"text": "a"}, {"mask": -1}]}],
        "segments[1]": [{"segments": [{"text": "a"}, {}]}], "segments[0]": [{"segments": [{"text": "a", "mask": 1}]}],
        "segments[1].mask": [{"segments": [{"text": "a"}, {"mask": "3.5"}]}],
        "max_tokens": [{"text": "a<mask:2>", "max_tokens": 4}], "stop": [{"text": "a<mask:2>", "stop": "b"}],
        "stop_token_ids": [{"text": "a<mask:2>", "stop_token_ids": [5]}],
        "regex": [{"text": "a<mask:2>", "regex": "a"}],
        "chat_template_kwargs": [{"text": "a<mask:2>", "chat_template_kwargs": {"x": 1}}],
        "stream_mode": [{"text": "a<mask:2>", "stream_mode": "denoise"}],
    },
}  # fmt: skip
ROWS = [(route, body, param) for route, fields in CASES.items() for param, bodies in fields.items() for body in bodies]


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
