"""What bytes each token id stands for, from the ``decoder`` part of tokenizer.json read as data.

An answer's text grows a few ids at a time, and must cost what those ids cost. So a decoder is reduced to bytes per id
plus a rule for the first id; text is those bytes as UTF-8, invalid sequences replaced by U+FFFD.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from runtime.errors import ConfigError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_Step = Callable[[str, bool], str]  # token's text, whether it is the first -> its text


class Pieces:
    """Bytes of token ids; ids that name no token have none."""

    def __init__(
        self, tokens: Mapping[int, str], decoder: Mapping[str, Any] | None, special: Collection[int] = ()
    ) -> None:
        """`tokens` maps ids to the vocabulary's strings; `special`: what an answer's text leaves out. Raises
        ConfigError for a decoder that cannot be reduced."""
        self._tokens = tokens
        self._special = special
        self._silent: frozenset[int] = frozenset()  # of `special`, what has no bytes here
        self._spoken: dict[tuple[str, ...], Pieces] = {}
        self._steps: list[_Step] = []
        self._byte_level = self._byte_fallback = False
        self._fused = False
        self._strip: tuple[str, int] | None = None  # what goes from the start of the whole text
        self._read(decoder)
        self._cache: dict[int, bytes] = {}
        self._continues = False

    def __call__(self, token: int, first: bool = False) -> bytes:
        """The bytes of one id; `first` says that it begins a text."""
        if first and not self._continues:
            return self._bytes(token, True)
        found = self._cache.get(token)
        if found is None:
            found = self._cache[token] = self._bytes(token, False)
        return found

    def spoken(self, marks: tuple[str, ...] = ()) -> Pieces:
        """Of an answer's text, in which special tokens have no bytes but for those that `marks` are made of."""
        found = self._spoken.get(marks)
        if found is None:
            found = copy.copy(self)
            found._cache = {}
            found._silent = frozenset(id for id in self._special if not any(self._tokens[id] in mark for mark in marks))
            self._spoken[marks] = found
        return found

    def continuing(self) -> Pieces:
        """Of text that continues other text: its first token keeps the space that the first of a text loses."""
        found = copy.copy(self)
        found._continues = True
        return found

    def longest(self) -> int:
        """Bytes of the longest token where every byte of a text is some token's, else 0."""
        if not (self._byte_level or self._byte_fallback):
            return 0
        return max(len(self._bytes(token, False)) for token in self._tokens)

    def start(self) -> Stripper:
        """What drops the leading characters that the decoder takes off a whole text."""
        return Stripper(*(self._strip or ("", 0))) if not self._continues else Stripper("", 0)

    def text(self, ids: Iterable[int]) -> str:
        """The whole text of `ids`."""
        data = b"".join(self(token, first=i == 0) for i, token in enumerate(i for i in ids if i in self))
        return self.start()(data.decode("utf-8", "replace"))

    def __contains__(self, token: int) -> bool:
        return token in self._tokens and token not in self._silent

    def _bytes(self, token: int, first: bool) -> bytes:
        text = self._tokens.get(token)
        if text is None or token in self._silent:
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
        if decoder is None:  # the tokenizers library joins the tokens of such a file with spaces
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


class Stripper:
    """Takes up to `count` leading `char` off a text that comes in parts."""

    def __init__(self, char: str, count: int) -> None:
        self._char, self._left = char, count

    def __call__(self, text: str) -> str:
        while self._left and text:
            if text[0] != self._char:
                self._left = 0
                break
            text = text[1:]
            self._left -= 1
        return text


def _char_to_byte() -> dict[str, int]:
    """GPT-2's visible alphabet of bytes: printable Latin-1 stands for itself, the rest follows from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


_CHAR_TO_BYTE = _char_to_byte()
