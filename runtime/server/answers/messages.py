"""Answers of ``/v1/messages``, whole and streamed."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from runtime.server.answers.common import Json, MessagesError
from runtime.server.fields import api_field


class TextBlock(TypedDict):
    type: Annotated[Literal["text"], api_field("always `text`")]
    text: Annotated[str, api_field("what the model says")]


class ThinkingBlock(TypedDict):
    type: Annotated[Literal["thinking"], api_field("always `thinking`")]
    thinking: Annotated[str, api_field("what the model thought, of families that mark it")]
    signature: Annotated[str, api_field("always empty")]


class ToolUseBlock(TypedDict):
    type: Annotated[Literal["tool_use"], api_field("always `tool_use`")]
    id: Annotated[str, api_field("for the block with its result")]
    name: Annotated[str, api_field("the tool's")]
    input: Annotated[Json, api_field("its arguments; in a stream they come behind, as pieces of JSON")]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(TypedDict):
    """Tokens."""

    input_tokens: Annotated[int, api_field("of the prompt, without those in the cache")]
    output_tokens: Annotated[int, api_field("of the answer")]
    cache_creation_input_tokens: Annotated[int, api_field("always 0")]
    cache_read_input_tokens: Annotated[int, api_field("of the prompt, that were in the cache")]


class MessagesAnswer(TypedDict):
    """The answer of `/v1/messages`."""

    id: Annotated[str, api_field("of this request")]
    type: Annotated[Literal["message"], api_field("always `message`")]
    role: Annotated[Literal["assistant"], api_field("always `assistant`")]
    model: Annotated[str, api_field("the name that was asked for")]
    content: Annotated[list[AnswerBlock], api_field("what the model thinks and says, and which tools it wants used")]
    stop_reason: Annotated[
        Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"] | None,
        api_field("why it ended; null in the first event of a stream"),
    ]
    stop_sequence: Annotated[str | None, api_field("which of `stop_sequences` ended it, if one did")]
    usage: Annotated[MessagesUsage, api_field("tokens")]


class TokenCount(TypedDict):
    input_tokens: Annotated[int, api_field("of the prompt that the conversation makes")]


class MessageStart(TypedDict):
    """The first event of a stream."""

    type: Annotated[Literal["message_start"], api_field("always `message_start`")]
    message: Annotated[MessagesAnswer, api_field("without content yet")]


class BlockStart(TypedDict):
    type: Annotated[Literal["content_block_start"], api_field("always `content_block_start`")]
    index: Annotated[int, api_field("of the block")]
    content_block: Annotated[AnswerBlock, api_field("empty yet")]


class TextDelta(TypedDict):
    type: Annotated[Literal["text_delta"], api_field("always `text_delta`")]
    text: Annotated[str, api_field("more of it")]


class ThinkingDelta(TypedDict):
    type: Annotated[Literal["thinking_delta"], api_field("always `thinking_delta`")]
    thinking: Annotated[str, api_field("more of it")]


class InputDelta(TypedDict):
    type: Annotated[Literal["input_json_delta"], api_field("always `input_json_delta`")]
    partial_json: Annotated[str, api_field("more of the input's JSON")]


class BlockDelta(TypedDict):
    type: Annotated[Literal["content_block_delta"], api_field("always `content_block_delta`")]
    index: Annotated[int, api_field("of the block")]
    delta: Annotated[TextDelta | ThinkingDelta | InputDelta, api_field("what it grew by")]


class BlockStop(TypedDict):
    type: Annotated[Literal["content_block_stop"], api_field("always `content_block_stop`")]
    index: Annotated[int, api_field("of the block")]


class MessageEnd(TypedDict):
    stop_reason: Annotated[Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"], api_field("why it ended")]
    stop_sequence: Annotated[str | None, api_field("which of `stop_sequences` ended it, if one did")]


class MessageDelta(TypedDict):
    type: Annotated[Literal["message_delta"], api_field("always `message_delta`")]
    delta: Annotated[MessageEnd, api_field("how the message ended")]
    usage: Annotated[MessagesUsage, api_field("tokens")]


class MessageStop(TypedDict):
    """The last event of a stream."""

    type: Annotated[Literal["message_stop"], api_field("always `message_stop`")]


MESSAGE_EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessagesError)
