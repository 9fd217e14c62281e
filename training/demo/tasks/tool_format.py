"""Tools in the family's chat format, as in the checkpoint's template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

HOW = "To use one, answer with <tool_call>, a JSON object with its name and arguments, and </tool_call>."


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text about tools in a system message. Each tool is an item of the API's `tools`."""
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    return "\n".join(["# Tools", "<tools>", *lines, "</tools>", HOW])


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Returns an assistant message with a tool call."""
    inner = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{inner}\n</tool_call>"


def result_text(content: str) -> str:
    """Returns the content of a message of the role `tool`."""
    return f"<tool_response>\n{content}\n</tool_response>"
