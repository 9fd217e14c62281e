"""Answers of ``/v1/messages``, whole and streamed."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from runtime.server.answers.common import Json, MessagesError
from runtime.server.fields import said


class TextBlock(TypedDict):
    type: Annotated[Literal["text"], said("always `text`")]
    text: Annotated[str, said("what the model says")]


class ThinkingBlock(TypedDict):
    type: Annotated[Literal["thinking"], said("always `thinking`")]
    thinking: Annotated[str, said("what the model thought, of families that mark it")]
    signature: Annotated[str, said("always empty")]


class ToolUseBlock(TypedDict):
    type: Annotated[Literal["tool_use"], said("always `tool_use`")]
    id: Annotated[str, said("for the block with its result")]
    name: Annotated[str, said("the tool's")]
    input: Annotated[Json, said("its arguments; in a stream they come behind, as pieces of JSON")]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(TypedDict):
    """Tokens."""

    input_tokens: Annotated[int, said("of the prompt, without those in the cache")]
    output_tokens: Annotated[int, said("of the answer")]
    cache_creation_input_tokens: Annotated[int, said("always 0")]
    cache_read_input_tokens: Annotated[int, said("of the prompt, that were in the cache")]


class MessagesAnswer(TypedDict):
    """The answer of `/v1/messages`."""

    id: Annotated[str, said("of this request")]
    type: Annotated[Literal["message"], said("always `message`")]
    role: Annotated[Literal["assistant"], said("always `assistant`")]
    model: Annotated[str, said("the name that was asked for")]
    content: Annotated[list[AnswerBlock], said("what the model thinks and says, and which tools it wants used")]
    stop_reason: Annotated[
        Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"] | None,
        said("why it ended; null in the first event of a stream"),
    ]
    stop_sequence: Annotated[str | None, said("which of `stop_sequences` ended it, if one did")]
    usage: Annotated[MessagesUsage, said("tokens")]


class TokenCount(TypedDict):
    input_tokens: Annotated[int, said("of the prompt that the conversation makes")]


class MessageStart(TypedDict):
    """The first event of a stream."""

    type: Annotated[Literal["message_start"], said("always `message_start`")]
    message: Annotated[MessagesAnswer, said("without content yet")]


class BlockStart(TypedDict):
    type: Annotated[Literal["content_block_start"], said("always `content_block_start`")]
    index: Annotated[int, said("of the block")]
    content_block: Annotated[AnswerBlock, said("empty yet")]


class TextDelta(TypedDict):
    type: Annotated[Literal["text_delta"], said("always `text_delta`")]
    text: Annotated[str, said("more of it")]


class ThinkingDelta(TypedDict):
    type: Annotated[Literal["thinking_delta"], said("always `thinking_delta`")]
    thinking: Annotated[str, said("more of it")]


class InputDelta(TypedDict):
    type: Annotated[Literal["input_json_delta"], said("always `input_json_delta`")]
    partial_json: Annotated[str, said("more of the input's JSON")]


class BlockDelta(TypedDict):
    type: Annotated[Literal["content_block_delta"], said("always `content_block_delta`")]
    index: Annotated[int, said("of the block")]
    delta: Annotated[TextDelta | ThinkingDelta | InputDelta, said("what it grew by")]


class BlockStop(TypedDict):
    type: Annotated[Literal["content_block_stop"], said("always `content_block_stop`")]
    index: Annotated[int, said("of the block")]


class MessageEnd(TypedDict):
    stop_reason: Annotated[Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"], said("why it ended")]
    stop_sequence: Annotated[str | None, said("which of `stop_sequences` ended it, if one did")]


class MessageDelta(TypedDict):
    type: Annotated[Literal["message_delta"], said("always `message_delta`")]
    delta: Annotated[MessageEnd, said("how the message ended")]
    usage: Annotated[MessagesUsage, said("tokens")]


class MessageStop(TypedDict):
    """The last event of a stream."""

    type: Annotated[Literal["message_stop"], said("always `message_stop`")]


MESSAGE_EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessagesError)
