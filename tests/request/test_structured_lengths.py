"""Tests that the length of a constraint on the answer is checked before the constraint is processed."""

import json
from typing import Any

import pytest

from runtime.errors import RequestError
from runtime.parsers.formats import Tool, tool_format
from runtime.parsers.tool_call_grammar import ToolCallConstraint, grammar
from runtime.request import structured
from runtime.request.structured import FORMS, MAX_CHARS, grammar_of

LONG = 2_000_000
LARGE: dict[str, list[Any]] = {
    "json": ["{" * LONG, {"enum": ["*" * LONG]}, {"enum": ["*"] * 120_000}, {"*" * LONG: 1}, {"enum": [1] * 120_000}],
    "json_object": ["*" * LONG, [True] * 120_000],
    "regex": ["/" * LONG, "a/" * (LONG // 2), "^" + "\\" * LONG],
    "choice": [["*" * LONG], ["*" * 1900] * 1000, ["-/" * 950] * 1000, ["a"] * 120_000, "*" * LONG],
    "grammar": ["*" * LONG, "::=" * (LONG // 3), " " * LONG],
}


class Untouched:
    """A stand-in for a module that transforms values. A value that is too long must not reach it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of a value that is too long")


@pytest.mark.parametrize(("form", "value"), [(form, value) for form in FORMS for value in LARGE[form]])
@pytest.mark.parametrize("at", ["structured_outputs", "guided"])
def test_a_long_constraint_is_refused_before_it_is_processed(
    monkeypatch: pytest.MonkeyPatch, form: str, value: Any, at: str
) -> None:
    for name in ("json", "re", "_MARKS"):
        monkeypatch.setattr(structured, name, Untouched())
    with pytest.raises(RequestError, match=r"has \d+ (characters|texts); at most \d+|is not true") as refused:
        grammar_of({form: value}, at)
    assert len(str(refused.value)) < 200


def test_long_schemas_of_tools_are_refused_before_they_are_processed(monkeypatch: pytest.MonkeyPatch) -> None:
    hermes = tool_format("hermes")
    half = {"type": "object", "properties": {"x": {"enum": ["y" * (MAX_CHARS // 2)]}}}
    tools = [(f"tools[{i}]", Tool(f"f{i}", parameters=half)) for i in range(256)]
    monkeypatch.setattr(structured, "json", Untouched())
    with pytest.raises(RequestError, match=r"^tools: the schemas have \d+ characters together; at most"):
        grammar(ToolCallConstraint(hermes, tools, "only", False), "", None, lambda mark: None, "tools")


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": "a" * (MAX_CHARS - 100)}, {"choice": ["a" * 60] * 1000}, {"json": {"enum": ["a" * 60] * 900}},
        {"json": json.dumps({"enum": ["a" * 60] * 900})},
    ],
)  # fmt: skip
def test_constraints_just_within_the_limit_are_accepted(asked: dict[str, Any]) -> None:
    assert len(grammar_of(asked, "structured_outputs")) <= MAX_CHARS
