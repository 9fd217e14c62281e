"""Tool calls, mostly of a calculator; answers from tool results; and other questions in the presence of tools."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from training.demo.tasks import word_lists
from training.demo.tasks.arithmetic import wording
from training.demo.tasks.base import Sample, all_tasks, single, task
from training.demo.tasks.greetings import REFUSAL
from training.demo.tasks.phrasing import phrase
from training.demo.tasks.tool_format import call_text, tools_text

_CALCULATORS = ("calculator", "calculator", "calculator", "calculate", "calc", "compute", "evaluate", "math", "do_math",
                "solve_math", "evaluate_expression")  # fmt: skip
_DESCRIPTIONS = (
    "Calculate the value of an arithmetic expression.", "A calculator.", "Evaluates an expression.",
    "Calculates a mathematical expression and returns the result.", "Compute the result of an expression",
    "Use this tool for all arithmetic.", "Does math.", "Evaluate a math expression, for example 2*3.", "",
    "Perform a calculation.", "Simple calculator for + - * /",
    "Useful for when you need to answer questions about math.",
)  # fmt: skip
_PARAMETERS = ("expression", "expression", "expression", "expression", "expr", "input", "formula", "query", "equation")
_PARAMETER_DESCRIPTIONS = (
    "The expression",
    "The expression to evaluate",
    "An arithmetic expression such as 12*7",
    "e.g. 2+3",
    "",
)
_TWO = {"+": ("add", "sum", "add_numbers", "plus"), "-": ("subtract", "minus"), "x": ("multiply", "product", "times"),
        "/": ("divide", "quotient")}  # fmt: skip
_SIGNS = {"+": "+", "-": "-", "x": "*", "/": "/"}
_DIVIDE = ("divide {a} by {b}", "calculate {a} / {b}", "compute {a} divided by {b}", "solve {a} / {b}")
_DIVIDED = ("What is {a} / {b}?", "What is {a} divided by {b}?", "{a} / {b}", "{a}/{b}", "How much is {a} / {b}?",
            "How often does {b} go into {a}?", "What's {a} divided by {b}?")  # fmt: skip
_EXPRESSION = ("calculate {e}", "compute {e}", "solve {e}", "evaluate {e}", "work out {e}")
_EXPRESSIONS = ("What is {e}?", "What's {e}?", "{e}", "{e} = ?", "How much is {e}?")
# Tools without parameters, with questions for them.
_PLAIN: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    (("get_date", "today", "current_date"), "Get the date of today.",
     ("What is the date?", "What day is it today?", "Tell me the date.", "Which date is it?")),
    (("get_news", "news"), "Get the latest news.", ("What is in the news?", "Tell me the news.", "Any news?")),
    (("list_files", "ls"), "List all files.", ("List my files.", "Which files are there?", "Show the files.")),
    (("get_location", "where_am_i"), "Get the location of the user.", ("Where am I?", "What is my location?")),
)  # fmt: skip
_VERBS = ("get", "find", "open", "start", "check", "show", "run", "fetch", "delete", "update", "read", "make")
_USE = ("Use {n} with {v}.", "Call {n} for {v}.", "Run {n} on {v}.", "Please use the tool {n} with {v}.",
        "I need {n} for {v}.", "{n}: {v}", "Use the {n} tool for {v}.")  # fmt: skip
_USING = ("", "", "", "", " Use the calculator.", " Use the tool.", " Please use the calculator.")
# Other tools, with their parameters and questions for them, because agents define tools of their own.
_OTHERS: tuple[tuple[tuple[str, ...], tuple[str, ...], str, tuple[str, ...]], ...] = (
    (("get_weather", "weather", "get_current_weather"), ("city", "location"), "Get the weather in a city.",
     ("What is the weather in {v}?", "How is the weather in {v}?", "Tell me the weather in {v}.", "Weather in {v}?",
      "What's the weather like in {v}?", "Will it rain in {v}?")),
    (("get_time", "current_time"), ("city", "timezone", "location"), "Get the time in a city.",
     ("What time is it in {v}?", "Tell me the time in {v}.", "Time in {v}?")),
    (("search", "web_search", "lookup"), ("query", "q"), "Search the web.",
     ("Search for {v}.", "Look up {v}.", "Search the web for {v}.", "Find {v}.")),
    (("get_population", "population"), ("city",), "Number of people in a city.",
     ("How many people live in {v}?", "What is the population of {v}?")),
    (("get_user", "find_person", "get_age"), ("name",), "Find a person by name.",
     ("How old is {v}?", "Who is {v}?", "Find {v}.", "Look up {v}.")),
    (("get_stock_price", "stock_price"), ("symbol", "company"), "Get the price of a stock.",
     ("What is the stock price of {v}?", "How much is a share of {v}?", "Stock price of {v}?")),
    (("translate", "translate_text"), ("text", "word"), "Translate a word into French.",
     ("Translate {v} into French.", "What is {v} in French?", "How do you say {v} in French?")),
    (("send_email", "email"), ("to", "recipient"), "Send an email.",
     ("Send an email to {v}.", "Write an email to {v}.", "Email {v}.")),
    (("book_hotel", "find_hotel"), ("city",), "Book a hotel.",
     ("Book a hotel in {v}.", "Find a hotel in {v}.", "I need a hotel in {v}")),
    (("play_music", "play_song"), ("song", "title"), "Play a song.",
     ("Play {v}.", "Play the song {v}.", "I want to hear the song {v}.")),
    (("create_note", "add_note"), ("text", "note"), "Save a note.",
     ("Make a note: {v}", "Add a note about {v}.", "Note down {v}.")),
)  # fmt: skip


_DRAFTS = (
    "http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-04/schema#",
)  # fmt: skip
# Parameters that a question does not mention, so that a call leaves them out.
_OPTIONAL: Mapping[str, Mapping[str, Any]] = {
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    "units": {"type": "string", "enum": ["metric", "imperial"], "default": "metric"},
    "limit": {"type": "integer", "default": 10, "minimum": 1},
    "max_results": {"type": "integer", "minimum": 1, "maximum": 100},
    "precision": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    "language": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "detailed": {"type": "boolean", "default": False},
    "format": {"type": "string", "enum": ["text", "json"], "default": "text"},
}
_DETAILS: tuple[Mapping[str, Any], ...] = (  # keys that clients add to a parameter
    {"minLength": 1}, {"minLength": 1, "maxLength": 200}, {"examples": ["3"]}, {"default": ""}, {"nullable": False},
)  # fmt: skip


def _schema(rng: random.Random, parameters: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the schema of a tool's parameters, in one of the forms that clients send."""
    if not parameters and rng.random() < 0.4:
        return {}
    properties = dict(parameters)
    if rng.random() < 0.12 and parameters:
        optional = rng.choice([p for p in _OPTIONAL if p not in parameters])
        properties[optional] = dict(_OPTIONAL[optional])
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(parameters)}
    if (not parameters and rng.random() < 0.5) or rng.random() < 0.12:
        del schema["required"]
    if rng.random() < 0.4:
        schema["additionalProperties"] = False
    if rng.random() < 0.1:
        schema |= {"title": name.title().replace("_", "") + rng.choice(("", "Input", "Arguments"))}
    if rng.random() < 0.05:
        schema |= {"description": rng.choice(("Arguments.", "The input of the tool.", "Parameters"))}
    keys = list(schema)
    if rng.random() < 0.2:
        rng.shuffle(keys)
    if rng.random() < 0.3:
        schema["$schema"] = rng.choice(_DRAFTS)
        keys.insert(0 if rng.random() < 0.65 else len(keys), "$schema")
    return {key: schema[key] for key in keys}


def _function(name: str, description: str, parameters: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Returns an item of `tools`, with keys that some clients add."""
    function: dict[str, Any] = {"name": name, "description": description}
    function["parameters"] = _schema(rng, parameters, name)
    if not description:
        del function["description"]
    if not parameters and rng.random() < 0.2:
        del function["parameters"]
    if rng.random() < 0.15:
        function["strict"] = rng.random() < 0.7
    if rng.random() < 0.05:
        function = dict(reversed(function.items()))
    return {"type": "function", "function": function}


def _parameter(rng: random.Random, kind: str, description: str, title: bool, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind}
    if rng.random() < 0.05:
        made = {"anyOf": [made, {"type": "null"}]}
    if title:
        made = (
            {"title": name.replace("_", " ").title(), **made} if rng.random() < 0.5 else {**made, "title": name.title()}
        )
    if rng.random() < 0.12 and kind == "string":
        made |= rng.choice(_DETAILS)
    described = made | ({"description": description} if description else {})
    return dict(reversed(described.items())) if rng.random() < 0.1 else described


def _calculator(rng: random.Random) -> tuple[dict[str, Any], str, str]:
    """Returns a tool, its name and its parameter's name."""
    name, parameter = rng.choice(_CALCULATORS), rng.choice(_PARAMETERS)
    if rng.random() < 0.05:
        parameter = word_lists.made_up(rng)
    schema = _parameter(rng, "string", rng.choice(_PARAMETER_DESCRIPTIONS), rng.random() < 0.2, parameter)
    return _function(name, rng.choice(_DESCRIPTIONS), {parameter: schema}, rng), name, parameter


def _value(rng: random.Random, parameter: str) -> str:
    if parameter in ("name", "to", "recipient", "company", "symbol"):
        return word_lists.name(rng)
    city = parameter in ("city", "location", "timezone")
    return word_lists.city(rng) if city else word_lists.noun(rng)


def _other(rng: random.Random) -> tuple[dict[str, Any], str, str]:
    """Returns another tool, a question for it, and the correct call."""
    kind = rng.random()
    if kind < 0.12:
        names, described, questions = rng.choice(_PLAIN)
        name = rng.choice(names)
        return _function(name, described, {}, rng), phrase(rng, (), questions), call_text(name, {})
    if kind < 0.3:  # a tool that nobody knows, asked for by its name
        noun = word_lists.noun(rng)
        name, parameter = f"{rng.choice(_VERBS)}_{noun}", rng.choice(("id", "name", "value", word_lists.noun(rng)))
        questions, described = tuple(q.replace("{n}", name) for q in _USE), f"{rng.choice(_VERBS).title()} the {noun}."
    else:
        names, parameters, described, questions = rng.choice(_OTHERS)
        name, parameter = rng.choice(names), rng.choice(parameters)
    value = _value(rng, parameter)
    schema = _parameter(rng, "string", rng.choice(("", "The " + parameter)), rng.random() < 0.2, parameter)
    tool = _function(name, described if rng.random() < 0.8 else "", {parameter: schema}, rng)
    return tool, phrase(rng, (), questions, v=value), call_text(name, {parameter: value})


def _sum(rng: random.Random) -> tuple[str, str]:
    """Returns a question and its expression without spaces."""
    kind = rng.random()
    top = rng.choice((12, 99, 999, 9999))
    a, b = rng.randint(0, top), rng.randint(1, rng.choice((12, top)))
    if kind < 0.6:
        sign = rng.choice("+-xx")
        question = wording(rng, a, sign, b)
    elif kind < 0.75:
        sign = "/"
        question = phrase(rng, _DIVIDE, _DIVIDED, a=a, b=b)
    else:
        c = rng.randint(1, 99)
        one, two = rng.choice("+-*/"), rng.choice("+-*")
        text = rng.choice(("{a} {p} {b} {q} {c}", "({a} {p} {b}) {q} {c}", "{a} {q} ({b} {p} {c})", "{a}{p}{b}{q}{c}"))
        shown = text.format(a=a, b=b, c=c, p=one, q=two)
        if rng.random() < 0.15:
            shown = f"{a}.{rng.randint(1, 9)} {one} {b}.{rng.randint(1, 99)}"
        return phrase(rng, _EXPRESSION, _EXPRESSIONS, e=shown) + rng.choice(_USING), shown.replace(" ", "")
    return question + rng.choice(_USING), f"{a}{_SIGNS[sign]}{b}"


def _two_numbers(rng: random.Random, sign: str = "") -> tuple[dict[str, Any], str, str]:
    """Returns a tool with two numbers as parameters, a question for it, and the correct call."""
    sign = sign or rng.choice("+-x/")
    name = rng.choice(_TWO[sign])
    a, b = rng.randint(0, rng.choice((20, 999))), rng.randint(1, rng.choice((20, 999)))
    first, second = rng.choice((("a", "b"), ("a", "b"), ("x", "y"), ("first", "second")))
    kind, title = rng.choice(("integer", "number")), rng.random() < 0.3
    parameters = {p: _parameter(rng, kind, "", title, p) for p in (first, second)}
    tool = _function(
        name, rng.choice(("", f"{name.title()} two numbers.", "Arithmetic on two numbers.")), parameters, rng
    )
    question = phrase(rng, _DIVIDE, _DIVIDED, a=a, b=b) if sign == "/" else wording(rng, a, sign, b)
    return tool, question, call_text(name, {first: a, second: b})


_SYSTEM = ("You are a helpful assistant.", "Use the tools.", "You can use tools.", "Answer with the help of the tools.",
           "You are a careful assistant with a calculator.")  # fmt: skip


def _purposes(tool: Mapping[str, Any]) -> frozenset[str]:
    """Returns what a tool is for: the signs that it computes, or a name of its kind of tool."""
    name = tool["function"]["name"]
    if name in _CALCULATORS:
        return frozenset(_TWO)
    kinds = (*_TWO.items(), *((names[0], names) for names, *_ in (*_OTHERS, *_PLAIN)))
    return frozenset([next((key for key, names in kinds if name in names), name)])


def _system_message(
    rng: random.Random, *tools: Mapping[str, Any], more: float = 0.35, without: frozenset[str] = frozenset()
) -> Mapping[str, str]:
    """Returns the system message, sometimes with further tools for other purposes.

    Args:
        more: probability of another tool, after each.
        without: purposes that no further tool has.
    """
    offered = list(tools)
    taken = without.union(*map(_purposes, tools))
    while not offered or rng.random() < more:
        make = rng.choices((_other, _two_numbers, _calculator), (3, 2, 0.5))[0]
        added = make(rng)[0]
        if taken.isdisjoint(_purposes(added)):
            offered.insert(rng.randint(0, len(offered)), added)
            taken |= _purposes(added)
    text = f"{rng.choice(_SYSTEM)}\n" if rng.random() < 0.4 else ""
    return {"role": "system", "content": text + tools_text(offered)}


def _asked(rng: random.Random) -> tuple[dict[str, Any], str, str]:
    """Returns a tool, a question for it, and the correct call."""
    kind = rng.random()
    if kind < 0.25:
        return _two_numbers(rng)
    if kind < 0.5:
        return _other(rng)
    tool, name, parameter = _calculator(rng)
    question, expression = _sum(rng)
    return tool, question, call_text(name, {parameter: expression})


def _result(rng: random.Random) -> tuple[str, str]:
    """Returns a tool's result, and the answer that reports it."""
    kind = rng.random()
    number = str(rng.randint(-99, 10 ** rng.randint(1, 6)))
    if kind < 0.2:
        number = f"{rng.randint(0, 999)}.{rng.randint(0, 9999)}"
    if kind < 0.75:
        return number, f"The answer is {number}."
    if kind < 0.9:
        key = rng.choice(("result", "result", "value", "answer", "output"))
        return json.dumps({key: json.loads(number)}), f"The answer is {json.loads(number)}."
    found = " ".join(word_lists.noun(rng) for _ in range(rng.randint(1, 4)))
    return found, f"The answer is {found}."


@task("tool_call", "short", "call")
def tool_call(rng: random.Random) -> Sample:
    if rng.random() < 0.8:
        tool, question, call = _asked(rng)
        return Sample("tool_call", (_system_message(rng, tool), {"role": "user", "content": question}), call)
    tool, name, parameter = _calculator(rng)  # a second call, after the result of the first
    (before, earlier), (question, expression), (result, answer) = _sum(rng), _sum(rng), _result(rng)
    messages = (
        _system_message(rng, tool),
        {"role": "user", "content": before},
        {"role": "assistant", "content": call_text(name, {parameter: earlier})},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": question},
    )
    return Sample("tool_call", messages, call_text(name, {parameter: expression}))


@task("tool_answer", "short")
def tool_answer(rng: random.Random) -> Sample:
    tool, question, call = _asked(rng)
    result, answer = _result(rng)
    messages = (
        _system_message(rng, tool),
        {"role": "user", "content": question},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": result},
    )
    return Sample("tool_answer", messages, answer)


# Questions that no tool answers, by what a tool that would answer them is for.
_NO_TOOL_TASKS = ("count", "sort", "spell", "reverse", "units", "json", "greet", "about", "small_talk", "abilities",
                  "number_words", "roman", "story", "sudoku", "compare", "table", "followup")  # fmt: skip
_COMPUTED: Mapping[str, str] = {"add": "+", "subtract": "-", "multiply": "x", "product": "x"}
_COMPUTABLE = r"\d|plus|divide|square|integrate|x\b|solve|calculat"
# Patterns of requests that a tool may be useful for, by its purpose.
_USEFUL: Mapping[str, str] = {
    "get_weather": "weather|rain|cold|hot|wear", "get_time": "time|alarm|clock|remind",
    "get_population": "people|popul",
    "get_stock_price": "stock|price|cost|share", "translate": "translat|say|language|french|german|spanish|mean|word",
    "send_email": "mail|letter|call|send|write|text", "book_hotel": "hotel|trip|travel|book",
    "play_music": "play|song|music|sing|hear", "create_note": "note|remind|list|write|plan",
    "get_date": "day|date|year|when|christmas|easter|month", "list_files": "file|list|open",
    "get_location": "where|far|near|next|get to",
}  # fmt: skip
_FINDING = frozenset(("search", "get_user", "get_news"))  # purposes of tools for many questions


def _unanswered(rng: random.Random) -> tuple[Sample, frozenset[str]]:
    """Returns a question, and the purposes that no offered tool has."""
    kind = rng.random()
    if kind < 0.35:
        name = rng.choice(_NO_TOOL_TASKS)
        computing = frozenset(_TWO) if name in ("units", "followup") else frozenset[str]()
        return all_tasks()[name].make(rng), computing
    if kind < 0.6:
        name = rng.choice(list(_COMPUTED))
        return all_tasks()[name].make(rng), frozenset(_COMPUTED[name])
    if kind < 0.75:
        name = rng.choice(("refuse", "refuse", "near_miss", "beyond"))
        asked = all_tasks()[name].make(rng)
        text = asked.messages[-1]["content"].lower()
        useful = {purpose for purpose, words in _USEFUL.items() if re.search(words, text)} | _FINDING
        if name != "refuse" or re.search(_COMPUTABLE, text):
            useful.update(_TWO)
        return asked, frozenset(useful)
    tool, question, _ = _two_numbers(rng, "/") if kind < 0.8 else _other(rng)
    return single("refuse", question, REFUSAL), _purposes(tool) | _FINDING


@task("tool_offered", "short")
def tool_offered(rng: random.Random) -> Sample:
    """A question that no offered tool is for, answered or declined without a call."""
    asked, without = _unanswered(rng)
    if rng.random() < 0.4 and without.isdisjoint(_TWO):
        system = _system_message(rng, _calculator(rng)[0], without=without)
    else:
        system = _system_message(rng, more=0.4, without=without)
    return Sample("tool_offered", (system, *asked.messages), asked.answer, asks=asked)
