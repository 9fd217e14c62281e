"""Request bodies: which fields there are and of what type; those of an answer are ``runtime.request.params``'s.

Ranges and meanings are checked by ``runtime.request``, and stand here for the OpenAPI alone.

Types are strict (no "5" for 5, no true for 1). A field that this version does not build is listed with the values
that ask for nothing; any other value is refused by name, never accepted and ignored. A field that nobody knows is
ignored, and the answer's header names it (``fields.ignored``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from runtime.errors import RequestError
from runtime.request.params import PARAMETERS
from runtime.request.scoring import MOST_STRIDE
from runtime.server.conversation import Messages
from runtime.server.fields import Body, Unbuilt
from runtime.server.openapi import values_schema
from runtime.server.tooling import ToolChoice, ToolItems

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


_TYPES: dict[str, Any] = {
    "integer": int, "number": float, "flag": bool, "text": str, "object": dict[str, Any],
    "ids": Annotated[list[int], Field(fail_fast=True)],
}  # fmt: skip
_DECLARED = {field.name: field for field in PARAMETERS}


def asked(name: str) -> Any:
    """The type of a declared field, which may be null."""
    field = _DECLARED[name]
    kind = _TYPES.get(field.kind, Stop)
    if field.refused:
        kind = Annotated[kind, WithJsonSchema({"type": "null"})]
    elif field.kind in _TYPES and field.kind not in ("object", "ids") and not field.stands_for:
        kind = Annotated[kind, WithJsonSchema(values_schema(field))]
    return Annotated[kind | None, Field(description=field.refused or field.help)]


if TYPE_CHECKING:

    class Asked(Body):
        """Of the declared fields, those that routes read by themselves."""

        n: int | None
        max_tokens: int | None
        stop: Any

else:
    Asked = pydantic.create_model("Asked", __base__=Body, **{name: (asked(name), None) for name in _DECLARED})


class Generation(Asked):
    """What every route that generates understands."""

    stream: bool | None = None
    skip_special_tokens: Annotated[Any, Unbuilt(True)] = None
    spaces_between_special_tokens: Annotated[Any, Unbuilt(True)] = None
    include_stop_str_in_output: Annotated[Any, Unbuilt(False)] = None
    use_beam_search: Annotated[Any, Unbuilt(False)] = None
    length_penalty: Annotated[Any, Unbuilt(1)] = None
    early_stopping: Annotated[Any, Unbuilt(False)] = None
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
        unknown = self.model_extra or {}  # those of a body that has not all of them
        names = (name for name in self.model_fields_set if name in _DECLARED and name not in unknown)
        given = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in given if value is not None}

    def format(self) -> tuple[str, Any]:
        """Where the answer's form is asked for beside `structured_outputs`, and what stands there, as chat has it."""
        return "response_format", getattr(self, "response_format", None)


class OneAnswer(Generation):
    """Of a dialect whose answers have no place for several, or for log-probabilities."""

    n: Annotated[Any, Unbuilt(1)] = None
    logprobs: Annotated[Any, Unbuilt()] = None
    top_logprobs: Annotated[Any, Unbuilt(0)] = None
    stream_mode: Annotated[Any, Unbuilt("block_append")] = None  # which its streams are


class GenerateRequest(Generation):
    """Either a prompt, continued as it is, or the messages of a chat."""

    model: str | None = None
    prompt: Prompt | None = None
    messages: Messages | None = None
    chat_template_kwargs: Entries | None = None
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
    logprobs: Annotated[bool | None, Field(description="tell each token's log-probability")] = None
    top_logprobs: Annotated[
        int | None, Field(description="and those of so many of the likeliest in its place, up to 20")
    ] = None
    tools: ToolItems | None = None
    tool_choice: ToolChoice = None
    functions: list[dict[str, Any]] | None = None
    echo: Annotated[Any, Unbuilt(False)] = None
    add_generation_prompt: Annotated[Any, Unbuilt(True)] = None
    continue_final_message: Annotated[Any, Unbuilt(False)] = None
    chat_template: Annotated[Any, Unbuilt()] = None
    documents: Annotated[Any, Unbuilt([])] = None
    function_call: Any = None
    modalities: Annotated[Any, Unbuilt(["text"])] = None
    audio: Annotated[Any, Unbuilt()] = None
    prediction: dict[str, Any] | None = None  # makes OpenAI's answers faster, not different
    reasoning_effort: str | None = None  # the template's, where it knows it
    verbosity: Annotated[Any, Unbuilt("medium")] = None
    web_search_options: Annotated[Any, Unbuilt()] = None

    def asked(self) -> dict[str, Any]:
        """With `logprobs` as a number. Raises RequestError for `top_logprobs` without it."""
        found = super().asked()
        wanted = found.pop("logprobs", False)
        if wanted:
            found["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise RequestError("top_logprobs: only with logprobs true; leave it out", param="top_logprobs")
        return found


class CompletionRequest(OpenAIRequest):
    prompt: Prompts
    best_of: Annotated[Any, Unbuilt(1)] = None
    echo: Annotated[bool | None, Field(description="the prompt before the answer, in its text and logprobs")] = None
    prompt_logprobs_stride: Annotated[
        int | None, Field(ge=1, le=MOST_STRIDE, description="tokens of an echoed prompt that a forward scores")
    ] = None
    suffix: Annotated[str | None, Field(description="what stands behind the answer")] = None


class TokenizeRequest(Body):
    """Either a prompt or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: ToolItems | None = None
    chat_template_kwargs: Entries | None = None
    add_special_tokens: Annotated[
        bool | None, Field(description="whether the token that begins a model's prompts comes first; default true")
    ] = None


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
