"""Splits growing model output into reasoning, content and tool calls.

`ReasoningParser` reads every registered format of reasoning (`runtime/parsers/formats.py`). `ChatOutputParser` combines
it with `ToolCallParser` (`runtime/parsers/tool_call_parser.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from runtime.parsers.formats import Arguments, CallStart, Delta, Reasoning, ReasoningFormat, Text, partial_match_len
from runtime.parsers.tool_call_parser import ToolCallOptions, ToolCallParser


class ReasoningParser:
    """Incremental parser of reasoning. White space around reasoning is dropped.

    Attributes:
        consumed: Characters of reasoning and its markers.
        unclosed: Whether the output ended without the end marker.
    """

    def __init__(self, reasoning_format: ReasoningFormat | None, opened: bool) -> None:
        self._format = reasoning_format
        self._state: Literal["before", "within", "after", "over"] = (
            "over" if reasoning_format is None else "within" if opened else "before"
        )
        self._buffer = ""
        self._has_reasoning = False  # reasoning other than white space has begun
        self.consumed = 0
        self.unclosed = False

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends inside reasoning."""
        return self._state == "within"

    @property
    def is_done(self) -> bool:
        """Whether no further text can be reasoning."""
        return self._state in ("after", "over")

    def push(self, text: str) -> tuple[str, str]:
        """Returns the reasoning and the remaining text that are certain now."""
        if self._format is None or self._state == "over":
            return "", text
        self._buffer += text
        if self._state == "before":
            stripped = self._buffer.lstrip()
            if stripped.startswith(self._format.opens):
                self._consume(len(self._buffer) - len(stripped) + len(self._format.opens))
                self._state = "within"
            elif self._format.opens.startswith(stripped):
                return "", ""
            else:
                return "", self._end_reasoning()
        reasoning = self._read_reasoning() if self._state == "within" else ""
        if self._state == "after":
            self._consume(len(self._buffer) - len(self._buffer.lstrip()))
            if self._buffer:
                return reasoning, self._end_reasoning()
        return reasoning, ""

    def finish(self) -> tuple[str, str]:
        """Returns the withheld text, at the end of the output."""
        withheld, state = self._buffer, self._state
        if state == "within":
            self.unclosed = True
            self.consumed += len(withheld)
            self._buffer = ""
            # an incomplete end marker is reasoning, and white space after it is not
            return (withheld.rstrip() if self._has_reasoning else withheld.strip()), ""
        return "", self._end_reasoning()

    def _read_reasoning(self) -> str:
        assert self._format is not None
        if not self._has_reasoning:
            self._consume(len(self._buffer) - len(self._buffer.lstrip()))
            self._has_reasoning = bool(self._buffer)
        at = self._buffer.find(self._format.closes)
        if at >= 0:
            reasoning = self._buffer[:at].rstrip()
            self._consume(at + len(self._format.closes))
            self._state = "after"
            return reasoning
        num_certain = len(self._buffer) - partial_match_len(self._format.closes, self._buffer)
        reasoning = self._buffer[:num_certain].rstrip()
        self._consume(len(reasoning))
        return reasoning

    def _consume(self, characters: int) -> None:
        self.consumed += characters
        self._buffer = self._buffer[characters:]

    def _end_reasoning(self) -> str:
        rest, self._buffer, self._state = self._buffer, "", "over"
        return rest


@dataclass
class Call:
    """A tool call so far."""

    id: str
    name: str
    arguments: str = ""


class ChatOutputParser:
    """Parser of one output. The joined deltas do not depend on how the text was split into pushes.

    Attributes:
        reasoning: Reasoning so far.
        content: Content so far.
        calls: Tool calls so far, in order.
    """

    def __init__(
        self, *, reasoning: ReasoningFormat | None = None, opened: bool = False, tools: ToolCallOptions | None = None
    ) -> None:
        """
        Args:
            reasoning: Format of reasoning; None: there is none.
            opened: Whether the prompt ends inside reasoning.
            tools: How tool calls are read; None: the text is never parsed for calls.
        """
        self._reasoning_parser = ReasoningParser(reasoning, opened)
        self._tools = tools
        self._call_parser = None if tools is None else ToolCallParser(tools)
        self.reasoning = self.content = ""
        self.calls: list[Call] = []

    @property
    def called(self) -> bool:
        return bool(self.calls)

    @property
    def ended(self) -> bool:
        """Whether further text is ignored."""
        return self._call_parser is not None and self._call_parser.is_over

    @property
    def reasoning_chars(self) -> int:
        return self._reasoning_parser.consumed

    def push(self, text: str) -> list[Delta]:
        """Adds stable text; returns the new deltas."""
        if self.ended or not text:
            return []
        reasoning, rest = self._reasoning_parser.push(text)
        if self._call_parser is None and not reasoning:
            self.content += rest
            return [Text(rest)] if rest else []
        return self._apply([*_reasoning(reasoning), *self._push_text(rest)])

    def finish(self, cut: bool) -> list[Delta]:
        """Ends the output.

        Args:
            cut: The output was truncated. An incomplete call then stays as far as it was streamed; otherwise it becomes
                text.
        """
        if self.ended:
            return []
        reasoning, rest = self._reasoning_parser.finish()
        deltas = [*_reasoning(reasoning), *self._push_text(rest)]
        if self._call_parser is not None:
            deltas += self._call_parser.finish(cut)
        remaining = self._apply(deltas)
        if self._reasoning_parser.unclosed and not (cut or self.calls) and self._tools is not None:
            remaining += self._apply(self._calls_in_reasoning(self._tools))
        return remaining

    def _push_text(self, text: str) -> list[Delta]:
        if self._call_parser is not None:
            return self._call_parser.push(text)
        return [Text(text)] if text else []

    def _calls_in_reasoning(self, tools: ToolCallOptions) -> list[Delta]:
        """Returns the calls in unclosed reasoning, for an output that would be empty without them."""
        parser = ToolCallParser(replace(tools, constrained=False, required=False))
        deltas = parser.push(self.reasoning) + parser.finish(cut=False)
        return [delta for delta in deltas if isinstance(delta, CallStart | Arguments)]

    def _apply(self, deltas: list[Delta]) -> list[Delta]:
        """Joins adjacent deltas of one kind, and applies them to the state."""
        joined: list[Delta] = []
        for delta in deltas:
            last = joined[-1] if joined else None
            if isinstance(delta, Text) and isinstance(last, Text):
                joined[-1] = Text(last.text + delta.text)
            elif isinstance(delta, Arguments) and isinstance(last, Arguments) and last.index == delta.index:
                joined[-1] = Arguments(last.index, last.text + delta.text)
            else:
                joined.append(delta)
        for delta in joined:
            if isinstance(delta, Reasoning):
                self.reasoning += delta.text
            elif isinstance(delta, Text):
                self.content += delta.text
            elif isinstance(delta, CallStart):
                self.calls.append(Call(delta.id, delta.name))
            else:
                self.calls[delta.index].arguments += delta.text
        return joined


def _reasoning(text: str) -> list[Delta]:
    return [Reasoning(text)] if text else []
