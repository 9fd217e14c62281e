"""`hermes`: a call is a JSON object between tags, ``<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>``.

The format of Qwen's models and their derivatives (SDAR, Fast-dLLM v2, Dream), Ling, LLaDA2, and many others.
`ToolCallParser` in `runtime/parsers/tool_call_parser.py` reads each call with `HermesToolParser`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from runtime.parsers import formats
from runtime.parsers.argument_types import parse_python
from runtime.parsers.formats import NotACall, ParsedCall, ToolParser

_BEGINNING = re.compile(r'[\s\[]*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')

_SPACE = r"[ \t\r\n]{0,8}"
_OTHER_KEY = '"(?:[^n]|n[^a]|na[^m]|nam[^e]|name[^"])'
_BEFORE = " \t\r\n["  # the bracket begins a list of calls


class HermesToolParser(ToolParser):
    """Reads an object with `name` and `arguments`; its brackets determine its end. It may be the first of a list."""

    def __init__(self, tools: Sequence[formats.Tool]) -> None:
        super().__init__(tools)
        self._brackets = formats.BracketCounter()
        self._counted = 0  # characters that the bracket counter has read
        self._name = ""
        self._arguments = 0  # offset of the arguments, once known
        self._inner = formats.BracketCounter()
        self._end = 0  # end of the arguments so far

    def feed(self, text: str) -> ParsedCall | NotACall | None:
        self._text += text
        if not self._counted:
            begun = self._text.lstrip(_BEFORE)
            if not begun:
                return None
            if begun[0] != "{":
                return NotACall()
            self._counted = len(self._text) - len(begun)
        end = self._brackets.feed(self._text[self._counted :])
        if end is None:
            self._counted = len(self._text)
            return None
        at = self._counted + end
        call = _call(self._text[:at].lstrip(_BEFORE))
        return NotACall() if call is None else ParsedCall(*call, rest=self._text[at:])

    def partial(self) -> tuple[str, str] | None:
        if not self._arguments:
            found = _BEGINNING.match(self._text)
            if found is None:
                return None
            self._name, self._arguments = found[1], found.end()
            self._end = self._arguments
        closed = self._inner.depth == 0 and self._end > self._arguments
        if not closed:
            fresh = self._text[self._end :]
            end = self._inner.feed(fresh)
            self._end += len(fresh) if end is None else end
        return self._name, self._text[self._arguments : self._end]


def _call(text: str) -> tuple[str, str] | None:
    """Returns name and arguments of a complete object; None if it is not a call."""
    try:
        try:
            value = formats.parse_json(text)
        except formats.NestedTooDeeplyError:
            raise
        except ValueError:
            value = parse_python(text)
        name = value.get("name")
        arguments: Any = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, str):  # JSON in a string
            arguments = formats.parse_json(arguments)
        if arguments is None:
            arguments = {}
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        return name, formats.dump_json(arguments)
    except ValueError:
        return None


def wraps(name: str) -> tuple[str, str]:
    return f'\n{{"name": {json.dumps(name)}, "arguments": ', "}\n"


def instructs(tools: Sequence[formats.Tool]) -> str:
    listed = "\n".join(json.dumps(tool.item, ensure_ascii=False) for tool in tools)
    return (
        f"# Tools\n<tools>\n{listed}\n</tools>\n"
        "These functions can be called. To call one, answer with its name and arguments as JSON between tags, a "
        'pair of tags for each call:\n<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>\n'
        "Results come back between <tool_response> and </tool_response>. Where none of them helps, answer in words."
    )


HERMES = formats.ToolFormat(
    key="hermes",
    opens="<tool_call>",
    closes="</tool_call>",
    begins="{",
    name_between=(rf'[ \t\r\n\[]{{0,8}}\{{{_SPACE}"name"{_SPACE}:{_SPACE}"', '"'),
    unnamed=rf"[ \t\r\n\[]{{0,8}}(?:[^ \t\r\n\[{{<]|\{{{_SPACE}(?:[^ \t\r\n\"]|{_OTHER_KEY}))",
    parser=HermesToolParser,
    wraps=wraps,
    instructs=instructs,
)
formats.register_tool_format(HERMES)
