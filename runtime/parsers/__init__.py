"""Parsers of model output: reasoning and tool calls, one file per format. Importing the package registers them."""

from runtime.parsers import gemma4, hermes, qwen3_coder, think  # noqa: F401  they register themselves
from runtime.parsers.chat_output import Call, ChatOutputParser
from runtime.parsers.formats import (
    Arguments,
    CallStart,
    Delta,
    Reasoning,
    ReasoningFormat,
    Text,
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
    "ChatOutputParser",
    "Delta",
    "Reasoning",
    "ReasoningFormat",
    "Text",
    "Tool",
    "ToolFormat",
    "part_marks",
    "reasoning_format",
    "reasoning_formats",
    "register_reasoning_format",
    "register_tool_format",
    "tool_format",
    "tool_formats",
]
