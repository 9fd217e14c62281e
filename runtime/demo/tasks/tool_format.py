"""Tools as the family's chat format writes them (the checkpoint's template writes the same)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

HOW = "To use one, answer with <tool_call>, a JSON object with its name and arguments, and </tool_call>."


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """What a system turn says of tools, each an item of the interface's `tools`."""
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    return "\n".join(["# Tools", "<tools>", *lines, "</tools>", HOW])


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """An assistant's turn that calls a tool."""
    inner = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{inner}\n</tool_call>"


def result_text(content: str) -> str:
    """What a turn of the role `tool` says."""
    return f"<tool_response>\n{content}\n</tool_response>"
