"""Flags of the parsers of chat output: reasoning and tool calls."""

from __future__ import annotations

from runtime.config.flags import Flag

OFF = "off"

CHAT_FLAGS = (
    Flag(
        name="tool-call-parser",
        group="model",
        metavar="FORMAT",
        help="format of tool calls: hermes, gemma4, qwen3_coder, or off; default: that of the family",
    ),
    Flag(
        name="reasoning-parser",
        group="model",
        metavar="FORMAT",
        help="format of reasoning: think, gemma4, or off; default: that of the family",
    ),
)
