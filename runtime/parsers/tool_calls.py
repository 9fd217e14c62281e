"""Calls of tools in an answer's text, told from what stands around them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from runtime.parsers.events import Arguments, CallStart, Delta, Text
from runtime.parsers.formats import CallReader, Done, Failed, Tool, ToolFormat
from runtime.parsers.partial_match import beginning_of

MOST_FAILED = 32  # beginnings that came to no call; what follows more is text: each may be read to the end again


class Calls:
    """Takes text in, a piece at a time.

    What may be the beginning of a call is held back; what turns out to be none is text like any other. Space between
    a text and a call goes with the call.

    Attributes:
        complete: calls that have ended.
    """

    def __init__(
        self,
        made: ToolFormat,
        offered: Sequence[Tool],
        *,
        exact: bool = False,
        early: bool = True,
        forced: bool = False,
        single: bool = False,
    ) -> None:
        """`exact`: a grammar holds calls to their form, so that arguments stay as they are written, and, if
        `early`, are passed on as they come. `forced`: there is nothing but calls. `single`: nothing is read after the
        first."""
        self._format, self._offered, self._exact, self._single = made, offered, exact, single
        self._early, self._forced = early, forced
        self._held = ""  # not read yet
        self._reader: CallReader | None = None  # of the call that is open
        self._opening = self._read = ""  # its mark, with space before it, and what the reader was given
        self._marks = (made.closes, *made.strays)
        self._closing = False  # a call has ended, and the marks that end one may follow
        self._bare = False  # nothing but space came since the last call
        self._begun = 0  # calls that were told of
        self._failed = 0  # beginnings that came to none
        self._passed: int | None = None  # characters of the open call's arguments that were; None: it was not told of
        self.complete = 0

    def push(self, text: str) -> list[Delta]:
        """What is certain now."""
        found: list[Delta] = []
        self._held += text
        while self._held and not self._over and self._step(found):
            pass
        return found

    def finish(self, cut: bool) -> list[Delta]:
        """What was held, at the end of the answer; see ``Parts.finish``."""
        found: list[Delta] = []
        if self._over or self._closing:
            return found
        if self._forced:  # what is left is the beginning of a call
            return found
        if self._reader is None:
            self._text(found, self._held)
        elif self._passed is None and not cut:
            self._text(found, self._opening + self._read)
        return found

    @property
    def _over(self) -> bool:
        return self._single and self.complete > 0

    def _step(self, found: list[Delta]) -> bool:
        """Go on by one mark; False where more has to come first."""
        if self._reader is not None:
            return self._within(found, self._reader)
        return self._close() if self._closing else self._between(found)

    def _between(self, found: list[Delta]) -> bool:
        if self._failed == MOST_FAILED:
            text, self._held = self._held, ""
            self._text(found, text)
            return False
        at = self._held.find(self._format.opens)
        sure = len(self._held) - beginning_of(self._format.opens, self._held) if at < 0 else at
        text = self._held[:sure].rstrip()
        self._text(found, text)
        self._held = self._held[len(text) :]
        if at < 0:
            return False
        end = at - len(text) + len(self._format.opens)
        self._opening, self._held = self._held[:end], self._held[end:]
        self._reader, self._read, self._passed = self._format.reader(self._offered), "", None
        return True

    def _within(self, found: list[Delta], reader: CallReader) -> bool:
        fresh, self._held = self._held, ""
        self._read += fresh
        outcome = reader.feed(fresh)
        partial = reader.partial() if self._exact else None
        if partial is not None and (self._early or isinstance(outcome, Done)):
            self._pass(found, *partial)
        if outcome is None:
            return False
        self._reader = None
        if isinstance(outcome, Failed):
            self._failed += 1
            if self._passed is None:
                self._text(found, self._opening)
                self._held = self._read
            return True
        self._end(found, outcome)
        return True

    def _end(self, found: list[Delta], call: Done) -> None:
        if self._passed is None:
            self._pass(found, call.name, call.arguments)
        self.complete += 1
        self._held = call.rest
        self._closing = self._bare = True

    def _close(self) -> bool:
        """Drops what ends a call. Models repeat it, above all after calls without arguments, and it is no text then."""
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
        """Tell of the open call what was not told yet."""
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
