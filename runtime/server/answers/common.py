"""What several routes' answers have in common.

These types are documentation: the OpenAPI shows them, and tests hold real answers to them. Routes write their answers
as plain dicts, and nothing is checked while the server runs. A field that is not always there is `NotRequired`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from runtime.server.fields import api_field


class PromptDetails(TypedDict):
    cached_tokens: Annotated[int, api_field("of the prompts, that were in the cache")]


class CompletionDetails(TypedDict):
    reasoning_tokens: Annotated[int, api_field("of the answers, that are reasoning")]


class Usage(TypedDict):
    """Tokens of a request."""

    prompt_tokens: Annotated[int, api_field("of the prompts, each counted once, the template's own included")]
    completion_tokens: Annotated[int, api_field("of the answers, without ends of sequence")]
    total_tokens: Annotated[int, api_field("both together")]
    prompt_tokens_details: Annotated[PromptDetails, api_field("of these")]
    completion_tokens_details: Annotated[
        NotRequired[CompletionDetails], api_field("of these, where answers have parts")
    ]


class Timings(TypedDict):
    """Seconds from the request's arrival."""

    queue_seconds: Annotated[float, api_field("until its first forward")]
    first_text_seconds: Annotated[float | None, api_field("until its first text, of streams")]
    total_seconds: Annotated[float, api_field("until its end")]


class DenoiseStep(TypedDict):
    """The open blocks after a step."""

    start: Annotated[int, api_field("offset in the answer of the first token below")]
    tokens: Annotated[list[int], api_field("ids, the mask's where masked")]
    masked: Annotated[list[int], api_field("offsets from `start` of masked positions")]
    nfe: Annotated[int, api_field("denoising steps so far")]


class ErrorDetail(TypedDict):
    message: Annotated[str, api_field("what is wrong, and what to do about it")]
    type: Annotated[str, api_field("the kind of error, by the status")]
    param: Annotated[str | None, api_field("the field that is wrong, if it is one")]
    code: Annotated[str | None, api_field("a name that programs may rely on, where there is one")]


class ErrorResponse(TypedDict):
    """Every refusal and failure, but of `/v1/messages`."""

    error: Annotated[ErrorDetail, api_field("what happened")]


class MessagesErrorDetail(TypedDict):
    type: Annotated[str, api_field("the kind of error, by the status")]
    message: Annotated[str, api_field("what is wrong, and what to do about it")]


class MessagesError(TypedDict):
    """A refusal or failure of `/v1/messages`, in an answer or a stream."""

    type: Annotated[Literal["error"], api_field("always `error`")]
    error: Annotated[MessagesErrorDetail, api_field("what happened")]


Json = dict[str, Any]
