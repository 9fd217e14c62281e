"""The parts of an answer, one file each format that models write them in. Importing this package registers them; add
yours with one line here."""

from runtime.parsers import gemma4, hermes, qwen3_coder, think
from runtime.parsers.chat_output import Call, Parts
from runtime.parsers.events import Arguments, CallStart, Delta, Reasoning, Text
from runtime.parsers.formats import (
    ReasoningFormat,
    Tool,
    ToolFormat,
    part_marks,
    reasoning_format,
    reasoning_formats,
    register_reasoning_format,
    register_tool_format,
    tool_format,
    tool_formats,
)

__all__ = [
    "Arguments",
    "Call",
    "CallStart",
    "Delta",
    "Parts",
    "Reasoning",
    "ReasoningFormat",
    "Text",
    "Tool",
    "ToolFormat",
    "gemma4",
    "hermes",
    "part_marks",
    "qwen3_coder",
    "reasoning_format",
    "reasoning_formats",
    "register_reasoning_format",
    "register_tool_format",
    "think",
    "tool_format",
    "tool_formats",
]
