"""Incremental parser of tool calls in model output, for every registered format of calls.

`ToolCallParser` finds the calls and returns deltas. A `ToolParser` reads one call. Each format has a subclass, such as
`HermesToolParser` in `runtime/parsers/hermes.py`.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.parsers.formats import (
    Arguments,
    CallStart,
    Delta,
    Text,
    Tool,
    ToolFormat,
    partial_match_len,
)

MAX_FAILED_CALLS = 32  # false starts after which the rest is text: each may be read to its end again


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
    """Reads one call incrementally, from after the marker that opens it. The result must not depend on the splits."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """`tools`: the tools of the request."""
        self.tools = tools
        self._text = ""  # read so far

    @abstractmethod
    def feed(self, text: str) -> ParsedCall | NotACall | None:
        """Adds text; returns None while it may still become a call."""

    def partial(self) -> tuple[str, str] | None:
        """Returns name and beginning of the arguments of an incomplete call; None if not known, or not supported."""
        return None


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


class ToolCallParser:
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
