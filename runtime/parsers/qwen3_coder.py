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
from runtime.parsers.formats import NotACall, ParsedCall, ToolParser

_BEGINNING = "<function="
_END = "</tool_call>"
_CALL = re.compile(r"\s*<function=([^>\s]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*)", re.DOTALL)


class Qwen3CoderToolParser(ToolParser):
    """Waits for the closing tag."""

    def __init__(self, tools: Sequence[formats.Tool]) -> None:
        super().__init__(tools)
        self._at = 0  # searched so far

    def feed(self, text: str) -> ParsedCall | NotACall | None:
        self._text += text
        if not _BEGINNING.startswith(self._text.lstrip()[: len(_BEGINNING)]):
            return NotACall()
        at = self._text.find(_END, self._at)
        if at < 0:
            self._at = max(0, len(self._text) - len(_END) + 1)
            return None
        call = self._call(self._text[:at])
        return NotACall() if call is None else ParsedCall(*call, rest=self._text[at:])

    def _call(self, text: str) -> tuple[str, str] | None:
        found = _CALL.match(text)
        if found is None:
            return None
        *written_out, rest = text[found.end() :].rstrip().removesuffix("</function>").split("</parameter>")
        parameters = [_PARAMETER.fullmatch(each) for each in written_out]
        if rest.strip() or not all(parameters):
            return None
        name = found[1]
        schema = next((tool.parameters for tool in self.tools if tool.name == name), {})
        properties = schema.get("properties")
        types = properties if isinstance(properties, dict) else {}
        try:
            return name, formats.dump_json(
                {one[1]: _value(one[2], types.get(one[1])) for one in parameters if one is not None}
            )
        except ValueError:
            return None


def _value(raw: str, schema: Any) -> Any:
    """Returns a parameter's value: text, unless its schema has another type and it can be parsed.

    Raises:
        NestedTooDeeplyError: It is JSON with more levels than Python can parse.
    """
    text = raw.removeprefix("\n").removesuffix("\n")
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        return formats.parse_json(text)
    except formats.NestedTooDeeplyError:
        raise
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


QWEN3_CODER = formats.ToolFormat(
    key="qwen3_coder",
    opens="<tool_call>",
    closes=_END,
    strays=("</function>", "</parameter>"),
    parser=Qwen3CoderToolParser,
)
formats.register_tool_format(QWEN3_CODER)
