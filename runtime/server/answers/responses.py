"""Answers of ``/v1/responses``, whole and streamed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from runtime.server.answers.common import Json
from runtime.server.fields import said

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    type: Annotated[Literal["output_text"], said("always `output_text`")]
    text: Annotated[str, said("what the model says")]
    annotations: Annotated[list[Json], said("always empty")]
    logprobs: Annotated[list[Json], said("always empty")]


class ReasoningText(TypedDict):
    type: Annotated[Literal["reasoning_text"], said("always `reasoning_text`")]
    text: Annotated[str, said("what the model thought")]


class MessageItem(TypedDict):
    id: Annotated[str, said("of the item")]
    type: Annotated[Literal["message"], said("always `message`")]
    status: Annotated[ItemStatus, said("how far it is")]
    role: Annotated[Literal["assistant"], said("always `assistant`")]
    content: Annotated[list[OutputText], said("one text; none in the event that begins it")]


class CallItem(TypedDict):
    """A call of a function."""

    id: Annotated[str, said("of the item")]
    type: Annotated[Literal["function_call"], said("always `function_call`")]
    status: Annotated[ItemStatus, said("how far it is")]
    call_id: Annotated[str, said("for the item with its result")]
    name: Annotated[str, said("the function's")]
    namespace: NotRequired[Annotated[str, said("that the request defines the function in")]]
    arguments: Annotated[str, said("JSON")]


class ReasoningItem(TypedDict):
    id: Annotated[str, said("of the item")]
    type: Annotated[Literal["reasoning"], said("always `reasoning`")]
    status: Annotated[ItemStatus, said("how far it is")]
    summary: Annotated[list[Json], said("always empty")]
    content: Annotated[list[ReasoningText], said("one text; none in the event that begins it")]


OutputItem = MessageItem | CallItem | ReasoningItem


class Incomplete(TypedDict):
    reason: Annotated[Literal["max_output_tokens"], said("a limit ended it")]


class ResponseError(TypedDict):
    code: Annotated[str, said("the kind of error")]
    message: Annotated[str, said("what happened")]


class InputDetails(TypedDict):
    cached_tokens: Annotated[int, said("of the prompt, that were in the cache")]
    cache_write_tokens: Annotated[int, said("always 0")]


class OutputDetails(TypedDict):
    reasoning_tokens: Annotated[int, said("of the answer, that are reasoning")]


class ResponsesUsage(TypedDict):
    """Tokens."""

    input_tokens: Annotated[int, said("of the prompt")]
    input_tokens_details: Annotated[InputDetails, said("of these")]
    output_tokens: Annotated[int, said("of the answer")]
    output_tokens_details: Annotated[OutputDetails, said("of these")]
    total_tokens: Annotated[int, said("both together")]


class ReasoningSettings(TypedDict):
    effort: Annotated[str | None, said("as it was asked for")]
    summary: Annotated[None, said("always null")]


class TextSettings(TypedDict):
    format: Annotated[Json, said("as it was asked for; else of type `text`")]


class ResponsesAnswer(TypedDict):
    """The answer of `/v1/responses`."""

    id: Annotated[str, said("of this request")]
    object: Annotated[Literal["response"], said("always `response`")]
    created_at: Annotated[int, said("when, in seconds since 1970")]
    status: Annotated[
        Literal["in_progress", "completed", "incomplete", "failed"], said("`in_progress` and `failed` in streams alone")
    ]
    model: Annotated[str, said("the name that was asked for")]
    output: Annotated[list[OutputItem], said("what the model thinks and says, and which functions it wants called")]
    usage: Annotated[ResponsesUsage | None, said("tokens, once it has ended")]
    error: Annotated[ResponseError | None, said("why it failed")]
    incomplete_details: Annotated[Incomplete | None, said("why it is not whole")]
    instructions: Annotated[str | None, said("as they were given")]
    metadata: Annotated[Json, said("as it was given")]
    max_output_tokens: Annotated[int | None, said("as it was given")]
    temperature: Annotated[float, said("that it was made with")]
    top_p: Annotated[float, said("that it was made with")]
    reasoning: Annotated[ReasoningSettings, said("that it was made with")]
    text: Annotated[TextSettings, said("that it was made with")]
    tools: Annotated[list[Json], said("as they were given")]
    tool_choice: Annotated[Any, said("as it was given; else `auto`")]
    parallel_tool_calls: Annotated[bool, said("whether it may have several calls")]
    previous_response_id: Annotated[None, said("always null: nothing is kept")]
    background: Annotated[bool, said("always false")]
    store: Annotated[bool, said("always false: nothing is kept")]
    truncation: Annotated[Literal["auto", "disabled"], said("as it was given; else `disabled`")]
    user: Annotated[str | None, said("as it was given")]


class _Numbered(TypedDict):
    sequence_number: Annotated[int, said("of the event in its stream, from 0")]


class ResponseEvent(_Numbered):
    """The stream's first two events and its last, with the response as it is then."""

    type: Annotated[
        Literal[
            "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
        ],
        said("what happened"),
    ]
    response: Annotated[ResponsesAnswer, said("as it is now")]


class ItemEvent(_Numbered):
    """An item begins or has ended."""

    type: Annotated[Literal["response.output_item.added", "response.output_item.done"], said("which of both")]
    output_index: Annotated[int, said("place of the item in `output`")]
    item: Annotated[OutputItem, said("as it is now")]


class _Placed(_Numbered):
    item_id: Annotated[str, said("of the item")]
    output_index: Annotated[int, said("its place in `output`")]


class _Within(_Placed):
    content_index: Annotated[int, said("always 0")]


class PartEvent(_Within):
    """A message's or a reasoning's text begins or has ended."""

    type: Annotated[Literal["response.content_part.added", "response.content_part.done"], said("which of both")]
    part: Annotated[OutputText | ReasoningText, said("as it is now")]


class TextEvent(_Within):
    """More text."""

    type: Annotated[Literal["response.output_text.delta"], said("always `response.output_text.delta`")]
    delta: Annotated[str, said("what it grew by")]
    logprobs: Annotated[list[Json], said("always empty")]


class TextDone(_Within):
    """All of a text."""

    type: Annotated[Literal["response.output_text.done"], said("always `response.output_text.done`")]
    text: Annotated[str, said("all of it")]
    logprobs: Annotated[list[Json], said("always empty")]


class ReasoningEvent(_Within):
    """More reasoning."""

    type: Annotated[Literal["response.reasoning_text.delta"], said("always `response.reasoning_text.delta`")]
    delta: Annotated[str, said("what it grew by")]


class ReasoningDone(_Within):
    """All of a reasoning."""

    type: Annotated[Literal["response.reasoning_text.done"], said("always `response.reasoning_text.done`")]
    text: Annotated[str, said("all of it")]


class ArgumentsEvent(_Placed):
    """More of a call's arguments."""

    type: Annotated[
        Literal["response.function_call_arguments.delta"], said("always `response.function_call_arguments.delta`")
    ]
    delta: Annotated[str, said("more of the JSON")]


class ArgumentsDone(_Placed):
    """All of a call's arguments."""

    type: Annotated[
        Literal["response.function_call_arguments.done"], said("always `response.function_call_arguments.done`")
    ]
    arguments: Annotated[str, said("all of the JSON")]
    name: Annotated[str, said("the function's")]


RESPONSE_EVENTS = (
    ResponseEvent,
    ItemEvent,
    PartEvent,
    TextEvent,
    TextDone,
    ReasoningEvent,
    ReasoningDone,
    ArgumentsEvent,
    ArgumentsDone,
)
