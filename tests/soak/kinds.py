"""Random requests whose answers are checked: structured output, complete calls, logprobs, equal streams."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema_rs

from tests.server.dialects import CHAT, MESSAGES, RESPONSES, ROUTES, read, tool
from tests.server.harness import sse
from tests.structured_output import forms

# A route, a body, and a check of the complete answer.
Ask = tuple[str, dict[str, Any], Callable[[dict[str, Any]], None]]

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
ADD = {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": [1, 2, None]}},
    "required": ["a"], "additionalProperties": False,
}  # fmt: skip
LARK = 'start: "yes" | "no " NUMBER\nNUMBER: /[0-9]{1,3}/'
EBNF = 'root ::= "yes" | "no " number\nnumber ::= [0-9] [0-9]? [0-9]?'
YES_OR_NO = "yes|no [0-9]{1,3}"  # the texts that both accept
TOOLS: dict[str, dict[str, Any]] = {"weather": CITY, "add": ADD, "ping": {"type": "object", "properties": {}}}


def must(holds: object, fault: str) -> None:
    if not holds:
        raise ValueError(fault)


def fits(text: str, schema: dict[str, Any]) -> None:
    must(jsonschema_rs.validator_for(schema).is_valid(json.loads(text)), f"{text!r} does not fit {schema}")


def shared(r: random.Random) -> dict[str, Any]:
    """Returns random fields of any route. They have a seed, so that complete and streamed answers are equal."""
    body: dict[str, Any] = {"temperature": r.choice([0, 0, 1, 1.5]), "seed": r.randrange(2**32)}
    more: list[dict[str, Any]] = [
        {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 20}, {"presence_penalty": 0.5}, {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.2}, {"logit_bias": {"40": -5, "41": 3}}, {"min_tokens": 2}, {"stop_token_ids": [60]},
    ]  # fmt: skip
    for each in r.sample(more, r.choice([0, 0, 1, 2])):
        body |= each
    return body


def formed(r: random.Random, prompt: str) -> Ask:
    """Returns a request for structured output, under one of its names, on a route that supports it."""
    schema, regex = forms.schema(r), forms.regex(r)
    choice = r.sample(["red", "blue", 'a"b', "é", "x.y"], 3)

    def is_object(text: str) -> None:
        must(isinstance(json.loads(text), dict), f"{text!r} is no object")

    def is_choice(text: str) -> None:
        must(text in choice, f"{text!r} is none of {choice}")

    def matches(text: str) -> None:
        must(re.fullmatch(regex, text), f"{text!r} does not match {regex!r}")

    def says(text: str) -> None:
        must(re.fullmatch(YES_OR_NO, text), f"{text!r} is not of the grammar")

    asked: list[tuple[dict[str, Any], Callable[[str], None]]] = [
        ({"structured_outputs": {"json": schema}}, lambda text: fits(text, schema)),
        ({"guided_json": json.dumps(schema)}, lambda text: fits(text, schema)),
        ({"structured_outputs": {"regex": regex}}, matches),
        ({"regex": regex}, matches),
        ({"guided_choice": choice}, is_choice),
        ({"structured_outputs": {"json_object": True}}, is_object),
        ({"guided_grammar": LARK}, says),
        ({"structured_outputs": {"grammar": EBNF}}, says),
        ({"ebnf": EBNF}, says),
    ]
    route = r.choice(["/generate", "/v1/completions", *ROUTES])
    described = {"name": "x", "schema": schema}
    own: dict[str, dict[str, Any]] = {
        CHAT: {"response_format": {"type": "json_schema", "json_schema": described}},
        RESPONSES: {"text": {"format": {"type": "json_schema", **described}}},
        MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    }
    if route in own:
        asked += [(own[route], lambda text: fits(text, schema))] * 3
    form, check = r.choice(asked)
    body = {**shared(r), **form, **_prompt_fields(route, prompt), "max_tokens": r.choice([8, 48, 80])}
    _without_ends(body)

    def checked(seen: dict[str, Any]) -> None:
        if seen["reason"] == "stop":
            check(seen["text"])

    return route, body, checked


def called(r: random.Random, prompt: str) -> Ask:
    """Returns a request with tools whose call is optional, required, or of a named tool."""
    route = r.choice(ROUTES)
    strict = r.random() < 0.4
    tool_choice = r.choice(["auto", "auto", "required", "weather", "add"])
    offered = r.sample(list(TOOLS), 3)
    single = r.random() < 0.4
    named: dict[str, Any] = {"type": "function", "function": {"name": tool_choice}}
    if route == RESPONSES:
        named = {"type": "function", "name": tool_choice}
    body = {**shared(r), **_prompt_fields(route, prompt), "max_tokens": r.choice([3, 12, 30, 90])}
    body["tools"] = [tool(route, name, TOOLS[name], strict=strict) for name in offered]
    body |= {"tool_choice": tool_choice if tool_choice in ("auto", "required") else named}
    if route == MESSAGES:
        kind = {"auto": "auto", "required": "any"}.get(tool_choice, "tool")
        body["tool_choice"] = {"type": kind, "name": tool_choice, "disable_parallel_tool_use": single}
    else:
        body["parallel_tool_calls"] = not single
    _without_ends(body)
    forced = tool_choice != "auto"

    def checked(seen: dict[str, Any]) -> None:
        for name, arguments in seen["calls"]:
            value = json.loads(arguments)
            must(isinstance(value, dict), f"{arguments!r} is no object")
            if forced or (strict and name in TOOLS):
                fits(arguments, TOOLS[name])
            must(tool_choice in ("auto", "required", name), f"{name} was called, not {tool_choice}")
        must(not (single or tool_choice in TOOLS) or len(seen["calls"]) < 2, "more than one call")
        if forced:
            must(not seen["text"], f"text beside a forced call: {seen['text']!r}")
            must(seen["calls"] or seen["reason"] == "length", f"no call, and {seen['reason']}")

    return route, body, checked


def with_logprobs(r: random.Random, prompt: str) -> Ask:
    """Returns a request with log-probabilities."""
    route = r.choice(["/generate", "/v1/completions", CHAT])
    top = r.choice([0, 1, 5, 20])
    chat = {"logprobs": True, "top_logprobs": top}
    body = {**shared(r), **_prompt_fields(route, prompt), "max_tokens": r.choice([2, 9, 33])}
    body |= chat if "chat" in route else {"logprobs": top}

    def checked(seen: dict[str, Any]) -> None:
        must(seen["logprobs"] is not None, "no log-probabilities")
        must(seen["tokens"] is None or 0 <= len(seen["logprobs"]) - seen["tokens"] <= 1, "not one of each token")
        must(all(value is not None and value <= 1e-6 for value in seen["logprobs"]), "a probability above one")

    return route, body, checked


def _without_ends(body: dict[str, Any]) -> None:
    """Removes fields that conflict with a grammar, which decides where an answer ends.

    `min_tokens` is refused with a grammar, and stop tokens would end an answer anywhere.
    """
    for name in ("min_tokens", "stop_token_ids"):
        body.pop(name, None)


def _prompt_fields(route: str, prompt: str) -> dict[str, Any]:
    if route == RESPONSES:
        return {"input": prompt}
    return {"messages": [{"role": "user", "content": prompt}]} if route in ROUTES else {"prompt": prompt}


def check_complete(route: str, answer: httpx.Response) -> dict[str, Any]:
    """Returns the content of a complete answer in the same form for all routes."""
    data = answer.json()
    seen: dict[str, Any] = {"calls": (), "logprobs": None, "tokens": None}
    if route == "/generate":
        seen |= {"text": data["text"], "reason": data["finish_reason"], "tokens": len(data["token_ids"])}
        if "logprobs" in data:
            seen["logprobs"] = [one["logprob"] for one in data["logprobs"]]
        return seen
    if route in ROUTES:
        found = read(route, answer.text, stream=False)
        seen |= {"text": found.content, "reason": found.reason, "calls": found.calls}
    else:
        seen |= {"text": data["choices"][0]["text"], "reason": data["choices"][0]["finish_reason"]}
    if "choices" in data and (found := data["choices"][0]["logprobs"]) is not None:
        listed = found.get("token_logprobs")
        seen["logprobs"] = [one["logprob"] for one in found["content"]] if listed is None else listed
        seen["tokens"] = data["usage"]["completion_tokens"]
    return seen


def streamed(route: str, answer: httpx.Response) -> dict[str, Any]:
    """Returns the text and calls that the pieces of a stream make, with the name and arguments of each call."""
    if route in ROUTES:
        found = read(route, answer.text, stream=True)
        return {"text": found.content, "calls": found.calls}
    *lines, last = sse(answer.text)
    must(last == "[DONE]", "a stream without [DONE]")
    events = [json.loads(line) for line in lines]
    texts = [event["choices"][0]["text"] for event in events] if route != "/generate" else []
    return {"text": "".join(texts or [event["text"] for event in events[:-1]]), "calls": ()}


def same(streamed: dict[str, Any], seen: dict[str, Any]) -> bool:
    """Returns whether a stream has the text and calls of the complete answer.

    A call that `max_tokens` cuts off may have begun in the stream. Raises ValueError if arguments are no JSON.
    """
    complete = len(seen["calls"])
    calls = [[(n, json.loads(arguments)) for n, arguments in each["calls"][:complete]] for each in (streamed, seen)]
    begun = len(streamed["calls"]) - complete
    return streamed["text"] == seen["text"] and calls[0] == calls[1] and 0 <= begun <= (seen["reason"] == "length")
