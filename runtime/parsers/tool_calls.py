"""Parses tool calls out of generated text."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from runtime.parsers.events import Arguments, CallStart, Delta, Text
from runtime.parsers.formats import CallReader, NotACall, ParsedCall, Tool, ToolFormat
from runtime.parsers.partial_match import partial_match_len

MAX_FAILED_CALLS = 32  # false starts after which the rest is text: each may be read to its end again


class ToolCallParser:
    """Incremental parser of text with tool calls.

    Text that may be the beginning of a call is withheld, and becomes text if it is not. White space between text and a
    call belongs to the call.

    Attributes:
        num_complete: Number of complete calls.
    """

    def __init__(
        self,
        made: ToolFormat,
        available_tools: Sequence[Tool],
        *,
        exact: bool = False,
        early: bool = True,
        forced: bool = False,
        single: bool = False,
    ) -> None:
        """Creates a parser.

        Args:
            made: Format of the calls.
            available_tools: The tools of the request.
            exact: Whether a grammar constrains calls; arguments are then passed on unchanged.
            early: Whether to stream arguments of `exact` calls.
            forced: Whether the output consists of calls only.
            single: Whether to ignore everything after the first call.
        """
        self._format, self._available_tools, self._exact, self._single = made, available_tools, exact, single
        self._early, self._forced = early, forced
        self._held = ""  # unread text
        self._reader: CallReader | None = None  # reader of the open call
        self._opening = self._read = ""  # its start marker with the space before it, and the text passed to the reader
        self._marks = (made.closes, *made.strays)
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
        while self._held and not self._over and self._step(found):
            pass
        return found

    def finish(self, cut: bool) -> list[Delta]:
        """Returns the deltas of withheld text, at the end of the output; see `ChatOutputParser.finish`."""
        found: list[Delta] = []
        if self._over or self._closing:
            return found
        if self._forced:  # the rest is an incomplete call
            return found
        if self._reader is None:
            self._text(found, self._held)
        elif self._passed is None and not cut:
            self._text(found, self._opening + self._read)
        return found

    @property
    def _over(self) -> bool:
        return self._single and self.num_complete > 0

    def _step(self, found: list[Delta]) -> bool:
        """Reads up to the next marker; returns False if more text is needed."""
        if self._reader is not None:
            return self._within(found, self._reader)
        return self._close() if self._closing else self._between(found)

    def _between(self, found: list[Delta]) -> bool:
        if self._failed == MAX_FAILED_CALLS:
            text, self._held = self._held, ""
            self._text(found, text)
            return False
        at = self._held.find(self._format.opens)
        sure = len(self._held) - partial_match_len(self._format.opens, self._held) if at < 0 else at
        text = self._held[:sure].rstrip()
        self._text(found, text)
        self._held = self._held[len(text) :]
        if at < 0:
            return False
        end = at - len(text) + len(self._format.opens)
        self._opening, self._held = self._held[:end], self._held[end:]
        self._reader, self._read, self._passed = self._format.reader(self._available_tools), "", None
        return True

    def _within(self, found: list[Delta], reader: CallReader) -> bool:
        fresh, self._held = self._held, ""
        self._read += fresh
        outcome = reader.feed(fresh)
        partial = reader.partial() if self._exact else None
        if partial is not None and (self._early or isinstance(outcome, ParsedCall)):
            self._pass(found, *partial)
        if outcome is None:
            return False
        self._reader = None
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
