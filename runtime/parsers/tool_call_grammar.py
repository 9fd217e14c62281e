"""Grammars that hold an answer's calls to their tools' schemas, as the grammar engine reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runtime.parsers.formats import ReasoningFormat, Tool, ToolFormat
from runtime.request.structured import FIELD_PATH, MAX_CHARS, check_length, grammar_of
from runtime.request.validation import refuse

Wanted = Literal["only", "or_form", "within"]

_ANY_TEXT = r"/(?s:.*)/"


@dataclass(frozen=True)
class Held:
    """Calls that are held to their form.

    Attributes:
        tools: those that may be called, with where the schema of each stood in the request. wanted: "only": the answer
            is calls and nothing else; "or_form": calls, or the form that is asked for; "within": calls wherever the
            model begins them, and text around them. single: no more than one.
        any_object: the numbers of tools whose arguments may be any object, as their schemas cannot be kept to.
    """

    format: ToolFormat
    tools: Sequence[tuple[str, Tool]]
    wanted: Wanted
    single: bool
    any_object: frozenset[int] = frozenset()


def grammar(
    held: Held | None,
    form: str,
    thought: ReasoningFormat | None,
    control: Callable[[str], int | None],
    param: str,
) -> str:
    """The grammar, as text.

    Args:
        form: the grammar that is asked for beside tools, "" if none is. thought: how the reasoning ends that the prompt
            has opened; None: it has opened none. control: the id of a mark that is a special token, None where it is
            text. param: what a refusal names.

    Raises:
        RequestError: a schema that is none, or all of them together are too large.
    """
    parts: list[dict[str, Any]] = []
    rules: list[str] = []
    body = "@form"
    if form:
        (asked,) = json.loads(form)["grammars"]
        parts.append({"name": "form", **asked})
    if held is not None:
        _calls(held, rules, parts, control, param)
        more = "?" if held.single else "*"
        if held.wanted == "within":
            body = f"begun{more} rest"
            rules += [_until("text", held.format.opens, control), "begun: text written", f"rest: {_ANY_TEXT}"]
        else:
            body = "calls" + (" | @form" if held.wanted == "or_form" else "")
            after = "" if held.single else f" ({_literal(chr(10))} call)*"
            rules += [f"calls: call{after}", f"call: {_mark(held.format.opens, control)} written"]
    rules.append(f"body: {body}")
    start = "body"
    if thought is not None:
        rules += [_until("thought", thought.closes, control), "space: /[ \\n]{0,4}/"]
        start = "thought space body"
    lark = "\n".join([f"start: {start}", *rules])
    text = json.dumps({"grammars": [{"lark_grammar": lark}, *parts]}, ensure_ascii=False)
    if len(text) > MAX_CHARS:
        raise refuse(param, f"the schemas have {len(text)} characters together; at most {MAX_CHARS}")
    return text


def part_name(number: int) -> str:
    """The name of the grammar's part that holds the schema of a tool."""
    return f"tool{number}"


def _calls(
    held: Held, rules: list[str], parts: list[dict[str, Any]], control: Callable[[str], int | None], param: str
) -> None:
    """The rule `written`: what follows a call's first mark."""
    assert held.format.wraps is not None
    each = []
    total = 0
    for where, tool in held.tools:  # nothing is made of schemas that are too long together
        total += check_length(tool.parameters, where)
        if total > MAX_CHARS:
            raise refuse(param, f"the schemas have {total} characters together; at most {MAX_CHARS}")
    for i, (where, tool) in enumerate(held.tools):
        before, after = held.format.wraps(tool.name)
        each.append(f"{_literal(before)} @{part_name(i)} {_literal(after)}")
        schema = _closed({**tool.parameters, "type": "object"}) if i not in held.any_object else {"type": "object"}
        (made,) = json.loads(grammar_of({"json": schema}, where))["grammars"]
        parts.append({"name": part_name(i), FIELD_PATH: where, **made})
    rules += [f"written: one {_mark(held.format.closes, control)}", f"one: {' | '.join(each)}"]


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Without arguments of names that it does not say: functions take none, and a model would make some up."""
    open_ended = {
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "propertyNames",
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "allOf",
        "anyOf",
        "oneOf",
    }
    return schema if open_ended & schema.keys() else {**schema, "additionalProperties": False}


def _literal(text: str) -> str:
    return json.dumps(text)


def _mark(text: str, control: Callable[[str], int | None]) -> str:
    token = control(text)
    return _literal(text) if token is None else f"<[{token}]>"


def _until(name: str, mark: str, control: Callable[[str], int | None]) -> str:
    """A rule for any text and the `mark` that ends it."""
    token = control(mark)
    if token is not None:
        return f"{name}: {_ANY_TEXT} <[{token}]>"
    return f"{name}[suffix={_literal(mark)}]: {_ANY_TEXT}"
