"""Grammars that constrain tool calls to the schemas of their tools, in llguidance's notation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runtime.parsers.argument_types import applied
from runtime.parsers.formats import ReasoningFormat, Tool, ToolFormat
from runtime.request.engine_messages import ToolNames
from runtime.request.structured import FIELD_PATH, MAX_CHARS, check_length, grammar_of
from runtime.request.validation import refuse

CallMode = Literal["only", "or_form", "within"]

_ANY_TEXT = r"/(?s:.*)/"
# With these keywords, a schema may allow arguments that `properties` does not list.
_OPEN_ENDED = frozenset({
    "$dynamicRef", "$recursiveRef", "propertyNames", "additionalProperties", "patternProperties",
    "unevaluatedProperties",
})  # fmt: skip


@dataclass(frozen=True)
class ToolCallConstraint:
    """Tool calls that a grammar constrains.

    Attributes:
        format: Format of the calls.
        tools: Tools that may be called, each with the path of its schema in the request.
        mode: "only": the output consists of calls. "or_form": calls, or the requested response format. "within": text,
            with calls wherever the model begins them.
        single_call: At most one call.
        any_object: Indices of tools whose arguments may be any object, because their schemas are not supported.
    """

    format: ToolFormat
    tools: Sequence[tuple[str, Tool]]
    mode: CallMode
    single_call: bool
    any_object: frozenset[int] = frozenset()


def grammar(
    constraint: ToolCallConstraint | None,
    form: str,
    reasoning: ReasoningFormat | None,
    control: Callable[[str], int | None],
    param: str,
) -> str:
    """Returns the grammar as text.

    Args:
        constraint: The constrained calls; None: there are none.
        form: Grammar of the requested response format; "" if there is none.
        reasoning: Format of the reasoning that the prompt has opened; None: it has opened none.
        control: Returns the id of a marker that is a special token; None for text.
        param: Field that errors name.

    Raises:
        RequestError: A schema is invalid, or the grammar is too large.
    """
    parts: list[dict[str, Any]] = []
    rules: list[str] = []
    body = "@form"
    if form:
        (asked,) = json.loads(form)["grammars"]
        parts.append({"name": "form", **asked})
    if constraint is not None:
        _calls(constraint, rules, parts, control, param)
        more = "?" if constraint.single_call else "*"
        if constraint.mode == "within":
            body = f"begun{more} rest"
            rules += [_until("text", constraint.format.opens, control), "begun: text written", f"rest: {_ANY_TEXT}"]
        else:
            body = "calls" + (" | @form" if constraint.mode == "or_form" else "")
            after = "" if constraint.single_call else f" ({_literal(chr(10))} call)*"
            rules += [f"calls: call{after}", f"call: {_mark(constraint.format.opens, control)} written"]
    rules.append(f"body: {body}")
    start = "body"
    if reasoning is not None:
        rules += [_until("thought", reasoning.closes, control), "space: /[ \\n]{0,4}/"]
        start = "thought space body"
    lark = "\n".join([f"start: {start}", *rules])
    text = json.dumps({"grammars": [{"lark_grammar": lark}, *parts]}, ensure_ascii=False)
    if len(text) > MAX_CHARS:
        raise refuse(param, f"the schemas have {len(text)} characters together; at most {MAX_CHARS}")
    return text


def tool_names(
    tool_format: ToolFormat,
    names: Sequence[str],
    reasoning: ReasoningFormat | None,
    control: Callable[[str], int | None],
    *,
    in_reasoning: bool,
) -> ToolNames | None:
    """Returns what constrains the names of calls in free text; None if the format has none, or they are too long.

    Args:
        names: Names of the tools that may be called.
        reasoning: Format of the reasoning before the text; None: there is none.
        control: Returns the id of a marker that is a special token; None for text.
        in_reasoning: Whether the prompt has opened the reasoning.
    """
    if tool_format.name_between is None:
        return None
    before, after = tool_format.name_between
    opens, marks = tool_format.opens, None if reasoning is None else (reasoning.opens, reasoning.closes)
    # The last token of a marker that is text may also have text after it.
    ends = [""] if control(opens) is not None else [re.escape(opens[i:]) for i in range(len(opens))]
    named = f"{before}(?:{'|'.join(map(re.escape, names))}){after}"
    others = f"|{tool_format.unnamed}" if tool_format.unnamed else ""
    regex = f"(?:{'|'.join(ends)})(?:{named}{others})(?s:.*)"
    if len(regex) > MAX_CHARS // 2:  # escapes may double it
        return None
    special = {token: mark for mark in (opens, *(marks or ())) if (token := control(mark)) is not None}
    grammar = grammar_of({"regex": regex}, "tools")
    return ToolNames(opens=opens, grammar=grammar, special_tokens=special, reasoning=marks, in_reasoning=in_reasoning)


def part_name(number: int) -> str:
    """Returns the name of the grammar's part with the schema of a tool."""
    return f"tool{number}"


def _calls(
    constraint: ToolCallConstraint,
    rules: list[str],
    parts: list[dict[str, Any]],
    control: Callable[[str], int | None],
    param: str,
) -> None:
    """Adds the rule `written`: the text after a call's start marker."""
    assert constraint.format.wraps is not None
    each = []
    total = 0
    # The total length is checked first, so that no grammar is built from schemas that are too long together.
    for where, tool in constraint.tools:
        total += check_length(tool.parameters, where)
        if total > MAX_CHARS:
            raise refuse(param, f"the schemas have {total} characters together; at most {MAX_CHARS}")
    for i, (where, tool) in enumerate(constraint.tools):
        before, after = constraint.format.wraps(tool.name)
        each.append(f"{_literal(before)} @{part_name(i)} {_literal(after)}")
        # Arguments are never null, also if their schema is nullable.
        parameters = {**tool.parameters, "type": "object", "nullable": False}
        schema = _closed(parameters, parameters) if i not in constraint.any_object else {"type": "object"}
        (made,) = json.loads(grammar_of({"json": schema}, where))["grammars"]
        parts.append({"name": part_name(i), FIELD_PATH: where, **made})
    rules += [f"written: one {_mark(constraint.format.closes, control)}", f"one: {' | '.join(each)}"]


def _closed(
    schema: Mapping[str, Any], root: Mapping[str, Any], names: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Forbids arguments that the schema does not name: a model would make some up.

    Args:
        schema: Schema of the arguments, or one of its alternatives.
        root: Schema in which references are looked up.
        names: Properties that the schema around this alternative names.
    """
    choices = [keyword for keyword in ("anyOf", "oneOf") if isinstance(schema.get(keyword), list)]
    common = {keyword: value for keyword, value in schema.items() if keyword not in choices}
    parts = list(applied([common], root))
    if len(choices) > 1 or any(_OPEN_ENDED & part.keys() for part in parts):
        return dict(schema)
    listed = [part["properties"] for part in parts if isinstance(part.get("properties"), Mapping)]
    names = {**(names or {}), **{name: True for properties in listed for name in properties}}
    if sum(len(name) + 8 for name in names) * sum(len(schema[keyword]) for keyword in choices) > MAX_CHARS // 8:
        return dict(schema)  # each alternative would repeat all names
    for keyword in choices:
        each = [_closed(part, root, names) if isinstance(part, Mapping) else part for part in schema[keyword]]
        return {**common, keyword: each}
    own = schema.get("properties")
    return {
        **schema,
        "properties": {**names, **(own if isinstance(own, Mapping) else {})},
        "additionalProperties": False,
    }


def _literal(text: str) -> str:
    return json.dumps(text)


def _mark(text: str, control: Callable[[str], int | None]) -> str:
    token = control(text)
    return _literal(text) if token is None else f"<[{token}]>"


def _until(name: str, mark: str, control: Callable[[str], int | None]) -> str:
    """Returns a rule for any text followed by `mark`."""
    token = control(mark)
    if token is not None:
        return f"{name}: {_ANY_TEXT} <[{token}]>"
    return f"{name}[suffix={_literal(mark)}]: {_ANY_TEXT}"
