"""`gemma4`: ``<|tool_call>call:NAME{key:value,...}<tool_call|>``, strings between ``<|"|>``, reasoning in a channel.

The format of Gemma 4 and DiffusionGemma, by their published chat template.
`ToolCallParser` in `runtime/parsers/tool_call_parser.py` reads each call with `Gemma4ToolParser`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runtime.parsers import formats
from runtime.parsers.formats import NotACall, ParsedCall, ToolParser

OPENS, CLOSES, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME = re.compile(r"\s*call:\s*([\w.:/-]+)\s*(?=\{)")
_KEY = re.compile(r'\s*([^\s:{}\[\],<>"]+)\s*:')
_UNQUOTED = re.compile(r"[^,:{}\[\]]+")
_BEGINNING = "call:"
# markers outside of a string, and within one
_MARK = (re.compile(re.escape(QUOTE) + "|" + re.escape(CLOSES)), re.compile(re.escape(QUOTE)))


class Gemma4ToolParser(ToolParser):
    """Waits for the end marker outside of strings."""

    def __init__(self, tools: Sequence[formats.Tool]) -> None:
        super().__init__(tools)
        self._at = 0  # searched so far
        self._quoted = False

    def feed(self, text: str) -> ParsedCall | NotACall | None:
        self._text += text
        if not _BEGINNING.startswith(self._text.lstrip()[: len(_BEGINNING)]):
            return NotACall()
        while (mark := _MARK[self._quoted].search(self._text, self._at)) is not None:
            if mark[0] == CLOSES:
                call = _call(self._text[: mark.start()])
                return NotACall() if call is None else ParsedCall(*call, rest=self._text[mark.start() :])
            self._quoted = not self._quoted
            self._at = mark.end()
        self._at = max(self._at, len(self._text) - len(CLOSES) + 1)
        return None


def _call(text: str) -> tuple[str, str] | None:
    found = _NAME.match(text)
    if found is None:
        return None
    try:
        value, end = _object(text, found.end(), 0)
        return None if text[end:].strip() else (found[1], formats.dump_json(value))
    except (ValueError, IndexError):
        return None


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Returns the value that begins at `at`, and the offset after it. Raises ValueError, IndexError."""
    if depth > formats.MAX_DEPTH:
        raise formats.NestedTooDeeplyError(formats.MAX_DEPTH)
    at = _space(text, at)
    if text.startswith(QUOTE, at):
        return _string(text, at)
    if text[at] == "{":
        return _object(text, at, depth + 1)
    if text[at] == "[":
        return _list(text, at, depth + 1)
    found = _UNQUOTED.match(text, at)
    if found is None:
        raise ValueError(text[at])
    return _parse_unquoted(found[0].strip()), found.end()


def _parse_unquoted(word: str) -> Any:
    """Parses an unquoted value: number, boolean or null; anything else is text without its quotes."""
    known = {"true": True, "false": False, "null": None, "none": None}
    if word in known:
        return known[word]
    for kind in (int, float):
        if re.fullmatch(r"-?[0-9][0-9.eE+-]{0,30}", word):
            try:
                return kind(word)
            except ValueError:
                continue
    if not word or '"' in word or "<|" in word:
        raise ValueError(word)
    return word


def _string(text: str, at: int) -> tuple[str, int]:
    end = text.index(QUOTE, at + len(QUOTE))
    return text[at + len(QUOTE) : end], end + len(QUOTE)


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    made: dict[str, Any] = {}
    at = _space(text, at + 1)
    while text[at] != "}":
        if text.startswith(QUOTE, at):
            key, at = _string(text, at)
            at = _space(text, at)
            if text[at] != ":":
                raise ValueError(text[at])
            at += 1
        else:
            found = _KEY.match(text, at)
            if found is None:
                raise ValueError(text[at])
            key, at = found[1], found.end()
        made[key], at = _value(text, at, depth)
        at = _next(text, at, "}")
    return made, at + 1


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    made: list[Any] = []
    at = _space(text, at + 1)
    while text[at] != "]":
        value, at = _value(text, at, depth)
        made.append(value)
        at = _next(text, at, "]")
    return made, at + 1


def _next(text: str, at: int, end: str) -> int:
    """Returns the offset after a comma, or that of the closing bracket."""
    at = _space(text, at)
    if text[at] == ",":
        return _space(text, at + 1)
    if text[at] != end:
        raise ValueError(text[at])
    return at


def _space(text: str, at: int) -> int:
    while text[at].isspace():
        at += 1
    return at


GEMMA4 = formats.ToolFormat(key="gemma4", opens=OPENS, closes=CLOSES, quotes=QUOTE, parser=Gemma4ToolParser)
formats.register_tool_format(GEMMA4)
formats.register_reasoning_format(formats.ReasoningFormat(key="gemma4", opens="<|channel>thought", closes="<channel|>"))
