"""The text of one answer as its tokens become stable, a few at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from runtime.tokenizer.token_offsets import Offsets
from runtime.tokenizer.tokenizer import Tokenizer


class Preamble(Protocol):
    """Splits reasoning from the beginning of a text that comes in pieces: ``runtime.parsers.reasoning.Thought``.

    Attributes:
        taken: Characters so far of the reasoning and its marks.
    """

    taken: int

    def push(self, text: str) -> tuple[str, str]: ...
    def finish(self) -> tuple[str, str]: ...


class Answer:
    """Turns stable token ids into stable text, and ends it before a stop string.

    Withheld until more is known: an incomplete UTF-8 sequence, and text that may be the beginning of a stop string
    (docs/server.md#streaming). What `push` and `finish` return, concatenated, is `text`, however the ids were split
    into pushes. If several stop strings occur, the one that is complete first counts (of two at once, the longer).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        most: int | None = None,
        marks: tuple[str, ...] = (),
        preamble: Preamble | None = None,
        *,
        continues: bool = False,
    ) -> None:
        """
        Args:
            tokenizer: Decodes the ids.
            stop: The stop strings.
            most: Tokens that it has room for; what comes after them is not the answer's.
            marks: What tells parts apart; special tokens that are no part of these are left out of the text.
            preamble: Finds the reasoning, in which stop strings are not searched. None: all of the text is searched.
            continues: The text continues that of the prompt.
        """
        self._preamble = preamble
        self._pending = ""  # text that the preamble may still take
        pieces = tokenizer.pieces.spoken(marks)
        self._pieces = pieces.continuing() if continues else pieces
        self._strip = self._pieces.start()
        self._stop = tuple(stop)
        self._longest = max((len(s) for s in self._stop), default=0)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._most = most
        self._first = True
        self._parts: list[str] = []  # text that was returned
        self._held = ""
        self._done = False
        self.stopped_by: str | None = None  # the stop string that ended it

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    @property
    def full(self) -> bool:
        """Whether it has all the tokens that it has room for."""
        return len(self._ids) == self._most

    @property
    def text(self) -> str:
        """All the text returned so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def token_ids(self) -> list[int]:
        """The ids so far; once stopped, those whose text ends before the stop string begins."""
        return list(self._ids)

    def push(self, ids: Iterable[int]) -> str:
        """Add stable ids; the text that is now certain. Ids after a stop string are dropped."""
        if self._done:
            return ""
        ids = list(ids) if self._most is None else list(ids)[: self._most - len(self._ids)]
        self._ids += ids
        return self._release(self._strip(self._utf8.decode(self._bytes(ids))))

    def _bytes(self, ids: list[int]) -> bytes:
        if self._first:  # ids that name no token have no bytes, and do not begin the text either
            known = next((n for n, token in enumerate(ids) if token in self._pieces), len(ids))
            if known == len(ids):
                return b""
            self._first = False
            return self._pieces(ids[known], first=True) + b"".join(map(self._pieces, ids[known + 1 :]))
        return b"".join(map(self._pieces, ids))

    def finish(self) -> str:
        """The withheld rest, at the end of the answer; after it nothing more comes."""
        if self._done:
            return ""
        rest = self._strip(self._utf8.decode(b"", final=True))
        text = self._release(rest)
        if self._preamble is not None:
            taken = self._preamble.taken
            _, fresh = self._preamble.finish()
            text += self._pass(self._preamble.taken - taken)
            self._preamble = None
            text += self._release(fresh)
        if not self.stopped:
            text += self._held
            self._parts.append(self._held)
        self._held = ""
        self._done = True
        return text

    def _release(self, fresh: str) -> str:
        """Look for stop strings in what is held and `fresh`; return what cannot be part of one, and reasoning."""
        if self._preamble is not None:
            self._pending += fresh
            taken = self._preamble.taken
            _, fresh = self._preamble.push(fresh)
            passed = self._pass(self._preamble.taken - taken)
            if not fresh:
                return passed
            self._preamble = None
            return passed + self._release(fresh)
        window = self._held + fresh
        found = [(at + len(s), at) for s in self._stop if (at := window.find(s)) >= 0]
        if found:
            end, at = min(found)
            self.stopped_by = window[at:end]
            self._cut(len(self.text) + at)
            text, self._held = window[:at], ""
        else:
            keep = self._possible_stop(window)
            text, self._held = window[: len(window) - keep], window[len(window) - keep :]
        if text:
            self._parts.append(text)
        return text

    def _pass(self, size: int) -> str:
        """Returns the first `size` pending characters, which are reasoning."""
        passed, self._pending = self._pending[:size], self._pending[size:]
        if passed:
            self._parts.append(passed)
        return passed

    def _possible_stop(self, window: str) -> int:
        """Length of the longest end of `window` that is the beginning of a stop string."""
        for size in range(min(self._longest - 1, len(window)), 0, -1):
            tail = window[-size:]
            if any(s.startswith(tail) for s in self._stop):
                return size
        return 0

    def tokens_within(self, length: int) -> int:
        """How many ids have text that ends within the first `length` characters, less than there may be."""
        places = Offsets(self._pieces).push(self._ids)
        return next((n for n, place in enumerate(places) if place.end > length), len(places))

    def _cut(self, length: int) -> None:
        """End the answer after `length` characters, less than there are: with the ids whose text ends by then."""
        self._done = True
        del self._ids[self.tokens_within(length) :]
