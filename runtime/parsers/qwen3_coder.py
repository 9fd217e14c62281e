"""`qwen3_coder`: tags, each on a line: ``<tool_call>``, ``<function=NAME>``, for each argument ``<parameter=KEY>``, its
value and ``</parameter>``, then ``</function>`` and ``</tool_call>``.

So write Qwen3-Coder and, as their chat template has it, Nemotron 3 and what is made of it. Values are plain text: the
tool's schema says which of them are to be read as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runtime.parsers.formats import CallReader, Done, Failed, Tool, ToolFormat, register_tool_format
from runtime.parsers.json_text import parsed, written

_BEGINNING = "<function="
_END = "</tool_call>"
_CALL = re.compile(r"\s*<function=([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*)", re.DOTALL)


class TaggedReader(CallReader):
    """Waits for the tag that closes the call."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools)
        self._text = ""
        self._at = 0  # what was searched

    def feed(self, text: str) -> Done | Failed | None:
        self._text += text
        begun = self._text.lstrip()[: len(_BEGINNING)]
        if not _BEGINNING.startswith(begun):
            return Failed()
        at = self._text.find(_END, self._at)
        if at < 0:
            self._at = max(0, len(self._text) - len(_END) + 1)
            return None
        call = self._call(self._text[:at])
        return Failed() if call is None else Done(*call, rest=self._text[at:])

    def _call(self, text: str) -> tuple[str, str] | None:
        found = _CALL.match(text)
        if found is None:
            return None
        *written_out, rest = text[found.end() :].rstrip().removesuffix("</function>").split("</parameter>")
        given = [_PARAMETER.fullmatch(each) for each in written_out]
        if rest.strip() or not all(given):
            return None
        name = found[1]
        schema = next((tool.parameters for tool in self.tools if tool.name == name), {})
        properties = schema.get("properties")
        types = properties if isinstance(properties, dict) else {}
        try:
            return name, written({one[1]: _value(one[2], types.get(one[1])) for one in given if one is not None})
        except ValueError:
            return None


def _value(raw: str, schema: Any) -> Any:
    """A parameter's value: text, unless its schema has it otherwise and it can be read so."""
    text = raw.removeprefix("\n").removesuffix("\n")
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        return parsed(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


register_tool_format(
    ToolFormat(
        key="qwen3_coder",
        opens="<tool_call>",
        closes=_END,
        strays=("</function>", "</parameter>"),
        reader=TaggedReader,
    )
)
