"""Where each token's text lies in the text of all of them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import NamedTuple

from runtime.tokenizer.token_bytes import Pieces


class Place(NamedTuple):
    """Of a token: characters of the text before it that are complete, and of the text with it, an incomplete one
    included."""

    start: int
    end: int


class Offsets:
    """Counts the characters of a text whose tokens come a few at a time. A token that goes on with a character which
    another began has the place of that character."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._strip = pieces.start()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True
        self._complete = 0

    def push(self, ids: Iterable[int]) -> list[Place]:
        """The places of further tokens."""
        return [self._place(token) for token in ids]

    def _place(self, token: int) -> Place:
        start = self._complete
        if token in self._pieces:
            self._complete += len(self._strip(self._utf8.decode(self._pieces(token, first=self._first))))
            self._first = False
        # the bytes of an incomplete sequence become one character in any case, though not yet
        return Place(start, self._complete + bool(self._utf8.getstate()[0]))
