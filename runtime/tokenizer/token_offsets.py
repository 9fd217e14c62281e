"""Character offsets of tokens in their text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import NamedTuple

from runtime.tokenizer.token_bytes import TokenByteDecoder


class TokenOffset(NamedTuple):
    """Offsets of a token.

    Attributes:
        start: Complete characters of the text before it.
        end: Characters of the text with it, including an incomplete one.
    """

    start: int
    end: int


class OffsetTracker:
    """Computes the offsets of tokens that are pushed in pieces.

    All tokens of one character have the offsets of that character.
    """

    def __init__(self, pieces: TokenByteDecoder) -> None:
        self._pieces = pieces
        self._strip = pieces.prefix_stripper()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True
        self._complete = 0

    def push(self, ids: Iterable[int]) -> list[TokenOffset]:
        """Returns the offsets of further tokens."""
        return [self._offset(token) for token in ids]

    def _offset(self, token: int) -> TokenOffset:
        start = self._complete
        if token in self._pieces:
            self._complete += len(self._strip(self._utf8.decode(self._pieces(token, first=self._first))))
            self._first = False
        # an incomplete sequence becomes one character later
        return TokenOffset(start, self._complete + bool(self._utf8.getstate()[0]))
