"""Answers of chat and completions, whole and streamed."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from runtime.server.answers.common import DenoiseStep, Usage
from runtime.server.fields import api_field

Reason = Literal["stop", "length", "tool_calls"]


class _Head(TypedDict):
    id: Annotated[str, api_field("of this request")]
    created: Annotated[int, api_field("when, in seconds since 1970")]
    model: Annotated[str, api_field("the name that was asked for")]


class _Chunk(_Head):
    usage: Annotated[
        NotRequired[Usage | None],
        api_field("with `include_usage`: in the last chunk, and null before, or in all with `continuous_usage_stats`"),
    ]
    denoise: Annotated[NotRequired[DenoiseStep], api_field("with `stream_mode` `denoise`")]


class TopLogprob(TypedDict):
    token: Annotated[str, api_field("its text; `bytes:` and escapes where it is no whole characters")]
    logprob: Annotated[float, api_field("natural logarithm of its probability")]
    bytes: Annotated[list[int], api_field("its text as UTF-8")]


class TokenLogprob(TopLogprob):
    """A token of an answer."""

    top_logprobs: Annotated[list[TopLogprob], api_field("the likeliest in its place, in the step that wrote it")]


class ChatLogprobs(TypedDict):
    content: Annotated[list[TokenLogprob], api_field("each token, in order")]
    refusal: Annotated[None, api_field("always null")]


class CalledFunction(TypedDict):
    name: Annotated[str, api_field("the tool's")]
    arguments: Annotated[str, api_field("JSON")]


class AnswerCall(TypedDict):
    """A call of a tool."""

    id: Annotated[str, api_field("for the message with its result")]
    type: Annotated[Literal["function"], api_field("always `function`")]
    function: Annotated[CalledFunction, api_field("which one, and with what")]


class AnswerMessage(TypedDict):
    role: Annotated[Literal["assistant"], api_field("always `assistant`")]
    content: Annotated[str | None, api_field("the text; null where there are calls and no text")]
    refusal: Annotated[None, api_field("always null")]
    reasoning_content: Annotated[NotRequired[str], api_field("what the model thought first, of families that mark it")]
    tool_calls: Annotated[NotRequired[list[AnswerCall]], api_field("tools that it wants called")]


class ChatChoice(TypedDict):
    """One of `n` answers."""

    index: Annotated[int, api_field("which one")]
    message: Annotated[AnswerMessage, api_field("what the model says")]
    logprobs: Annotated[ChatLogprobs | None, api_field("of its tokens, where they were asked for")]
    finish_reason: Annotated[
        Reason, api_field("`stop`: the model's own end or a stop text; `length`: a limit; `tool_calls`: it calls tools")
    ]


class ChatAnswer(_Head):
    """The answer of `/v1/chat/completions`."""

    object: Annotated[Literal["chat.completion"], api_field("always `chat.completion`")]
    choices: Annotated[list[ChatChoice], api_field("`n` of them")]
    usage: Annotated[Usage, api_field("tokens")]


class FunctionDelta(TypedDict):
    name: Annotated[NotRequired[str], api_field("the tool's, in the first piece")]
    arguments: Annotated[str, api_field("more of the JSON")]


class CallDelta(TypedDict):
    """More of a call: its id and name come first."""

    index: Annotated[int, api_field("which of the calls")]
    id: Annotated[NotRequired[str], api_field("for the message with its result")]
    type: Annotated[NotRequired[Literal["function"]], api_field("always `function`")]
    function: Annotated[FunctionDelta, api_field("what is new of it")]


class ChatDelta(TypedDict):
    """What a message grew by; the empty object with a `finish_reason`."""

    role: Annotated[NotRequired[Literal["assistant"]], api_field("in the first chunk")]
    content: Annotated[NotRequired[str], api_field("more text")]
    refusal: Annotated[NotRequired[None], api_field("always null")]
    reasoning_content: Annotated[NotRequired[str], api_field("more reasoning")]
    tool_calls: Annotated[NotRequired[list[CallDelta]], api_field("more of a call")]


class ChatChunkChoice(TypedDict):
    index: Annotated[int, api_field("which of the `n` answers")]
    delta: Annotated[ChatDelta, api_field("what it grew by")]
    logprobs: Annotated[
        ChatLogprobs | None, api_field("of the tokens whose text is out now, where they were asked for")
    ]
    finish_reason: Annotated[Reason | None, api_field("why it ended, once it has")]


class ChatChunk(_Chunk):
    """An event of a chat's stream."""

    object: Annotated[Literal["chat.completion.chunk"], api_field("always `chat.completion.chunk`")]
    choices: Annotated[list[ChatChunkChoice], api_field("one; none beside the usage at the end")]


class CompletionLogprobs(TypedDict):
    """Four lists, with an entry for each token."""

    tokens: Annotated[list[str], api_field("their texts")]
    token_logprobs: Annotated[
        list[float | None], api_field("natural logarithms of their probabilities; null of a prompt's first")
    ]
    top_logprobs: Annotated[list[dict[str, float] | None], api_field("the likeliest in their places, and themselves")]
    text_offset: Annotated[list[int], api_field("where their texts begin in `text`, in characters")]


class CompletionChoice(TypedDict):
    """One answer of a prompt."""

    index: Annotated[int, api_field("answers of one prompt follow each other")]
    text: Annotated[str, api_field("the answer, behind the prompt with `echo`")]
    logprobs: Annotated[CompletionLogprobs | None, api_field("of its tokens, where they were asked for")]
    finish_reason: Annotated[Reason, api_field("`stop`: the model's own end or a stop text; `length`: a limit")]


class CompletionAnswer(_Head):
    """The answer of `/v1/completions`."""

    object: Annotated[Literal["text_completion"], api_field("always `text_completion`")]
    choices: Annotated[list[CompletionChoice], api_field("`n` for each prompt")]
    usage: Annotated[Usage, api_field("tokens")]
    warning: Annotated[NotRequired[str], api_field("what is likely wrong with the prompt")]


class CompletionChunkChoice(TypedDict):
    index: Annotated[int, api_field("which of the answers")]
    text: Annotated[str, api_field("what it grew by")]
    logprobs: Annotated[
        CompletionLogprobs | None, api_field("of the tokens whose text is out now, where they were asked for")
    ]
    finish_reason: Annotated[Reason | None, api_field("why it ended, once it has")]


class CompletionChunk(_Chunk):
    """An event of a completion's stream."""

    object: Annotated[Literal["text_completion"], api_field("always `text_completion`")]
    choices: Annotated[list[CompletionChunkChoice], api_field("one; none beside the usage at the end")]
    warning: Annotated[NotRequired[str], api_field("what is likely wrong with the prompt")]
