"""`qwen3_coder`: tags, each on a line.

A call is ``<tool_call>``, ``<function=NAME>``, per argument ``<parameter=KEY>``, its value and ``</parameter>``, then
``</function>`` and ``</tool_call>``. This is the format of Qwen3-Coder and, by their chat template, of Nemotron 3 and
its derivatives. Values are plain text: the tool's schema determines which of them are read as JSON.
`ToolCallParser` in `runtime/parsers/tool_call_parser.py` reads each call with `Qwen3CoderToolParser`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runtime.parsers import formats
from runtime.parsers.argument_types import ArgumentTypes
from runtime.parsers.formats import NotACall, ParsedCall, ToolParser

_OPENS, _CLOSES = "<tool_call>", "</tool_call>"
_BEGINS, _ENDS = "<function=", "</function>"
_CALL = re.compile(r"\s*<function=([^>\s]{1,256})>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,256})>")
_VALUE_ENDS = "</parameter>"
# What can end a value, or shows that a value without its end tag has ended.
_TAG_IN_VALUE = re.compile(rf"{_VALUE_ENDS}|{_PARAMETER.pattern}|{_ENDS}\s{{0,64}}(?:{_CLOSES}|{_BEGINS})|{_OPENS}")
# The beginnings of these, and of those between values, at the end of the text.
_PARTIAL_TAG = re.compile(r"<(?:/?[a-z_]*|parameter=[^<>\n]{0,256}|/function>\s{0,64}(?:<?/?[a-z_]*))\Z")


class Qwen3CoderToolParser(ToolParser):
    """Reads a call tag by tag. A value without its end tag ends where the next parameter begins, or with the call."""

    def __init__(self, tools: Sequence[formats.Tool]) -> None:
        super().__init__(tools)
        self._name = ""
        self._types = ArgumentTypes([], {})
        self._arguments: dict[str, Any] = {}
        self._at = 0  # read so far
        self._key: str | None = None  # parameter whose value is open, from `_at`
        self._searched = 0  # no tag of the value is before
        self._end: int | None = None  # where the call may have ended inside the open value

    def feed(self, text: str) -> ParsedCall | NotACall | None:
        self._text += text
        if not self._name:
            found = _CALL.match(self._text)
            if found is None:
                return None if _may_become_call(self._text) else NotACall()
            self._name, self._at = found[1], found.end()
            self._types = ArgumentTypes.of_tool(self._name, self.tools)
        while True:
            before = self._at, self._key
            result = self._read_tag() if self._key is None else self._read_value()
            if result is not None or before == (self._at, self._key):
                return result

    def end(self) -> ParsedCall | None:
        if self._key is None:
            return None
        text, end = self._text.rstrip(), self._end
        if end is None and text.endswith(_ENDS):
            end = len(text) - len(_ENDS)
        result = None if end is None or end < self._at else self._end_in_value(end)
        return result if isinstance(result, ParsedCall) else None

    def _read_tag(self) -> ParsedCall | NotACall | None:
        """Reads the tag between values."""
        rest = self._text[self._at :].lstrip()
        start = len(self._text) - len(rest)
        if found := _PARAMETER.match(rest):
            self._key, self._at, self._end = found[1], start + found.end(), None
            self._searched = self._at
            return None
        if rest.startswith(_ENDS):
            return self._call(start + len(_ENDS))
        if rest.startswith(_CLOSES):
            return self._call(start)
        return None if not rest or _PARTIAL_TAG.match(rest) else NotACall()

    def _read_value(self) -> ParsedCall | NotACall | None:
        """Reads up to the end of the open value, if it is there."""
        while found := _TAG_IN_VALUE.search(self._text, self._searched):
            self._searched = found.end()
            tag = found[0]
            if tag == _VALUE_ENDS:
                return self._close_value(found.start(), found.end())
            if tag.startswith(_ENDS):
                self._end = found.start() if self._end is None else self._end
                self._searched = found.start() + len(_ENDS)
            elif self._end is not None:
                return self._end_in_value(self._end)
            elif tag != _OPENS and self._types.has_property(found[1]):
                return self._close_value(found.start(), found.start())
        partial = _PARTIAL_TAG.search(self._text, self._searched)
        self._searched = len(self._text) if partial is None else partial.start()
        return None

    def _close_value(self, end: int, at: int) -> NotACall | None:
        """Ends the open value, whose text ends at `end`, and continues at `at`."""
        assert self._key is not None
        text = self._text[self._at : end].removeprefix("\n").removesuffix("\n")
        try:
            self._arguments[self._key] = self._types.of_property(self._key).read(text)
        except formats.NestedTooDeeplyError:
            return NotACall()
        self._key, self._at = None, at
        return None

    def _end_in_value(self, end: int) -> ParsedCall | NotACall | None:
        """Ends the call inside the open value, at its end tag."""
        return self._close_value(end, end) or self._call(end + len(_ENDS))

    def _call(self, end: int) -> ParsedCall | NotACall:
        try:
            return ParsedCall(self._name, formats.dump_json(self._arguments), rest=self._text[end:])
        except ValueError:
            return NotACall()


def _may_become_call(text: str) -> bool:
    begun = text.lstrip()
    name = begun[len(_BEGINS) :]
    return _BEGINS.startswith(begun[: len(_BEGINS)]) and len(name) <= 256 and not re.search(r"[>\s]", name)


QWEN3_CODER = formats.ToolFormat(
    key="qwen3_coder",
    opens=_OPENS,
    closes=_CLOSES,
    strays=(_ENDS, _VALUE_ENDS),
    begins=_BEGINS,
    begins_alone=True,
    name_between=(rf"[ \t\r\n]{{0,8}}{_BEGINS}", ">"),
    parser=Qwen3CoderToolParser,
)
formats.register_tool_format(QWEN3_CODER)
