"""Answers of ``/v1/responses``, whole and streamed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from runtime.server.answers.common import Json
from runtime.server.fields import api_field

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    type: Annotated[Literal["output_text"], api_field("always `output_text`")]
    text: Annotated[str, api_field("what the model says")]
    annotations: Annotated[list[Json], api_field("always empty")]
    logprobs: Annotated[list[Json], api_field("always empty")]


class ReasoningText(TypedDict):
    type: Annotated[Literal["reasoning_text"], api_field("always `reasoning_text`")]
    text: Annotated[str, api_field("what the model thought")]


class MessageItem(TypedDict):
    id: Annotated[str, api_field("of the item")]
    type: Annotated[Literal["message"], api_field("always `message`")]
    status: Annotated[ItemStatus, api_field("how far it is")]
    role: Annotated[Literal["assistant"], api_field("always `assistant`")]
    content: Annotated[list[OutputText], api_field("one text; none in the event that begins it")]


class CallItem(TypedDict):
    """A call of a function."""

    id: Annotated[str, api_field("of the item")]
    type: Annotated[Literal["function_call"], api_field("always `function_call`")]
    status: Annotated[ItemStatus, api_field("how far it is")]
    call_id: Annotated[str, api_field("for the item with its result")]
    name: Annotated[str, api_field("the function's")]
    namespace: NotRequired[Annotated[str, api_field("that the request defines the function in")]]
    arguments: Annotated[str, api_field("JSON")]


class ReasoningItem(TypedDict):
    id: Annotated[str, api_field("of the item")]
    type: Annotated[Literal["reasoning"], api_field("always `reasoning`")]
    status: Annotated[ItemStatus, api_field("how far it is")]
    summary: Annotated[list[Json], api_field("always empty")]
    content: Annotated[list[ReasoningText], api_field("one text; none in the event that begins it")]


OutputItem = MessageItem | CallItem | ReasoningItem


class Incomplete(TypedDict):
    reason: Annotated[Literal["max_output_tokens"], api_field("a limit ended it")]


class ResponseError(TypedDict):
    code: Annotated[str, api_field("the kind of error")]
    message: Annotated[str, api_field("what happened")]


class InputDetails(TypedDict):
    cached_tokens: Annotated[int, api_field("of the prompt, that were in the cache")]
    cache_write_tokens: Annotated[int, api_field("always 0")]


class OutputDetails(TypedDict):
    reasoning_tokens: Annotated[int, api_field("of the answer, that are reasoning")]


class ResponsesUsage(TypedDict):
    """Tokens."""

    input_tokens: Annotated[int, api_field("of the prompt")]
    input_tokens_details: Annotated[InputDetails, api_field("of these")]
    output_tokens: Annotated[int, api_field("of the answer")]
    output_tokens_details: Annotated[OutputDetails, api_field("of these")]
    total_tokens: Annotated[int, api_field("both together")]


class ReasoningSettings(TypedDict):
    effort: Annotated[str | None, api_field("as it was asked for")]
    summary: Annotated[None, api_field("always null")]


class TextSettings(TypedDict):
    format: Annotated[Json, api_field("as it was asked for; else of type `text`")]


class ResponsesAnswer(TypedDict):
    """The answer of `/v1/responses`."""

    id: Annotated[str, api_field("of this request")]
    object: Annotated[Literal["response"], api_field("always `response`")]
    created_at: Annotated[int, api_field("when, in seconds since 1970")]
    status: Annotated[
        Literal["in_progress", "completed", "incomplete", "failed"],
        api_field("`in_progress` and `failed` in streams alone"),
    ]
    model: Annotated[str, api_field("the name that was asked for")]
    output: Annotated[
        list[OutputItem], api_field("what the model thinks and says, and which functions it wants called")
    ]
    usage: Annotated[ResponsesUsage | None, api_field("tokens, once it has ended")]
    error: Annotated[ResponseError | None, api_field("why it failed")]
    incomplete_details: Annotated[Incomplete | None, api_field("why it is not whole")]
    instructions: Annotated[str | None, api_field("as they were given")]
    metadata: Annotated[Json, api_field("as it was given")]
    max_output_tokens: Annotated[int | None, api_field("as it was given")]
    temperature: Annotated[float, api_field("that it was made with")]
    top_p: Annotated[float, api_field("that it was made with")]
    reasoning: Annotated[ReasoningSettings, api_field("that it was made with")]
    text: Annotated[TextSettings, api_field("that it was made with")]
    tools: Annotated[list[Json], api_field("as they were given")]
    tool_choice: Annotated[Any, api_field("as it was given; else `auto`")]
    parallel_tool_calls: Annotated[bool, api_field("whether it may have several calls")]
    previous_response_id: Annotated[None, api_field("always null: nothing is kept")]
    background: Annotated[bool, api_field("always false")]
    store: Annotated[bool, api_field("always false: nothing is kept")]
    truncation: Annotated[Literal["auto", "disabled"], api_field("as it was given; else `disabled`")]
    user: Annotated[str | None, api_field("as it was given")]


class _Numbered(TypedDict):
    sequence_number: Annotated[int, api_field("of the event in its stream, from 0")]


class ResponseEvent(_Numbered):
    """The stream's first two events and its last, with the response as it is then."""

    type: Annotated[
        Literal[
            "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
        ],
        api_field("what happened"),
    ]
    response: Annotated[ResponsesAnswer, api_field("as it is now")]


class ItemEvent(_Numbered):
    """An item begins or has ended."""

    type: Annotated[Literal["response.output_item.added", "response.output_item.done"], api_field("which of both")]
    output_index: Annotated[int, api_field("place of the item in `output`")]
    item: Annotated[OutputItem, api_field("as it is now")]


class _Placed(_Numbered):
    item_id: Annotated[str, api_field("of the item")]
    output_index: Annotated[int, api_field("its place in `output`")]


class _Within(_Placed):
    content_index: Annotated[int, api_field("always 0")]


class PartEvent(_Within):
    """A message's or a reasoning's text begins or has ended."""

    type: Annotated[Literal["response.content_part.added", "response.content_part.done"], api_field("which of both")]
    part: Annotated[OutputText | ReasoningText, api_field("as it is now")]


class TextEvent(_Within):
    """More text."""

    type: Annotated[Literal["response.output_text.delta"], api_field("always `response.output_text.delta`")]
    delta: Annotated[str, api_field("what it grew by")]
    logprobs: Annotated[list[Json], api_field("always empty")]


class TextDone(_Within):
    """All of a text."""

    type: Annotated[Literal["response.output_text.done"], api_field("always `response.output_text.done`")]
    text: Annotated[str, api_field("all of it")]
    logprobs: Annotated[list[Json], api_field("always empty")]


class ReasoningEvent(_Within):
    """More reasoning."""

    type: Annotated[Literal["response.reasoning_text.delta"], api_field("always `response.reasoning_text.delta`")]
    delta: Annotated[str, api_field("what it grew by")]


class ReasoningDone(_Within):
    """All of a reasoning."""

    type: Annotated[Literal["response.reasoning_text.done"], api_field("always `response.reasoning_text.done`")]
    text: Annotated[str, api_field("all of it")]


class ArgumentsEvent(_Placed):
    """More of a call's arguments."""

    type: Annotated[
        Literal["response.function_call_arguments.delta"], api_field("always `response.function_call_arguments.delta`")
    ]
    delta: Annotated[str, api_field("more of the JSON")]


class ArgumentsDone(_Placed):
    """All of a call's arguments."""

    type: Annotated[
        Literal["response.function_call_arguments.done"], api_field("always `response.function_call_arguments.done`")
    ]
    arguments: Annotated[str, api_field("all of the JSON")]
    name: Annotated[str, api_field("the function's")]


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
