"""`gemma4`: ``<|tool_call>call:NAME{key:value,...}<tool_call|>``, strings between ``<|"|>``, reasoning in a channel.

The format of Gemma 4 and DiffusionGemma, by their published chat template.
`ToolCallParser` in `runtime/parsers/tool_call_parser.py` reads each call with `Gemma4ToolParser`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runtime.parsers import formats
from runtime.parsers.argument_types import ArgumentTypes, parse_python
from runtime.parsers.formats import NotACall, ParsedCall, ToolParser

OPENS, CLOSES, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME = re.compile(r"\s*call:\s*([\w.:/-]+?)\s*(?=[{(])")
_KEY = re.compile(r'\s*([^\s:={}()\[\],<>"]+)\s*([:=])')
# Text with colons, in a list up to the next comma, else up to the next key.
_UNQUOTED_ITEM = re.compile(r"[^,{}\[\]]+")
_UNQUOTED_TEXT = re.compile(r"(?:[^,{}\[\]]|,(?!\s*[^\s:={}\[\],]{1,64}\s*[:=]))+")
_PYTHON_STRING = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)
_BEGINNING = "call:"
# markers outside of a string, and within one
_MARK = (re.compile("|".join(map(re.escape, (QUOTE, CLOSES, OPENS)))), re.compile(re.escape(QUOTE)))


class Gemma4ToolParser(ToolParser):
    """Waits for the end marker outside of strings, or the start of the next call."""

    def __init__(self, tools: Sequence[formats.Tool]) -> None:
        super().__init__(tools)
        self._at = 0  # searched so far
        self._quoted = False

    def feed(self, text: str) -> ParsedCall | NotACall | None:
        self._text += text
        if not _BEGINNING.startswith(self._text.lstrip()[: len(_BEGINNING)]):
            return NotACall()
        while (mark := _MARK[self._quoted].search(self._text, self._at)) is not None:
            if mark[0] != QUOTE:
                call = _call(self._text[: mark.start()], self.tools)
                return NotACall() if call is None else ParsedCall(*call, rest=self._text[mark.start() :])
            self._quoted = not self._quoted
            self._at = mark.end()
        self._at = max(self._at, len(self._text) - len(CLOSES) + 1)
        return None

    def end(self) -> ParsedCall | None:
        call = _call(self._text, self.tools)
        return None if call is None else ParsedCall(*call, rest="")


def _call(text: str, tools: Sequence[formats.Tool]) -> tuple[str, str] | None:
    found = _NAME.match(text)
    if found is None:
        return None
    name, at = found[1], found.end()
    if text[at] == "(":
        begun = text.rstrip()
        if not begun.endswith(")"):
            return None
        text = f"{text[:at]}{{{begun[at + 1 : -1]}}}"
    try:
        value, end = _Reader(text).object(at, ArgumentTypes.of_tool(name, tools), 0)
        return None if text[end:].strip() else (name, formats.dump_json(value))
    except (ValueError, IndexError):
        return None


class _Reader:
    """Reads values. Methods return a value and the offset after it, and raise ValueError or IndexError.

    They also read what models write instead of the format: arguments in parentheses, other quotes, constants of Python,
    text without quotes that has colons or commas.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def value(self, at: int, types: ArgumentTypes, depth: int, in_list: bool = False) -> tuple[Any, int]:
        if depth > formats.MAX_DEPTH:
            raise formats.NestedTooDeeplyError(formats.MAX_DEPTH)
        at = self._space(at)
        if self.text.startswith(QUOTE, at):
            return self._string(at)
        if self.text[at] == "{":
            return self.object(at, types, depth + 1)
        if self.text[at] == "[":
            return self._list(at, types.of_items, depth + 1)
        if quoted := _PYTHON_STRING.match(self.text, at):
            return parse_python(quoted[0]), quoted.end()
        pattern = _UNQUOTED_ITEM if in_list else _UNQUOTED_TEXT
        found = pattern.match(self.text, at)
        if found is None:
            raise ValueError(self.text[at])
        word = found[0].strip()
        return types.read(word) if types.is_text else _parse_unquoted(word), found.end()

    def object(self, at: int, types: ArgumentTypes, depth: int) -> tuple[dict[str, Any], int]:
        made: dict[str, Any] = {}
        at = self._space(at + 1)
        while self.text[at] != "}":
            key, at = self._key(at)
            made[key], at = self.value(at, types.of_property(key), depth)
            at = self._next(at, "}")
        return made, at + 1

    def _key(self, at: int) -> tuple[str, int]:
        """Returns a key, and the offset after its colon."""
        if self.text.startswith(QUOTE, at):
            key, at = self._string(at)
        elif quoted := _PYTHON_STRING.match(self.text, at):
            key, at = parse_python(quoted[0]), quoted.end()
        else:
            found = _KEY.match(self.text, at)
            if found is None:
                raise ValueError(self.text[at])
            return found[1], found.end()
        at = self._space(at)
        if self.text[at] != ":":
            raise ValueError(self.text[at])
        return key, at + 1

    def _list(self, at: int, types: ArgumentTypes, depth: int) -> tuple[list[Any], int]:
        made: list[Any] = []
        at = self._space(at + 1)
        while self.text[at] != "]":
            value, at = self.value(at, types, depth, in_list=True)
            made.append(value)
            at = self._next(at, "]")
        return made, at + 1

    def _string(self, at: int) -> tuple[str, int]:
        end = self.text.index(QUOTE, at + len(QUOTE))
        return self.text[at + len(QUOTE) : end], end + len(QUOTE)

    def _next(self, at: int, end: str) -> int:
        """Returns the offset after a comma, or that of the closing bracket."""
        at = self._space(at)
        if self.text[at] == ",":
            return self._space(at + 1)
        if self.text[at] != end:
            raise ValueError(self.text[at])
        return at

    def _space(self, at: int) -> int:
        while self.text[at].isspace():
            at += 1
        return at


def _parse_unquoted(word: str) -> Any:
    """Parses an unquoted value: number, boolean or null; anything else is text without its quotes."""
    known = {"true": True, "True": True, "false": False, "False": False}
    if word in known:
        return known[word]
    if word in ("null", "none", "None"):
        return None
    for kind in (int, float):
        if re.fullmatch(r"-?[0-9][0-9.eE+-]{0,30}", word):
            try:
                return kind(word)
            except ValueError:
                continue
    if not word or '"' in word or "<|" in word:
        raise ValueError(word)
    return word


GEMMA4 = formats.ToolFormat(
    key="gemma4",
    opens=OPENS,
    closes=CLOSES,
    quotes=QUOTE,
    name_between=(r"[ \t\r\n]{0,8}call:[ \t\r\n]{0,8}", r"[ \t\r\n]{0,8}[{(]"),
    parser=Gemma4ToolParser,
)
formats.register_tool_format(GEMMA4)
formats.register_reasoning_format(formats.ReasoningFormat(key="gemma4", opens="<|channel>thought", closes="<channel|>"))
