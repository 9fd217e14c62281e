"""Answers of chat and completions, whole and streamed."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from runtime.server.answers.common import DenoiseStep, Usage
from runtime.server.fields import said

Reason = Literal["stop", "length", "tool_calls"]


class _Head(TypedDict):
    id: Annotated[str, said("of this request")]
    created: Annotated[int, said("when, in seconds since 1970")]
    model: Annotated[str, said("the name that was asked for")]


class _Chunk(_Head):
    usage: Annotated[
        NotRequired[Usage | None],
        said("with `include_usage`: in the last chunk, and null before, or in all with `continuous_usage_stats`"),
    ]
    denoise: Annotated[NotRequired[DenoiseStep], said("with `stream_mode` `denoise`")]


class TopLogprob(TypedDict):
    token: Annotated[str, said("its text; `bytes:` and escapes where it is no whole characters")]
    logprob: Annotated[float, said("natural logarithm of its probability")]
    bytes: Annotated[list[int], said("its text as UTF-8")]


class TokenLogprob(TopLogprob):
    """A token of an answer."""

    top_logprobs: Annotated[list[TopLogprob], said("the likeliest in its place, in the step that wrote it")]


class ChatLogprobs(TypedDict):
    content: Annotated[list[TokenLogprob], said("each token, in order")]
    refusal: Annotated[None, said("always null")]


class CalledFunction(TypedDict):
    name: Annotated[str, said("the tool's")]
    arguments: Annotated[str, said("JSON")]


class AnswerCall(TypedDict):
    """A call of a tool."""

    id: Annotated[str, said("for the message with its result")]
    type: Annotated[Literal["function"], said("always `function`")]
    function: Annotated[CalledFunction, said("which one, and with what")]


class AnswerMessage(TypedDict):
    role: Annotated[Literal["assistant"], said("always `assistant`")]
    content: Annotated[str | None, said("the text; null where there are calls and no text")]
    refusal: Annotated[None, said("always null")]
    reasoning_content: Annotated[NotRequired[str], said("what the model thought first, of families that mark it")]
    tool_calls: Annotated[NotRequired[list[AnswerCall]], said("tools that it wants called")]


class ChatChoice(TypedDict):
    """One of `n` answers."""

    index: Annotated[int, said("which one")]
    message: Annotated[AnswerMessage, said("what the model says")]
    logprobs: Annotated[ChatLogprobs | None, said("of its tokens, where they were asked for")]
    finish_reason: Annotated[
        Reason, said("`stop`: the model's own end or a stop text; `length`: a limit; `tool_calls`: it calls tools")
    ]


class ChatAnswer(_Head):
    """The answer of `/v1/chat/completions`."""

    object: Annotated[Literal["chat.completion"], said("always `chat.completion`")]
    choices: Annotated[list[ChatChoice], said("`n` of them")]
    usage: Annotated[Usage, said("tokens")]


class FunctionDelta(TypedDict):
    name: Annotated[NotRequired[str], said("the tool's, in the first piece")]
    arguments: Annotated[str, said("more of the JSON")]


class CallDelta(TypedDict):
    """More of a call: its id and name come first."""

    index: Annotated[int, said("which of the calls")]
    id: Annotated[NotRequired[str], said("for the message with its result")]
    type: Annotated[NotRequired[Literal["function"]], said("always `function`")]
    function: Annotated[FunctionDelta, said("what is new of it")]


class ChatDelta(TypedDict):
    """What a message grew by; the empty object with a `finish_reason`."""

    role: Annotated[NotRequired[Literal["assistant"]], said("in the first chunk")]
    content: Annotated[NotRequired[str], said("more text")]
    refusal: Annotated[NotRequired[None], said("always null")]
    reasoning_content: Annotated[NotRequired[str], said("more reasoning")]
    tool_calls: Annotated[NotRequired[list[CallDelta]], said("more of a call")]


class ChatChunkChoice(TypedDict):
    index: Annotated[int, said("which of the `n` answers")]
    delta: Annotated[ChatDelta, said("what it grew by")]
    logprobs: Annotated[ChatLogprobs | None, said("of the tokens whose text is out now, where they were asked for")]
    finish_reason: Annotated[Reason | None, said("why it ended, once it has")]


class ChatChunk(_Chunk):
    """An event of a chat's stream."""

    object: Annotated[Literal["chat.completion.chunk"], said("always `chat.completion.chunk`")]
    choices: Annotated[list[ChatChunkChoice], said("one; none beside the usage at the end")]


class CompletionLogprobs(TypedDict):
    """Four lists, with an entry for each token."""

    tokens: Annotated[list[str], said("their texts")]
    token_logprobs: Annotated[
        list[float | None], said("natural logarithms of their probabilities; null of a prompt's first")
    ]
    top_logprobs: Annotated[list[dict[str, float] | None], said("the likeliest in their places, and themselves")]
    text_offset: Annotated[list[int], said("where their texts begin in `text`, in characters")]


class CompletionChoice(TypedDict):
    """One answer of a prompt."""

    index: Annotated[int, said("answers of one prompt follow each other")]
    text: Annotated[str, said("the answer, behind the prompt with `echo`")]
    logprobs: Annotated[CompletionLogprobs | None, said("of its tokens, where they were asked for")]
    finish_reason: Annotated[Reason, said("`stop`: the model's own end or a stop text; `length`: a limit")]


class CompletionAnswer(_Head):
    """The answer of `/v1/completions`."""

    object: Annotated[Literal["text_completion"], said("always `text_completion`")]
    choices: Annotated[list[CompletionChoice], said("`n` for each prompt")]
    usage: Annotated[Usage, said("tokens")]
    warning: Annotated[NotRequired[str], said("what is likely wrong with the prompt")]


class CompletionChunkChoice(TypedDict):
    index: Annotated[int, said("which of the answers")]
    text: Annotated[str, said("what it grew by")]
    logprobs: Annotated[
        CompletionLogprobs | None, said("of the tokens whose text is out now, where they were asked for")
    ]
    finish_reason: Annotated[Reason | None, said("why it ended, once it has")]


class CompletionChunk(_Chunk):
    """An event of a completion's stream."""

    object: Annotated[Literal["text_completion"], said("always `text_completion`")]
    choices: Annotated[list[CompletionChunkChoice], said("one; none beside the usage at the end")]
    warning: Annotated[NotRequired[str], said("what is likely wrong with the prompt")]
