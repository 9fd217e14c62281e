"""The formats in which models write calls of tools and reasoning: what one has to say, and their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tool:
    """A function that a client offers.

    Attributes:
        parameters: JSON schema of its arguments, an object; of a client that gave none, the schema of no arguments.
        strict: whether its arguments have to fit the schema even where the model calls it of its own accord.
        item: as chat templates write it, in OpenAI's form.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_ARGUMENTS)
    strict: bool = False
    item: Mapping[str, Any] = field(default_factory=dict)


NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Done:
    """A call is complete: its name, its arguments as JSON text, and what came after it."""

    name: str
    arguments: str
    rest: str


@dataclass(frozen=True)
class Failed:
    """What follows the marker is no call, and stays text."""


class CallReader(ABC):
    """Reads one call, from after the marker that opens it, as it comes. What it finds must not depend on the cuts."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """`tools`: those that are offered."""
        self.tools = tools

    @abstractmethod
    def feed(self, text: str) -> Done | Failed | None:
        """Take more in; None while it may still become a call."""

    def partial(self) -> tuple[str, str] | None:
        """Of a call that is not complete: its name, and the beginning of its arguments' JSON. None where neither is
        known yet, or the format does not tell."""
        return None


@dataclass(frozen=True)
class ToolFormat:
    """How a family's models call tools.

    Attributes:
        opens: what begins a call. closes: what ends it, and is dropped after it, however often it is repeated.
        strays: Other marks within a call that models repeat after it. They are dropped there too.
        reader: makes what reads one call.
        quotes: what stands around strings in it, where that is a mark of its own.
        wraps: what a call's arguments, as JSON, stand between, given its name; None: in this format arguments are not
            JSON, so that no grammar can hold a call to its schema.
        instructs: what a system message says of the tools to a model whose template says nothing of them; None: such
            models are told nothing.
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
    """How a family's models mark reasoning, which comes before an answer. A prompt may end with what opens it."""

    key: str
    opens: str
    closes: str


_TOOLS: dict[str, ToolFormat] = {}
_REASONING: dict[str, ReasoningFormat] = {}


def register_tool_format(made: ToolFormat) -> ToolFormat:
    if made.key in _TOOLS:
        raise ValueError(f"tool format {made.key!r} is registered twice")
    _TOOLS[made.key] = made
    return made


def register_reasoning_format(made: ReasoningFormat) -> ReasoningFormat:
    if made.key in _REASONING:
        raise ValueError(f"reasoning format {made.key!r} is registered twice")
    _REASONING[made.key] = made
    return made


def tool_formats() -> list[str]:
    return sorted(_TOOLS)


def reasoning_formats() -> list[str]:
    return sorted(_REASONING)


def tool_format(key: str) -> ToolFormat | None:
    """The format of that name, None if there is none."""
    return _TOOLS.get(key)


def reasoning_format(key: str) -> ReasoningFormat | None:
    return _REASONING.get(key)


def part_marks() -> tuple[str, ...]:
    """What tells an answer's parts apart, in any format: it stays in the text even where these are not told apart."""
    tools = (mark for one in _TOOLS.values() for mark in (one.opens, one.closes, one.quotes))
    reasoning = (mark for one in _REASONING.values() for mark in (one.opens, one.closes))
    return tuple(sorted({*tools, *reasoning} - {""}))
