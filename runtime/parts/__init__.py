"""The parts of an answer, one file each format that models write them in. Importing this package registers them; add
yours with one line here."""

from runtime.parts import gemma4, hermes, qwen3_coder, think
from runtime.parts.deltas import Arguments, CallStart, Delta, Reasoning, Text
from runtime.parts.formats import (
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
from runtime.parts.parts import Call, Parts

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
