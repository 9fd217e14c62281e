"""Interfaces and registry of the formats of tool calls and reasoning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.errors import RegisteredTwiceError


@dataclass(frozen=True)
class Tool:
    """A function that the client provides.

    Attributes:
        parameters: JSON schema of its arguments, an object; without one, the schema of no arguments.
        strict: Whether arguments must match the schema even if the model calls it unprompted.
        item: As chat templates write it, in OpenAI's format.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_ARGUMENTS)
    strict: bool = False
    item: Mapping[str, Any] = field(default_factory=dict)


NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ParsedCall:
    """A complete call: name, arguments as JSON text, and the text after it."""

    name: str
    arguments: str
    rest: str


@dataclass(frozen=True)
class NotACall:
    """The text after the marker is not a call, and stays text."""


class CallReader(ABC):
    """Reads one call incrementally, from after the marker that opens it. The result must not depend on the splits."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """`tools`: the tools of the request."""
        self.tools = tools

    @abstractmethod
    def feed(self, text: str) -> ParsedCall | NotACall | None:
        """Adds text; returns None while it may still become a call."""

    def partial(self) -> tuple[str, str] | None:
        """Returns name and beginning of the arguments of an incomplete call; None if not known, or not supported."""
        return None


@dataclass(frozen=True)
class ToolFormat:
    """How the models of a family write tool calls.

    Attributes:
        opens: Start marker of a call.
        closes: End marker. After a call, repetitions of it are dropped.
        reader: Creates the reader of one call.
        quotes: Marker around strings, if it is a token of its own.
        strays: Other markers inside a call that models repeat after it; they are dropped there, too.
        wraps: Returns the text before and after the JSON arguments of a call of a tool. None: arguments are not JSON,
            so that no grammar can constrain them.
        instructs: Returns a system message about the tools, for models whose template does not support tools. None:
            there is none.
    """

    key: str
    opens: str
    closes: str
    reader: Callable[[Sequence[Tool]], CallReader]
    quotes: str = ""
    strays: tuple[str, ...] = ()
    wraps: Callable[[str], tuple[str, str]] | None = None
    instructs: Callable[[Sequence[Tool]], str] | None = None


@dataclass(frozen=True)
class ReasoningFormat:
    """How the models of a family mark reasoning, which precedes the answer. A prompt may end with the start marker."""

    key: str
    opens: str
    closes: str


_TOOLS: dict[str, ToolFormat] = {}
_REASONING: dict[str, ReasoningFormat] = {}


def register_tool_format(made: ToolFormat) -> ToolFormat:
    if made.key in _TOOLS:
        raise RegisteredTwiceError(f"tool format {made.key!r} is registered twice")
    _TOOLS[made.key] = made
    return made


def register_reasoning_format(made: ReasoningFormat) -> ReasoningFormat:
    if made.key in _REASONING:
        raise RegisteredTwiceError(f"reasoning format {made.key!r} is registered twice")
    _REASONING[made.key] = made
    return made


def tool_formats() -> list[str]:
    return sorted(_TOOLS)


def reasoning_formats() -> list[str]:
    return sorted(_REASONING)


def tool_format(key: str) -> ToolFormat | None:
    """Returns the format of that name, or None."""
    return _TOOLS.get(key)


def reasoning_format(key: str) -> ReasoningFormat | None:
    return _REASONING.get(key)


def part_marks() -> tuple[str, ...]:
    """Returns the markers of all formats. They stay in the text even if it is not parsed."""
    tools = (mark for one in _TOOLS.values() for mark in (one.opens, one.closes, one.quotes))
    reasoning = (mark for one in _REASONING.values() for mark in (one.opens, one.closes))
    return tuple(sorted({*tools, *reasoning} - {""}))
