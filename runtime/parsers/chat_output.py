"""Splits model output into reasoning, content and tool calls while it is generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.parsers.events import Arguments, CallStart, Delta, Reasoning, Text
from runtime.parsers.formats import ReasoningFormat, Tool, ToolFormat
from runtime.parsers.reasoning import ReasoningParser
from runtime.parsers.tool_calls import ToolCallParser


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
        self,
        *,
        reasoning: ReasoningFormat | None = None,
        opened: bool = False,
        tools: ToolFormat | None = None,
        available_tools: Sequence[Tool] = (),
        exact: bool = False,
        early: bool = True,
        forced: bool = False,
        single: bool = False,
    ) -> None:
        """
        Args:
            reasoning: Format of reasoning; None: there is none.
            opened: Whether the prompt ends inside reasoning.
            tools: Format of tool calls; None: the text is never parsed for calls.
            available_tools: The tools of the request.
            exact: Whether a grammar constrains calls, so that arguments can be streamed. Otherwise a call is withheld
                until it is complete.
            early: Whether to stream arguments of `exact` calls.
            forced: Whether the output consists of calls only.
            single: Whether the output ends with its first call.
        """
        self._reasoning_parser = ReasoningParser(reasoning, opened)
        self._format, self._available_tools, self._single = tools, available_tools, single
        self._calls = (
            None
            if tools is None
            else ToolCallParser(tools, available_tools, exact=exact, early=early, forced=forced, single=single)
        )
        self.reasoning = self.content = ""
        self.calls: list[Call] = []

    @property
    def called(self) -> bool:
        return bool(self.calls)

    @property
    def ended(self) -> bool:
        """Whether further text is ignored."""
        return self._single and self._calls is not None and self._calls.num_complete > 0

    @property
    def reasoning_chars(self) -> int:
        return self._reasoning_parser.consumed

    def push(self, text: str) -> list[Delta]:
        """Adds stable text; returns the new deltas."""
        if self.ended or not text:
            return []
        found, rest = self._reasoning_parser.push(text)
        return self._apply([*_reasoning(found), *self._read(rest)])

    def finish(self, cut: bool) -> list[Delta]:
        """Ends the output.

        Args:
            cut: The output was truncated. An incomplete call then stays as far as it was streamed; otherwise it becomes
                text.
        """
        if self.ended:
            return []
        found, rest = self._reasoning_parser.finish()
        read = [*_reasoning(found), *self._read(rest)]
        if self._calls is not None:
            read += self._calls.finish(cut)
        remaining = self._apply(read)
        if self._reasoning_parser.unclosed and not (cut or self.calls) and self._format is not None:
            remaining += self._apply(self._unclosed())
        return remaining

    def _read(self, text: str) -> list[Delta]:
        if self._calls is not None:
            return self._calls.push(text)
        return [Text(text)] if text else []

    def _unclosed(self) -> list[Delta]:
        """Returns the calls in unclosed reasoning, for an output that would be empty without them."""
        assert self._format is not None
        calls = ToolCallParser(self._format, self._available_tools, single=self._single)
        found = calls.push(self.reasoning) + calls.finish(cut=False)
        return [delta for delta in found if isinstance(delta, CallStart | Arguments)]

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
