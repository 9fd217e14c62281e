"""What several routes' answers have in common.

These types are documentation: the OpenAPI shows them, and tests hold real answers to them. Routes write their answers
as plain dicts, and nothing is checked while the server runs. A field that is not always there is `NotRequired`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from runtime.server.fields import said


class PromptDetails(TypedDict):
    cached_tokens: Annotated[int, said("of the prompts, that were in the cache")]


class CompletionDetails(TypedDict):
    reasoning_tokens: Annotated[int, said("of the answers, that are reasoning")]


class Usage(TypedDict):
    """Tokens of a request."""

    prompt_tokens: Annotated[int, said("of the prompts, each counted once, the template's own included")]
    completion_tokens: Annotated[int, said("of the answers, without ends of sequence")]
    total_tokens: Annotated[int, said("both together")]
    prompt_tokens_details: Annotated[PromptDetails, said("of these")]
    completion_tokens_details: Annotated[NotRequired[CompletionDetails], said("of these, where answers have parts")]


class Timings(TypedDict):
    """Seconds from the request's arrival."""

    queue_seconds: Annotated[float, said("until its first forward")]
    first_text_seconds: Annotated[float | None, said("until its first text, of streams")]
    total_seconds: Annotated[float, said("until its end")]


class DenoiseStep(TypedDict):
    """The open blocks after a step."""

    start: Annotated[int, said("offset in the answer of the first token below")]
    tokens: Annotated[list[int], said("ids, the mask's where masked")]
    masked: Annotated[list[int], said("offsets from `start` of masked positions")]
    nfe: Annotated[int, said("denoising steps so far")]


class ErrorDetail(TypedDict):
    message: Annotated[str, said("what is wrong, and what to do about it")]
    type: Annotated[str, said("the kind of error, by the status")]
    param: Annotated[str | None, said("the field that is wrong, if it is one")]
    code: Annotated[str | None, said("a name that programs may rely on, where there is one")]


class ErrorResponse(TypedDict):
    """Every refusal and failure, but of `/v1/messages`."""

    error: Annotated[ErrorDetail, said("what happened")]


class MessagesErrorDetail(TypedDict):
    type: Annotated[str, said("the kind of error, by the status")]
    message: Annotated[str, said("what is wrong, and what to do about it")]


class MessagesError(TypedDict):
    """A refusal or failure of `/v1/messages`, in an answer or a stream."""

    type: Annotated[Literal["error"], said("always `error`")]
    error: Annotated[MessagesErrorDetail, said("what happened")]


Json = dict[str, Any]
