"""Request bodies: which fields there are and of what type; those of an answer are ``runtime.request.params``'s.

Ranges and meanings are checked by ``runtime.request``, and stand here for the OpenAPI alone.

Types are strict (no "5" for 5, no true for 1). A field that this version does not build is listed with the values
that ask for nothing; any other value is refused by name, never accepted and ignored. A field that nobody knows is
ignored, and the answer's header names it (``fields.ignored``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, from_json

from runtime.errors import RequestError
from runtime.request.params import PARAMETERS
from runtime.server.adapter_bodies import LoadAdapterRequest, UnloadAdapterRequest
from runtime.server.conversation import Messages
from runtime.server.fields import Body, Unbuilt
from runtime.server.openapi import values_schema
from runtime.server.shape import check_shape

MAX_SEGMENTS = 1024
MAX_ENTRIES = 64  # of metadata and of chat_template_kwargs; what a whole body may hold stands in shape.py


def _prompt(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and set(map(type, value)) <= {int}):
        return value
    raise PydanticCustomError("prompt_type", "must be a string or a list of token ids")


def _prompts(value: Any) -> Any:
    items = value if isinstance(value, list) and value and type(value[0]) is not int else [value]
    for item in items:
        try:
            _prompt(item)
        except PydanticCustomError:
            raise PydanticCustomError(
                "prompt_type", "must be a string, a list of token ids, or a list of strings or of such lists"
            ) from None
    return value


def _stop(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return value
    raise PydanticCustomError("stop_type", "must be a string or a list of strings")


_IDS = {"type": "array", "items": {"type": "integer"}}
_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING}
Prompt = Annotated[Any, PlainValidator(_prompt), WithJsonSchema({"anyOf": [_STRING, _IDS]})]
Prompts = Annotated[
    Any,
    PlainValidator(_prompts),
    WithJsonSchema({"anyOf": [_STRING, _IDS, _STRINGS, {"type": "array", "items": _IDS}]}),
]
Entries = Annotated[dict[str, Any], Field(max_length=MAX_ENTRIES)]
Stop = Annotated[Any, PlainValidator(_stop), WithJsonSchema({"anyOf": [_STRING, _STRINGS, {"type": "null"}]})]


_TYPES = {"integer": int, "number": float, "flag": bool, "text": str, "object": dict[str, Any]}
_DECLARED = {field.name: field for field in PARAMETERS}


def asked(name: str) -> Any:
    """The type of a declared field, which may be null."""
    field = _DECLARED[name]
    kind = _TYPES.get(field.kind, Stop)
    if field.refused:
        kind = Annotated[kind, WithJsonSchema({"type": "null"})]
    elif field.kind in _TYPES and field.kind != "object" and not field.stands_for:
        kind = Annotated[kind, WithJsonSchema(values_schema(field))]
    return Annotated[kind | None, Field(description=field.refused or field.help)]


if TYPE_CHECKING:

    class Asked(Body):
        """Of the declared fields, those that routes read by themselves."""

        n: int | None
        max_tokens: int | None

else:
    Asked = pydantic.create_model("Asked", __base__=Body, **{name: (asked(name), None) for name in _DECLARED})


class Generation(Asked):
    """What every route that generates understands."""

    stream: bool | None = None
    stop_token_ids: Annotated[Any, Unbuilt([])] = None
    min_tokens: Annotated[Any, Unbuilt(0)] = None
    min_p: Annotated[Any, Unbuilt(0)] = None
    skip_special_tokens: Annotated[Any, Unbuilt(True)] = None
    spaces_between_special_tokens: Annotated[Any, Unbuilt(True)] = None
    include_stop_str_in_output: Annotated[Any, Unbuilt(False)] = None
    use_beam_search: Annotated[Any, Unbuilt(False)] = None
    length_penalty: Annotated[Any, Unbuilt(1)] = None
    early_stopping: Annotated[Any, Unbuilt(False)] = None
    frequency_penalty: Annotated[Any, Unbuilt(0)] = None
    presence_penalty: Annotated[Any, Unbuilt(0)] = None
    repetition_penalty: Annotated[Any, Unbuilt(1)] = None
    logit_bias: Annotated[Any, Unbuilt({})] = None
    bad_words: Annotated[Any, Unbuilt([])] = None
    allowed_token_ids: Annotated[Any, Unbuilt()] = None
    logits_processors: Annotated[Any, Unbuilt([])] = None
    prompt_logprobs: Annotated[Any, Unbuilt()] = None
    truncate_prompt_tokens: Annotated[Any, Unbuilt()] = None
    guided_json: Annotated[Any, Field(description="`structured_outputs.json`")] = None
    guided_regex: Annotated[Any, Field(description="`structured_outputs.regex`")] = None
    guided_choice: Annotated[Any, Field(description="`structured_outputs.choice`")] = None
    guided_grammar: Annotated[Any, Field(description="`structured_outputs.grammar`")] = None
    regex: Annotated[Any, Field(description="`structured_outputs.regex`")] = None
    json_schema: Annotated[Any, Field(description="`structured_outputs.json`")] = None
    ebnf: Annotated[Any, Field(description="`structured_outputs.grammar`")] = None

    def asked(self) -> dict[str, Any]:
        """What was given of the declared fields, by their names."""
        fields = type(self).model_fields  # pydantic works at it each time
        given = ((name, getattr(self, name)) for name in _DECLARED if name in fields)
        return {name: value for name, value in given if value is not None}


class GenerateRequest(Generation):
    model: str | None = None
    prompt: Prompt
    n: Annotated[Any, Unbuilt(1)] = None
    stream_mode: Literal["denoise", "block_append"] | None = None


class Segment(Body):
    """A piece of a text with holes: a text that stays, or a hole."""

    text: str | None = None
    mask: Annotated[int | None, Field(description="tokens of the hole")] = None


class InfillRequest(Generation):
    model: str | None = None
    text: Annotated[str | None, Field(description="with holes: <mask:8> is one of eight tokens")] = None
    segments: Annotated[list[Segment], Field(max_length=MAX_SEGMENTS, fail_fast=True)] | None = None
    messages: Annotated[Messages | None, Field(description="the conversation that the text is the answer to")] = None
    chat_template_kwargs: Entries | None = None
    n: Annotated[Any, Unbuilt(1)] = None
    stream_mode: Literal["denoise"] | None = None


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[Any, Unbuilt(False)] = None


class OpenAIRequest(Generation):
    """The fields that chat and completions share."""

    model: str | None = None
    stream_options: StreamOptions | None = None
    stream_mode: Literal["denoise", "block_append"] | None = None  # the second is what OpenAI's stream is anyway
    user: str | None = None
    metadata: Entries | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None  # prefixes are cached without it
    response_format: Annotated[Any, Field(description="text, or JSON: json_object, json_schema")] = None


class ChatRequest(OpenAIRequest):
    messages: Messages
    max_completion_tokens: int | None = None
    chat_template_kwargs: Entries | None = None
    parallel_tool_calls: bool | None = None
    logprobs: Annotated[Any, Unbuilt(False)] = None
    top_logprobs: Annotated[Any, Unbuilt(0)] = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Annotated[Any, Unbuilt("none", "auto")] = None
    functions: list[dict[str, Any]] | None = None
    echo: Annotated[Any, Unbuilt(False)] = None
    add_generation_prompt: Annotated[Any, Unbuilt(True)] = None
    continue_final_message: Annotated[Any, Unbuilt(False)] = None
    chat_template: Annotated[Any, Unbuilt()] = None
    documents: Annotated[Any, Unbuilt([])] = None
    function_call: Annotated[Any, Unbuilt("none", "auto")] = None
    modalities: Annotated[Any, Unbuilt(["text"])] = None
    audio: Annotated[Any, Unbuilt()] = None
    prediction: dict[str, Any] | None = None  # makes OpenAI's answers faster, not different
    reasoning_effort: str | None = None  # the template's, where it knows it
    verbosity: Annotated[Any, Unbuilt("medium")] = None
    web_search_options: Annotated[Any, Unbuilt()] = None


class CompletionRequest(OpenAIRequest):
    prompt: Prompts
    best_of: Annotated[Any, Unbuilt(1)] = None
    echo: Annotated[Any, Unbuilt(False)] = None
    logprobs: Annotated[Any, Unbuilt()] = None
    suffix: Annotated[Any, Unbuilt("")] = None


class TokenizeRequest(Body):
    """Either a prompt or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    chat_template_kwargs: Entries | None = None


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]
    return_bytes: Annotated[bool | None, Field(description="also the bytes of each token")] = None


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: ErrorDetail


BODIES: tuple[type[BaseModel], ...] = (
    GenerateRequest,
    ChatRequest,
    CompletionRequest,
    InfillRequest,
    TokenizeRequest,
    DetokenizeRequest,
    LoadAdapterRequest,
    UnloadAdapterRequest,
    ErrorResponse,
)

B = TypeVar("B", bound=Body)

# what pydantic says of Python's types, as JSON has it
_JSON_WORDS = {
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
}


def parse_body(kind: type[B], data: bytes) -> B:
    """The body, or RequestError: 400, as OpenAI answers whatever is wrong with a body.

    Large bodies go through its three steps one by one, so that none holds the event loop for long.
    """
    check_shape(data)
    return validate(kind, decode(data))


def decode(data: bytes) -> Any:
    """JSON's values. Raises RequestError 400."""
    try:
        return from_json(data)
    except ValueError as invalid:
        raise RequestError(f"the body is not JSON: {invalid}", code="invalid_json") from None


def validate(kind: type[B], value: Any) -> B:
    """The body that `value` is. Raises RequestError 400.

    A list ends at its first error; how many an object can have is limited by what a body may hold.
    """
    try:
        return kind.model_validate(value)
    except pydantic.ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    param = _path(first["loc"])
    if param is None:
        raise RequestError("the body must be a JSON object")
    raise RequestError(f"{param}: {_JSON_WORDS.get(first['type'], first['msg'])}", param=param)


def _path(loc: tuple[int | str, ...]) -> str | None:
    """``("messages", 0, "content", "str")`` -> ``"messages[0].content"``; long names of clients are cut."""
    path = ""
    for part in loc:
        if part in ("str", "list"):  # a union's arm
            continue
        path += f"[{part}]" if isinstance(part, int) else ("." if path else "") + part[:80]
    return path or None
