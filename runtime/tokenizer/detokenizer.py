"""Incremental detokenization: converts stable token ids to stable text, and ends it before a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from runtime.request.output import TextBuilder
from runtime.tokenizer.byte_decoder import OffsetTracker
from runtime.tokenizer.tokenizer import Tokenizer


class ReasoningSplitter(Protocol):
    """Splits reasoning from the beginning of a text that is pushed in pieces.

    ``runtime.parsers.chat_output.ReasoningParser`` implements it.

    Attributes:
        consumed: Characters so far of the reasoning and its markers.
    """

    consumed: int

    def push(self, text: str) -> tuple[str, str]: ...
    def finish(self) -> tuple[str, str]: ...


class IncrementalDetokenizer(TextBuilder):
    """Converts stable token ids to stable text, and ends it before a stop string.

    Text is withheld while it is an incomplete UTF-8 sequence, or may be the beginning of a stop string
    (docs/guide/streaming.md). What `push` and `finish` return, concatenated, is `text`, however the ids were split.
    If several stop strings occur, the one that is complete first counts; of two at once, the longer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        marks: tuple[str, ...] = (),
        preamble: ReasoningSplitter | None = None,
        *,
        continues: bool = False,
    ) -> None:
        """
        Args:
            tokenizer: Decodes the ids.
            stop: The stop strings.
            max_tokens: Maximum number of tokens; further ids are dropped.
            marks: Markers of tool calls and reasoning. Other special tokens are left out of the text.
            preamble: Splits off the reasoning, in which stop strings are not searched. None: all text is searched.
            continues: The text continues that of the prompt.
        """
        super().__init__()
        self._preamble = preamble
        self._pending = ""  # text that may still be reasoning
        pieces = tokenizer.byte_decoder.visible(marks)
        self._pieces = pieces.continuing() if continues else pieces
        self._strip = self._pieces.prefix_stripper()
        self._stop = tuple(stop)
        self._longest = max((len(s) for s in self._stop), default=0)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._max_tokens = max_tokens
        self._first = True
        self._parts: list[str] = []  # returned text
        self._held = ""
        self._done = False

    @property
    def full(self) -> bool:
        return len(self.token_ids) == self._max_tokens

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def push(self, ids: Iterable[int]) -> str:
        """Adds stable ids; returns the text that is now certain. Ids after a stop string are dropped."""
        if self._done:
            return ""
        ids = list(ids) if self._max_tokens is None else list(ids)[: self._max_tokens - len(self.token_ids)]
        self.token_ids += ids
        return self._release(self._strip(self._utf8.decode(self._bytes(ids))))

    def _bytes(self, ids: list[int]) -> bytes:
        if not self._first:
            return self._pieces.join(ids)
        found = self._pieces.begin(ids)
        self._first = found is None
        return found or b""

    def finish(self) -> str:
        """Returns the withheld rest of the text, at the end of generation."""
        if self._done:
            return ""
        rest = self._strip(self._utf8.decode(b"", final=True))
        text = self._release(rest)
        if self._preamble is not None:
            taken = self._preamble.consumed
            _, fresh = self._preamble.finish()
            text += self._pass(self._preamble.consumed - taken)
            self._preamble = None
            text += self._release(fresh)
        if not self.stopped:
            text += self._held
            self._parts.append(self._held)
        self._held = ""
        self._done = True
        return text

    def _release(self, fresh: str) -> str:
        """Searches withheld and new text for stop strings; returns reasoning, and text that cannot be part of one."""
        if self._preamble is not None:
            self._pending += fresh
            taken = self._preamble.consumed
            _, fresh = self._preamble.push(fresh)
            passed = self._pass(self._preamble.consumed - taken)
            if not fresh:
                return passed
            self._preamble = None
            return passed + self._release(fresh)
        if not self._stop:
            if fresh:
                self._parts.append(fresh)
            return fresh
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
        """Returns the length of the longest suffix of `window` that is a proper prefix of a stop string."""
        for size in range(min(self._longest - 1, len(window)), 0, -1):
            tail = window[-size:]
            if any(s.startswith(tail) for s in self._stop):
                return size
        return 0

    def tokens_within(self, length: int) -> int:
        """Returns how many ids have text that ends within the first `length` characters; there are more characters."""
        offsets = OffsetTracker(self._pieces).push(self.token_ids)
        return next((n for n, offset in enumerate(offsets) if offset.end > length), len(offsets))

    def _cut(self, length: int) -> None:
        """Ends the text after `length` characters, and drops the ids whose text ends later."""
        self._done = True
        del self.token_ids[self.tokens_within(length) :]
