"""Answers of ``/generate`` and ``/v1/infill``, and the events of their streams."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from runtime.server.answers.common import DenoiseStep, ErrorResponse, Timings, Usage
from runtime.server.fields import api_field


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
