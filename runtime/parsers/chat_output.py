"""`ToolCallExtractor` and `ReasoningParser`: split growing model output into reasoning, content and tool calls.

They read every registered format (`runtime/parsers/formats.py`). `ChatOutputParser` combines both.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from runtime.parsers.formats import (
    Arguments,
    CallStart,
    Delta,
    NotACall,
    ParsedCall,
    Reasoning,
    ReasoningFormat,
    Text,
    Tool,
    ToolFormat,
    ToolParser,
)

MAX_FAILED_CALLS = 32  # false starts after which the rest is text: each may be read to its end again


def partial_match_len(mark: str, text: str) -> int:
    """Returns the length of the longest suffix of `text` that is a proper prefix of `mark`."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


class ReasoningParser:
    """Incremental parser of reasoning. White space around reasoning is dropped.

    Attributes:
        consumed: Characters of reasoning and its markers.
        unclosed: Whether the output ended without the end marker.
    """

    def __init__(self, made: ReasoningFormat | None, opened: bool) -> None:
        self._format = made
        self._state: Literal["before", "within", "after", "over"] = (
            "over" if made is None else "within" if opened else "before"
        )
        self._held = ""
        self._begun = False  # reasoning other than white space has begun
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
        self._held += text
        if self._state == "before":
            begun = self._held.lstrip()
            if begun.startswith(self._format.opens):
                self._consume(len(self._held) - len(begun) + len(self._format.opens))
                self._state = "within"
            elif self._format.opens.startswith(begun):
                return "", ""
            else:
                return "", self._over()
        reasoning = self._within() if self._state == "within" else ""
        if self._state == "after":
            self._consume(len(self._held) - len(self._held.lstrip()))
            if self._held:
                return reasoning, self._over()
        return reasoning, ""

    def finish(self) -> tuple[str, str]:
        """Returns the withheld text, at the end of the output."""
        held, state = self._held, self._state
        if state == "within":
            self.unclosed = True
            self.consumed += len(held)
            self._held = ""
            # an incomplete end marker is reasoning, and white space after it is not
            return (held.rstrip() if self._begun else held.strip()), ""
        return "", self._over()

    def _within(self) -> str:
        assert self._format is not None
        if not self._begun:
            self._consume(len(self._held) - len(self._held.lstrip()))
            self._begun = bool(self._held)
        at = self._held.find(self._format.closes)
        if at >= 0:
            found = self._held[:at].rstrip()
            self._consume(at + len(self._format.closes))
            self._state = "after"
            return found
        sure = len(self._held) - partial_match_len(self._format.closes, self._held)
        found = self._held[:sure].rstrip()
        self._consume(len(found))
        return found

    def _consume(self, characters: int) -> None:
        self.consumed += characters
        self._held = self._held[characters:]

    def _over(self) -> str:
        rest, self._held, self._state = self._held, "", "over"
        return rest


@dataclass(frozen=True)
class ToolCallOptions:
    """How tool calls of one output are read.

    Attributes:
        format: Format of the calls.
        available_tools: The tools of the request.
        exact: Whether a grammar constrains calls, so that arguments are passed on unchanged and can be streamed.
            Otherwise a call is withheld until it is complete.
        early: Whether to stream arguments of `exact` calls.
        forced: Whether the output consists of calls only.
        single: Whether the output ends with its first call.
    """

    format: ToolFormat
    available_tools: Sequence[Tool] = ()
    exact: bool = False
    early: bool = True
    forced: bool = False
    single: bool = False


class ToolCallExtractor:
    """Incremental parser of text with tool calls.

    Text that may be the beginning of a call is withheld, and becomes text if it is not. White space between text and a
    call belongs to the call.

    Attributes:
        num_complete: Number of complete calls.
    """

    def __init__(self, options: ToolCallOptions) -> None:
        self._options = options
        self._held = ""  # unread text
        self._parser: ToolParser | None = None  # parser of the open call
        self._opening = self._read = ""  # its start marker with the space before it, and the text passed to the parser
        self._marks = (options.format.closes, *options.format.strays)
        self._closing = False  # after a call, whose end markers may follow
        self._bare = False  # only white space since the last call
        self._begun = 0  # calls with a `CallStart`
        self._failed = 0  # false starts
        self._passed: int | None = None  # streamed characters of the open call's arguments; None before its `CallStart`
        self.num_complete = 0

    def push(self, text: str) -> list[Delta]:
        """Adds text; returns the deltas that are certain now."""
        found: list[Delta] = []
        self._held += text
        while self._held and not self.is_over and self._step(found):
            pass
        return found

    def finish(self, cut: bool) -> list[Delta]:
        """Returns the deltas of withheld text, at the end of the output; see `ChatOutputParser.finish`."""
        found: list[Delta] = []
        if self.is_over or self._closing:
            return found
        if self._options.forced:  # the rest is an incomplete call
            return found
        if self._parser is None:
            self._text(found, self._held)
        elif self._passed is None and not cut:
            self._text(found, self._opening + self._read)
        return found

    @property
    def is_over(self) -> bool:
        """Whether further text is ignored."""
        return self._options.single and self.num_complete > 0

    def _step(self, found: list[Delta]) -> bool:
        """Reads up to the next marker; returns False if more text is needed."""
        if self._parser is not None:
            return self._within(found, self._parser)
        return self._close() if self._closing else self._between(found)

    def _between(self, found: list[Delta]) -> bool:
        if self._failed == MAX_FAILED_CALLS:
            text, self._held = self._held, ""
            self._text(found, text)
            return False
        at = self._held.find(self._options.format.opens)
        sure = len(self._held) - partial_match_len(self._options.format.opens, self._held) if at < 0 else at
        text = self._held[:sure].rstrip()
        self._text(found, text)
        self._held = self._held[len(text) :]
        if at < 0:
            return False
        end = at - len(text) + len(self._options.format.opens)
        self._opening, self._held = self._held[:end], self._held[end:]
        self._parser, self._read, self._passed = self._options.format.parser(self._options.available_tools), "", None
        return True

    def _within(self, found: list[Delta], parser: ToolParser) -> bool:
        fresh, self._held = self._held, ""
        self._read += fresh
        outcome = parser.feed(fresh)
        partial = parser.partial() if self._options.exact else None
        if partial is not None and (self._options.early or isinstance(outcome, ParsedCall)):
            self._pass(found, *partial)
        if outcome is None:
            return False
        self._parser = None
        if isinstance(outcome, NotACall):
            self._failed += 1
            if self._passed is None:
                self._text(found, self._opening)
                self._held = self._read
            return True
        self._end(found, outcome)
        return True

    def _end(self, found: list[Delta], call: ParsedCall) -> None:
        if self._passed is None:
            self._pass(found, call.name, call.arguments)
        self.num_complete += 1
        self._held = call.rest
        self._closing = self._bare = True

    def _close(self) -> bool:
        """Drops end markers. Models repeat them, above all after calls without arguments."""
        begun = self._held.lstrip()
        for mark in self._marks:
            if begun.startswith(mark):
                self._held = begun[len(mark) :]
                return True
        if any(mark.startswith(begun) for mark in self._marks):
            return False
        self._closing = False
        return True

    def _pass(self, found: list[Delta], name: str, arguments: str) -> None:
        """Adds the deltas of the open call."""
        if self._passed is None:
            self._passed = 0
            found.append(CallStart(self._begun, f"call_{secrets.token_hex(12)}", name))
            self._begun += 1
        if fresh := arguments[self._passed :]:
            found.append(Arguments(self._begun - 1, fresh))
            self._passed += len(fresh)

    def _text(self, found: list[Delta], text: str) -> None:
        if self._bare:
            text = text.lstrip()
        if text:
            self._bare = False
            found.append(Text(text))


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
        self._calls = None if tools is None else ToolCallExtractor(tools)
        self.reasoning = self.content = ""
        self.calls: list[Call] = []

    @property
    def called(self) -> bool:
        return bool(self.calls)

    @property
    def ended(self) -> bool:
        """Whether further text is ignored."""
        return self._calls is not None and self._calls.is_over

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
        if self._reasoning_parser.unclosed and not (cut or self.calls) and self._tools is not None:
            remaining += self._apply(self._unclosed(self._tools))
        return remaining

    def _read(self, text: str) -> list[Delta]:
        if self._calls is not None:
            return self._calls.push(text)
        return [Text(text)] if text else []

    def _unclosed(self, tools: ToolCallOptions) -> list[Delta]:
        """Returns the calls in unclosed reasoning, for an output that would be empty without them."""
        calls = ToolCallExtractor(replace(tools, exact=False, forced=False))
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
