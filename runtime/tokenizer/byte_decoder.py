"""Bytes and character offsets of token ids, from the ``decoder`` of tokenizer.json.

Incremental detokenization must cost only what the new ids cost. Therefore a decoder is reduced to bytes per id and a
rule for the first id. Text is those bytes as UTF-8, with invalid sequences replaced by U+FFFD.
"""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from runtime.errors import ConfigError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_Step = Callable[[str, bool], str]  # token string, whether it is the first -> its text


class TokenByteDecoder:
    """Decodes single token ids to bytes. Unknown ids have none."""

    def __init__(
        self, tokens: Mapping[int, str], decoder: Mapping[str, Any] | None, special: Collection[int] = ()
    ) -> None:
        """Reads a decoder.

        Args:
            tokens: Id -> string of the vocabulary.
            decoder: The ``decoder`` of tokenizer.json.
            special: Ids of special tokens, which `visible` leaves out.

        Raises:
            ConfigError: The decoder cannot be reduced to bytes per token.
        """
        self._tokens = tokens
        self._special = special
        self._hidden: frozenset[int] = frozenset()  # special tokens without bytes in this decoder
        self._visible: dict[tuple[str, ...], TokenByteDecoder] = {}
        self._steps: list[_Step] = []
        self._byte_level = self._byte_fallback = False
        self._fused = False
        # A character, and the number of its occurrences that are stripped from the start of a text.
        self._strip: tuple[str, int] | None = None
        self._read(decoder)
        self._cache = _Cache(self)
        self._continues = False

    def __call__(self, token: int, first: bool = False) -> bytes:
        """Returns the bytes of one id. `first`: it begins a text."""
        return self._bytes(token, True) if first and not self._continues else self._cache[token]

    def join(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of ids that continue a text."""
        return b"".join(map(self._cache.__getitem__, ids))

    def begin(self, ids: Sequence[int]) -> bytes | None:
        """Returns the bytes of ids that begin a text; None if none of them is known, as those do not begin it."""
        for n, token in enumerate(ids):
            if token in self:
                return self(token, first=True) + self.join(ids[n + 1 :])
        return None

    def visible(self, marks: tuple[str, ...] = ()) -> TokenByteDecoder:
        """Returns a decoder of output text, in which only special tokens that are part of `marks` have bytes."""
        found = self._visible.get(marks)
        if found is None:
            found = copy.copy(self)
            found._cache = _Cache(found)
            found._hidden = frozenset(id for id in self._special if not any(self._tokens[id] in mark for mark in marks))
            self._visible[marks] = found
        return found

    def continuing(self) -> TokenByteDecoder:
        """Returns a decoder of text that continues other text: the first token keeps its leading space."""
        found = copy.copy(self)
        found._continues = True
        return found

    def max_token_bytes(self) -> int:
        """Returns the bytes of the longest token if every byte is in some token, else 0."""
        if not (self._byte_level or self._byte_fallback):
            return 0
        return max(len(self._bytes(token, False)) for token in self._tokens)

    def prefix_stripper(self) -> PrefixStripper:
        """Returns a stripper of the leading characters that the decoder removes from a text."""
        return PrefixStripper(*(self._strip or ("", 0))) if not self._continues else PrefixStripper("", 0)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of `ids`."""
        return self.prefix_stripper()((self.begin(list(ids)) or b"").decode("utf-8", "replace"))

    def __contains__(self, token: int) -> bool:
        return token in self._tokens and token not in self._hidden

    def _bytes(self, token: int, first: bool) -> bytes:
        text = self._tokens.get(token)
        if text is None or token in self._hidden:
            return b""
        if self._byte_level:
            if all(char in _CHAR_TO_BYTE for char in text):
                return bytes(_CHAR_TO_BYTE[char] for char in text)
            return text.encode("utf-8", "replace")
        for step in self._steps:
            text = step(text, first)
        if self._byte_fallback and (byte := _BYTE.fullmatch(text)):
            return bytes([int(byte[1], 16)])
        return text.encode("utf-8", "replace")

    def _read(self, decoder: Mapping[str, Any] | None) -> None:
        if decoder is None:  # without a decoder, the tokenizers library joins tokens with spaces
            self._steps.append(lambda text, first: text if first else " " + text)
            return
        parts: Sequence[Mapping[str, Any]] = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
        for part in parts:
            if not self._add(part) or (self._byte_level and len(parts) > 1):
                raise ConfigError(f"tokenizer.json: its decoder {part.get('type')!r} is not supported in this place")

    def _add(self, part: Mapping[str, Any]) -> bool:
        match part.get("type"):
            case "ByteLevel":
                self._byte_level = True
            case "ByteFallback":
                self._byte_fallback = True
            case "Fuse":
                self._fused = True
            case "Replace" if "String" in part["pattern"] and not self._byte_fallback and not self._fused:
                old, new = part["pattern"]["String"], part["content"]
                self._steps.append(lambda text, first: text.replace(old, new))
            case "Strip" if self._fused and not part["stop"] and self._strip is None:
                self._strip = (part["content"], part["start"])
            case "Metaspace" if not self._byte_fallback and not self._fused:
                mark = part["replacement"]
                scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
                drop = scheme != "never"
                self._steps.append(lambda text, first: text.replace(mark, "" if first and drop else " "))
            case _:
                return False
        return True


class _Cache(dict[int, bytes]):
    """The bytes of each known id that does not begin a text. It is filled as ids are read."""

    def __init__(self, decoder: TokenByteDecoder) -> None:
        super().__init__()
        self._decoder = decoder

    def __missing__(self, token: int) -> bytes:
        found = self._decoder._bytes(token, False)
        if token in self._decoder:  # clients may send any number of others
            self[token] = found
        return found


class PrefixStripper:
    """Strips up to `count` leading `char` from a text that is passed in pieces."""

    def __init__(self, char: str, count: int) -> None:
        self._char, self._left = char, count

    def __call__(self, text: str) -> str:
        if not self._left:
            return text
        dropped = min(self._left, len(text) - len(text.lstrip(self._char)))
        self._left = self._left - dropped if dropped == len(text) else 0
        return text[dropped:]


def _char_to_byte() -> dict[str, int]:
    """Returns GPT-2's printable alphabet of bytes: printable Latin-1 maps to itself, the rest to U+0100 and up."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


_CHAR_TO_BYTE = _char_to_byte()


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
