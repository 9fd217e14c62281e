"""Interfaces of the formats of tool calls and reasoning, which `tool_call_parser.py` and `chat_output.py` read.

Also the registry of formats, the deltas that parsers return, and the JSON that models write.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.errors import ConfigError
from runtime.plugins import Registry

# Levels of objects and lists in a call's arguments, which are the first. Chat templates can write a history with them.
MAX_DEPTH = 64
OFF = "off"  # value of --tool-call-parser and --reasoning-parser


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


class ToolParser(ABC):
    """Reads one call incrementally, from after the marker that opens it. The result must not depend on the splits.

    Each format has a subclass, such as `HermesToolParser` in `runtime/parsers/hermes.py`.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        """`tools`: the tools of the request."""
        self.tools = tools
        self._text = ""  # read so far

    @abstractmethod
    def feed(self, text: str) -> ParsedCall | NotACall | None:
        """Adds text; returns None while it may still become a call."""

    def end(self) -> ParsedCall | None:
        """Returns the call if the output ends here and only marks are missing, else None."""
        return None

    def partial(self) -> tuple[str, str] | None:
        """Returns name and beginning of the arguments of an incomplete call; None if not known, or not supported."""
        return None


@dataclass(frozen=True)
class ToolFormat:
    """How the models of a family write tool calls.

    Attributes:
        opens: Start marker of a call.
        closes: End marker. After a call, repetitions and pieces of it are dropped.
        parser: Creates the parser of one call.
        quotes: Marker around strings, if it is a token of its own.
        strays: Other markers inside a call that models repeat after it; they are dropped there, too.
        begins: Beginning of the text of a call, after the start marker. After a call, it begins another one.
        begins_alone: Whether `begins` also begins a call where models have left out the start marker.
        name_between: Regular expressions of the text from the start marker to the name of the tool, and from there to
            where the name has ended. A grammar enforces them, so their repetitions have bounds. None: a name is only
            checked once it is complete.
        unnamed: Regular expression of the text from the start marker to where it has begun no call, or one that does
            not begin with its name. No later token is constrained. "": there is none.
        wraps: Returns the text before and after the JSON arguments of a call of a tool. None: arguments are not JSON,
            so that no grammar can constrain them.
        instructs: Returns a system message about the tools, for models whose template does not support tools. None:
            there is none.
    """

    key: str
    opens: str
    closes: str
    parser: Callable[[Sequence[Tool]], ToolParser]
    quotes: str = ""
    strays: tuple[str, ...] = ()
    begins: str = ""
    begins_alone: bool = False
    name_between: tuple[str, str] | None = None
    unnamed: str = ""
    wraps: Callable[[str], tuple[str, str]] | None = None
    instructs: Callable[[Sequence[Tool]], str] | None = None


@dataclass(frozen=True)
class ReasoningFormat:
    """How the models of a family mark reasoning, which precedes the answer. A prompt may end with the start marker."""

    key: str
    opens: str
    closes: str


_TOOLS: Registry[ToolFormat] = Registry("tool format")
_REASONING: Registry[ReasoningFormat] = Registry("reasoning format")


def register_tool_format(made: ToolFormat) -> ToolFormat:
    return _TOOLS.add(made.key, made)


def register_reasoning_format(made: ReasoningFormat) -> ReasoningFormat:
    return _REASONING.add(made.key, made)


def tool_formats() -> list[str]:
    return sorted(_TOOLS)


def reasoning_formats() -> list[str]:
    return sorted(_REASONING)


def tool_format(key: str) -> ToolFormat | None:
    """Returns the format of that name, or None."""
    return _TOOLS.get(key)


def reasoning_format(key: str) -> ReasoningFormat | None:
    return _REASONING.get(key)


def check_parsers(tool_calls: str | None, reasoning: str | None) -> None:
    """Raises ConfigError for a value of --tool-call-parser or --reasoning-parser that is not known."""
    for flag, value, known in (
        ("--tool-call-parser", tool_calls, tool_formats()),
        ("--reasoning-parser", reasoning, reasoning_formats()),
    ):
        if value is not None and value not in (OFF, *known):
            raise ConfigError(f"{flag}: unknown parser {value!r}; available: {', '.join(known)}, {OFF}")


def part_marks() -> tuple[str, ...]:
    """Returns the markers of all formats. They stay in the text even if it is not parsed."""
    tools = (mark for one in _TOOLS.values() for mark in (one.opens, one.closes, one.quotes))
    reasoning = (mark for one in _REASONING.values() for mark in (one.opens, one.closes))
    return tuple(sorted({*tools, *reasoning} - {""}))


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Start of a call.

    Attributes:
        index: Number of the call, from 0.
        id: Id that the server assigned, which the tool's result names.
        name: Name of the tool.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """Part of a call's arguments. The joined parts are the text of one JSON object."""

    index: int
    text: str


Delta = Text | Reasoning | CallStart | Arguments


_STRUCTURE = re.compile(r'["\\{}\[\]]')


def partial_match_len(mark: str, text: str) -> int:
    """Returns the length of the longest suffix of `text` that is a proper prefix of `mark`."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


class BracketCounter:
    """Nesting depth of brackets outside of strings."""

    def __init__(self) -> None:
        self.depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str, until: int = 0) -> int | None:
        """Reads `text` up to the bracket that brings the depth to `until`.

        All kinds of brackets count alike; whether the text is JSON is decided when it is parsed.

        Returns:
            The offset after that bracket; None if there is none.
        """
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = _STRUCTURE.search(text, at)
            if found is None:
                return None
            at, char = found.end(), found[0]
            if self._quoted:
                self._escaped = char == "\\"
                self._quoted = char != '"'
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self.depth += 1
            elif char in "}]":
                self.depth -= 1
                if self.depth <= until:
                    return at
        return None


class NestedTooDeeplyError(ValueError):
    """A value has too many levels of objects and lists."""


def parse_json(text: str, strict: bool = True) -> Any:
    """Parses JSON.

    Args:
        strict: Whether line breaks and other control characters in strings are errors, as JSON has it.

    Raises:
        NestedTooDeeplyError: It has more levels than Python can parse.
        ValueError: It is no JSON, or has NaN or infinities.
    """

    def wrong(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=wrong, strict=strict)
    except RecursionError:  # Python's limit differs between versions
        raise NestedTooDeeplyError(MAX_DEPTH) from None


def dump_json(value: Any) -> str:
    """Serializes the arguments of a call to JSON.

    Raises:
        NestedTooDeeplyError: They have more than `MAX_DEPTH` levels.
        ValueError: They have a number that JSON does not have.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    if containers:
        raise NestedTooDeeplyError(MAX_DEPTH)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate must be escaped
        return json.dumps(value, allow_nan=False)
    return text
