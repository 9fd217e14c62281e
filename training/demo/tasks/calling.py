"""Tool calls, mostly of a calculator; answers from tool results; and other questions in the presence of tools."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from training.demo.tasks import word_lists
from training.demo.tasks.arithmetic import wording
from training.demo.tasks.base import Sample, all_tasks, task
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
)  # fmt: skip


def _function(name: str, description: str, parameters: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Returns an item of `tools`, with keys that some clients add."""
    schema: dict[str, Any] = {"type": "object", "properties": dict(parameters), "required": list(parameters)}
    if rng.random() < 0.3:
        schema["additionalProperties"] = False
    if rng.random() < 0.1:
        schema = {"properties": schema.pop("properties"), "required": schema.pop("required"), **schema}
    function: dict[str, Any] = {"name": name, "description": description, "parameters": schema}
    if not description:
        del function["description"]
    if rng.random() < 0.15:
        function["strict"] = rng.random() < 0.7
    return {"type": "function", "function": function}


def _parameter(rng: random.Random, kind: str, description: str, title: bool, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind}
    if title:
        made = (
            {"title": name.replace("_", " ").title(), **made} if rng.random() < 0.5 else {**made, "title": name.title()}
        )
    return made | ({"description": description} if description else {})


def _calculator(rng: random.Random) -> tuple[dict[str, Any], str, str]:
    """Returns a tool, its name and its parameter's name."""
    name, parameter = rng.choice(_CALCULATORS), rng.choice(_PARAMETERS)
    if rng.random() < 0.05:
        parameter = word_lists.made_up(rng)
    schema = _parameter(rng, "string", rng.choice(_PARAMETER_DESCRIPTIONS), rng.random() < 0.2, parameter)
    return _function(name, rng.choice(_DESCRIPTIONS), {parameter: schema}, rng), name, parameter


def _other(rng: random.Random) -> tuple[dict[str, Any], str, str]:
    """Returns another tool, a question for it, and the correct call."""
    names, parameters, description, questions = rng.choice(_OTHERS)
    name, parameter = rng.choice(names), rng.choice(parameters)
    value = (
        word_lists.name if parameter == "name" else word_lists.noun if parameter in ("query", "q") else word_lists.city
    )(rng)
    schema = _parameter(rng, "string", rng.choice(("", "The " + parameter)), rng.random() < 0.2, parameter)
    tool = _function(name, description if rng.random() < 0.8 else "", {parameter: schema}, rng)
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


def _two_numbers(rng: random.Random) -> tuple[dict[str, Any], str, str]:
    """Returns a tool with two numbers as parameters, a question for it, and the correct call."""
    sign = rng.choice("+-x/")
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


def _purpose(tool: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of all equivalent tools. All tools that compute are equivalent."""
    name = tool["function"]["name"]
    return next((names for names, *_ in _OTHERS if name in names), _CALCULATORS)


def _system_message(rng: random.Random, *tools: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the system message, sometimes with further tools for other purposes."""
    offered = list(tools)
    while rng.random() < 0.3:
        more = rng.choice((_other, _two_numbers))(rng)[0]
        if _purpose(more) not in map(_purpose, offered):
            offered.insert(rng.randint(0, len(offered)), more)
    text = f"{rng.choice(_SYSTEM)}\n" if rng.random() < 0.4 else ""
    return {"role": "system", "content": text + tools_text(offered)}


def _asked(rng: random.Random) -> tuple[dict[str, Any], str, str]:
    """Returns a tool, a question for it, and the correct call."""
    kind = rng.random()
    if kind < 0.2:
        return _two_numbers(rng)
    if kind < 0.35:
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


_NO_TOOL_TASKS = ("count", "sort", "spell", "reverse", "units", "json", "greet", "about", "small_talk", "abilities",
          "number_words", "story", "sudoku", "compare")  # fmt: skip


@task("tool_offered", "short")
def tool_offered(rng: random.Random) -> Sample:
    """A question that needs no calculator, answered without a call."""
    asked = all_tasks()[rng.choice(_NO_TOOL_TASKS)].make(rng)
    return Sample(
        "tool_offered", (_system_message(rng, _calculator(rng)[0]), *asked.messages), asked.answer, asks=asked
    )
