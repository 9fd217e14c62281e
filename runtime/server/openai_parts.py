"""An answer's parts as OpenAI's chat has them."""

from __future__ import annotations

from typing import Any

from runtime.parsers import Arguments, CallStart, ChatOutputParser, Delta, Reasoning
from runtime.request.output import CompletionState


def output_parser(choice: CompletionState) -> ChatOutputParser:
    """Of a chat's answer."""
    assert isinstance(choice.parts, ChatOutputParser)
    return choice.parts


def assistant_message(parts: ChatOutputParser) -> dict[str, Any]:
    """Of a whole answer; without a text beside calls, its content is null."""
    made: dict[str, Any] = {
        "role": "assistant",
        "content": parts.content if parts.content or not parts.calls else None,
        "refusal": None,
    }
    if parts.reasoning:
        made["reasoning_content"] = parts.reasoning
    if parts.calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parts.calls
        ]
    return made


def chat_delta(grown: Delta) -> dict[str, Any]:
    """Of a chunk."""
    if isinstance(grown, Reasoning):
        return {"reasoning_content": grown.text}
    if isinstance(grown, CallStart):
        function = {"name": grown.name, "arguments": ""}
        return {"tool_calls": [{"index": grown.index, "id": grown.id, "type": "function", "function": function}]}
    if isinstance(grown, Arguments):
        return {"tool_calls": [{"index": grown.index, "function": {"arguments": grown.text}}]}
    return {"content": grown.text}
