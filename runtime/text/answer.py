"""The text of one answer as its tokens become stable, a few at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from runtime.text.tokenizer import Tokenizer


class Answer:
    """Turns stable token ids into stable text, and ends it before a stop string.

    Withheld until more is known: an incomplete UTF-8 sequence, and text that may be the beginning of a stop string
    (runtime.md 3). What `push` and `finish` return, concatenated, is `text`, however the ids were split into pushes.
    Where several stop strings occur, the one that is complete first counts (of two at once, the longer).
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._pieces = tokenizer.pieces
        self._strip = tokenizer.pieces.start()
        self._stop = tuple(stop)
        self._longest = max((len(s) for s in self._stop), default=0)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._first = True
        self._parts: list[str] = []  # text that was returned
        self._held = ""
        self._done = False
        self.stopped = False

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
        ids = list(ids)
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
        if not self.stopped:
            text += self._held
            self._parts.append(self._held)
        self._held = ""
        self._done = True
        return text

    def _release(self, fresh: str) -> str:
        """Look for stop strings in what is held and `fresh`; return what cannot be part of one."""
        window = self._held + fresh
        found = [(at + len(s), at) for s in self._stop if (at := window.find(s)) >= 0]
        if found:
            at = min(found)[1]
            self._cut(len(self.text) + at)
            text, self._held = window[:at], ""
        else:
            keep = self._possible_stop(window)
            text, self._held = window[: len(window) - keep], window[len(window) - keep :]
        if text:
            self._parts.append(text)
        return text

    def _possible_stop(self, window: str) -> int:
        """Length of the longest end of `window` that is the beginning of a stop string."""
        for size in range(min(self._longest - 1, len(window)), 0, -1):
            tail = window[-size:]
            if any(s.startswith(tail) for s in self._stop):
                return size
        return 0

    def _cut(self, length: int) -> None:
        """End the answer after `length` characters, less than there are: with the ids whose text ends by then."""
        self.stopped = self._done = True
        strip, utf8 = self._pieces.start(), codecs.getincrementaldecoder("utf-8")("replace")
        characters = kept = 0
        first = True
        for token in self._ids:
            if token in self._pieces:
                characters += len(strip(utf8.decode(self._pieces(token, first=first))))
                first = False
            # the bytes of an incomplete sequence become one character in any case, though not yet
            if characters + bool(utf8.getstate()[0]) > length:
                break
            kept += 1
        del self._ids[kept:]
