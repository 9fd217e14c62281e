"""Answers of ``/generate`` and ``/v1/infill``, and the events of their streams."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from runtime.server.http_responses import ErrorResponse
from runtime.server.openai.chat_messages import EXAMPLE_CHAT, Messages
from runtime.server.openai.protocol import (
    DenoiseStep,
    FinalMessage,
    GenerationPrompt,
    GenerationRequest,
    ModelName,
    Prompt,
    TemplateArguments,
    Timings,
    Usage,
)
from runtime.server.schema_base import Integer, RequestModel, UnsupportedField, api_field

MAX_SEGMENTS = 1024


class GenerateRequest(GenerationRequest):
    """Either a prompt, continued as it is, or the messages of a chat."""

    model: ModelName = None
    prompt: Annotated[Prompt | None, api_field("what is continued: a text, or token ids", "Solve: 12 + 30.")] = None
    messages: Annotated[Messages | None, api_field("a chat that is answered, instead of a prompt", EXAMPLE_CHAT)] = None
    chat_template_kwargs: TemplateArguments = None
    add_generation_prompt: GenerationPrompt = None
    continue_final_message: FinalMessage = None
    n: Annotated[Any, UnsupportedField(1)] = None
    stream_mode: Annotated[
        Literal["denoise", "block_append"] | None,
        api_field(
            "events of a stream: `denoise`, the open blocks after each step; or `block_append`, text as it grows",
            "denoise",
        ),
    ] = None


class Segment(RequestModel):
    """A piece of a text with holes: a text that stays, or a hole."""

    text: Annotated[str | None, api_field("that stays", "The sky is ")] = None
    mask: Annotated[Integer | None, api_field("tokens of the hole", 8)] = None


class InfillRequest(GenerationRequest):
    model: ModelName = None
    text: Annotated[str | None, api_field("with holes: <mask:8> is one of eight tokens", "2, 4, <mask:2>8, 10")] = None
    segments: Annotated[
        Annotated[list[Segment], Field(max_length=MAX_SEGMENTS, fail_fast=True)] | None,
        api_field("texts and holes in turn, instead of `text`", [{"text": "2, 4, "}, {"mask": 2}, {"text": "8, 10"}]),
    ] = None
    messages: Annotated[Messages | None, api_field("the conversation that the text is the answer to", EXAMPLE_CHAT)] = (
        None
    )
    chat_template_kwargs: TemplateArguments = None
    n: Annotated[Any, UnsupportedField(1)] = None
    stream_mode: Annotated[
        Literal["denoise"] | None, api_field("events of a stream: the open blocks after each step", "denoise")
    ] = None


class OwnTopLogprob(TypedDict):
    id: Annotated[int, api_field("of the token")]
    token: Annotated[str, api_field("its text; `bytes:` and escapes where it is no whole characters")]
    logprob: Annotated[float, api_field("natural logarithm of its probability")]


class OwnLogprob(OwnTopLogprob):
    """One of `token_ids`."""

    top_logprobs: Annotated[list[OwnTopLogprob], api_field("the likeliest in its place, in the step that wrote it")]


class GenerateAnswer(TypedDict):
    """The answer of `/generate`."""

    id: Annotated[str, api_field("of this request")]
    text: Annotated[str, api_field("the answer, without ends of sequence and stop texts")]
    token_ids: Annotated[list[int], api_field("its tokens")]
    nfe: Annotated[int, api_field("denoising steps, of all its blocks")]
    finish_reason: Annotated[
        Literal["stop", "length", "max_nfe", "repetition"],
        api_field("the model's own end or a stop text, or which limit"),
    ]
    logprobs: Annotated[NotRequired[list[OwnLogprob]], api_field("of `token_ids`, where they were asked for")]
    full_text: Annotated[str, api_field("the prompt and the answer")]
    full_token_ids: Annotated[list[int], api_field("the prompt's tokens and the answer's")]
    usage: Annotated[Usage, api_field("tokens")]
    timings: Annotated[Timings, api_field("seconds")]
    warning: Annotated[NotRequired[str], api_field("what is likely wrong with the prompt")]


class GenerateFinal(GenerateAnswer):
    """The last event of a stream: the whole answer."""

    event: Annotated[Literal["final"], api_field("always `final`")]


class DenoiseEvent(DenoiseStep):
    """A step, with `stream_mode` `denoise`."""

    event: Annotated[Literal["denoise"], api_field("always `denoise`")]
    id: Annotated[str, api_field("of this request")]
    text: Annotated[str, api_field("that became stable: it stays, and the answer is all of these")]
    logprobs: Annotated[
        NotRequired[list[OwnLogprob]], api_field("of the tokens whose text is out now, where they were asked for")
    ]


class AppendEvent(TypedDict):
    """More text, with `stream_mode` `block_append`."""

    event: Annotated[Literal["block_append"], api_field("always `block_append`")]
    id: Annotated[str, api_field("of this request")]
    text: Annotated[str, api_field("more of the answer")]
    nfe: Annotated[int, api_field("denoising steps so far")]
    logprobs: Annotated[
        NotRequired[list[OwnLogprob]], api_field("of the tokens whose text is out now, where they were asked for")
    ]


class ErrorEvent(ErrorResponse):
    """In place of the rest of a stream."""

    event: Annotated[Literal["error"], api_field("always `error`")]
    id: Annotated[str, api_field("of this request")]


class FilledHole(TypedDict):
    text: Annotated[str, api_field("what stands in it now")]
    token_ids: Annotated[list[int], api_field("the same as tokens, as many as it had")]


class InfillAnswer(TypedDict):
    """The answer of `/v1/infill`."""

    id: Annotated[str, api_field("of this request")]
    object: Annotated[Literal["infill"], api_field("always `infill`")]
    model: Annotated[str, api_field("the name that was asked for")]
    text: Annotated[str, api_field("the whole text, its holes filled")]
    holes: Annotated[list[FilledHole], api_field("each of them, in order")]
    nfe: Annotated[int, api_field("denoising steps, of all blocks")]
    usage: Annotated[Usage, api_field("tokens")]
    timings: Annotated[Timings, api_field("seconds")]


class InfillFinal(InfillAnswer):
    """The last event of a stream: the whole answer."""

    event: Annotated[Literal["final"], api_field("always `final`")]
