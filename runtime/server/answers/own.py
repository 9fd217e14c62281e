"""Answers of ``/generate`` and ``/v1/infill``, and the events of their streams."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from runtime.server.answers.common import DenoiseStep, ErrorResponse, Timings, Usage
from runtime.server.fields import said


class OwnTopLogprob(TypedDict):
    id: Annotated[int, said("of the token")]
    token: Annotated[str, said("its text; `bytes:` and escapes where it is no whole characters")]
    logprob: Annotated[float, said("natural logarithm of its probability")]


class OwnLogprob(OwnTopLogprob):
    """One of `token_ids`."""

    top_logprobs: Annotated[list[OwnTopLogprob], said("the likeliest in its place, in the step that wrote it")]


class GenerateAnswer(TypedDict):
    """The answer of `/generate`."""

    id: Annotated[str, said("of this request")]
    text: Annotated[str, said("the answer, without ends of sequence and stop texts")]
    token_ids: Annotated[list[int], said("its tokens")]
    nfe: Annotated[int, said("denoising steps, of all its blocks")]
    finish_reason: Annotated[
        Literal["stop", "length", "max_nfe", "repetition"], said("the model's own end or a stop text, or which limit")
    ]
    logprobs: Annotated[NotRequired[list[OwnLogprob]], said("of `token_ids`, where they were asked for")]
    full_text: Annotated[str, said("the prompt and the answer")]
    full_token_ids: Annotated[list[int], said("the prompt's tokens and the answer's")]
    usage: Annotated[Usage, said("tokens")]
    timings: Annotated[Timings, said("seconds")]
    warning: Annotated[NotRequired[str], said("what is likely wrong with the prompt")]


class GenerateFinal(GenerateAnswer):
    """The last event of a stream: the whole answer."""

    event: Annotated[Literal["final"], said("always `final`")]


class DenoiseEvent(DenoiseStep):
    """A step, with `stream_mode` `denoise`."""

    event: Annotated[Literal["denoise"], said("always `denoise`")]
    id: Annotated[str, said("of this request")]
    text: Annotated[str, said("that became stable: it stays, and the answer is all of these")]
    logprobs: Annotated[
        NotRequired[list[OwnLogprob]], said("of the tokens whose text is out now, where they were asked for")
    ]


class AppendEvent(TypedDict):
    """More text, with `stream_mode` `block_append`."""

    event: Annotated[Literal["block_append"], said("always `block_append`")]
    id: Annotated[str, said("of this request")]
    text: Annotated[str, said("more of the answer")]
    nfe: Annotated[int, said("denoising steps so far")]
    logprobs: Annotated[
        NotRequired[list[OwnLogprob]], said("of the tokens whose text is out now, where they were asked for")
    ]


class ErrorEvent(ErrorResponse):
    """In place of the rest of a stream."""

    event: Annotated[Literal["error"], said("always `error`")]
    id: Annotated[str, said("of this request")]


class FilledHole(TypedDict):
    text: Annotated[str, said("what stands in it now")]
    token_ids: Annotated[list[int], said("the same as tokens, as many as it had")]


class InfillAnswer(TypedDict):
    """The answer of `/v1/infill`."""

    id: Annotated[str, said("of this request")]
    object: Annotated[Literal["infill"], said("always `infill`")]
    model: Annotated[str, said("the name that was asked for")]
    text: Annotated[str, said("the whole text, its holes filled")]
    holes: Annotated[list[FilledHole], said("each of them, in order")]
    nfe: Annotated[int, said("denoising steps, of all blocks")]
    usage: Annotated[Usage, said("tokens")]
    timings: Annotated[Timings, said("seconds")]


class InfillFinal(InfillAnswer):
    """The last event of a stream: the whole answer."""

    event: Annotated[Literal["final"], said("always `final`")]
