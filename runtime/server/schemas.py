"""Request bodies: their fields and types. Those of an answer are in ``runtime.request.sampling_params``.

Ranges and meanings are checked by ``runtime.request``, and stand here for the OpenAPI alone.

Types are strict (no "5" for 5, no true for 1). A field that this version does not build is listed with the values
that ask for nothing; any other value is refused by name, never accepted and ignored. A field that nobody knows is
ignored, and the answer's header names it (``fields.ignored``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from runtime.errors import RequestError
from runtime.request.sampling_params import PARAMETERS
from runtime.request.scoring import MAX_TOKENS_PER_STEP
from runtime.server.conversation import EXAMPLE_CHAT, Messages
from runtime.server.fields import Integer, Integers, RequestModel, UnsupportedField, api_field
from runtime.server.openapi import values_schema
from runtime.server.tooling import EXAMPLE_TOOLS, ToolChoice, ToolItems

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
ModelName = Annotated[str | None, api_field("a served name or an adapter's; the first name without it", "unmask-demo")]
GenerationPrompt = Annotated[
    bool | None, api_field("whether the prompt ends with what begins an assistant's message; default true", True)
]
FinalMessage = Annotated[
    bool | None, api_field("the answer continues the last message, which is an assistant's; default false", False)
]
Verbosity = Annotated[Literal["low", "medium", "high"] | None, api_field("changes nothing", "low")]
TemplateArguments = Annotated[Entries | None, api_field("for the chat template", {"enable_thinking": False})]
Stop = Annotated[Any, PlainValidator(_stop), WithJsonSchema({"anyOf": [_STRING, _STRINGS, {"type": "null"}]})]


_TYPES: dict[str, Any] = {
    "integer": Integer, "number": float, "flag": bool, "text": str, "object": dict[str, Any],
    "ids": Integers,
}  # fmt: skip
_DECLARED = {field.name: field for field in PARAMETERS}


def declared_type(name: str) -> Any:
    """The type of a declared field, which may be null."""
    field = _DECLARED[name]
    kind = _TYPES.get(field.kind, Stop)
    if field.refused:
        kind = Annotated[kind, WithJsonSchema({"type": "null"})]
    elif field.kind in _TYPES and field.kind not in ("object", "ids") and not field.stands_for:
        kind = Annotated[kind, WithJsonSchema(values_schema(field))]
    return Annotated[kind | None, api_field(field.refused or field.help, field.example)]


_DESCRIBED = frozenset({"name", "description", "schema", "strict"})  # of a JSON schema
_FORMATS: dict[Any, frozenset[str]] = {"json_object": frozenset({"schema"}), "json_schema": _DESCRIBED}


def unknown_format_keys(requested: object) -> Iterator[str]:
    """Paths of the non-null values in a `response_format` that the server does not know."""
    if not isinstance(requested, dict):
        return
    kind, inner = requested.get("type"), requested.get("json_schema")
    nested = kind == "json_schema" and isinstance(inner, dict)
    known = frozenset({"json_schema"}) if nested else _FORMATS.get(kind, frozenset()) if isinstance(kind, str) else ()
    yield from (name for name, value in requested.items() if name not in known and name != "type" and value is not None)
    if nested and isinstance(inner, dict):
        found = (name for name, value in inner.items() if name not in _DESCRIBED and value is not None)
        yield from (f"json_schema.{name}" for name in found)


if TYPE_CHECKING:

    class Asked(RequestModel):
        """Of the declared fields, those that routes read by themselves."""

        n: int | None
        max_tokens: int | None
        stop: Any

else:
    Asked = pydantic.create_model(
        "Asked", __base__=RequestModel, **{name: (declared_type(name), None) for name in _DECLARED}
    )


class GenerationRequest(Asked):
    """What every route that generates understands."""

    stream: Annotated[bool | None, api_field("whether the answer comes as server-sent events", True)] = None
    skip_special_tokens: Annotated[Any, UnsupportedField(True)] = None
    spaces_between_special_tokens: Annotated[Any, UnsupportedField(True)] = None
    include_stop_str_in_output: Annotated[Any, UnsupportedField(False)] = None
    use_beam_search: Annotated[Any, UnsupportedField(False)] = None
    length_penalty: Annotated[Any, UnsupportedField(1)] = None
    early_stopping: Annotated[Any, UnsupportedField(False)] = None
    bad_words: Annotated[Any, UnsupportedField([])] = None
    allowed_token_ids: Annotated[Any, UnsupportedField()] = None
    logits_processors: Annotated[Any, UnsupportedField([])] = None
    prompt_logprobs: Annotated[Any, UnsupportedField()] = None
    truncate_prompt_tokens: Annotated[Any, UnsupportedField()] = None
    guided_json: Annotated[Any, api_field("`structured_outputs.json`", '{"type": "object"}')] = None
    guided_regex: Annotated[Any, api_field("`structured_outputs.regex`", "[a-z]+")] = None
    guided_choice: Annotated[Any, api_field("`structured_outputs.choice`", ["yes", "no"])] = None
    guided_grammar: Annotated[Any, api_field("`structured_outputs.grammar`", 'start: "yes" | "no"')] = None
    regex: Annotated[Any, api_field("`structured_outputs.regex`", "[a-z]+")] = None
    json_schema: Annotated[Any, api_field("`structured_outputs.json`", '{"type": "object"}')] = None
    ebnf: Annotated[Any, api_field("`structured_outputs.grammar`", 'root ::= "yes" | "no"')] = None
    response_format: Annotated[
        Any, api_field("text, or JSON: json_object (with or without a schema), json_schema", {"type": "json_object"})
    ] = None

    def set_fields(self) -> dict[str, Any]:
        """What was given of the declared fields, by their names."""
        unknown = self.model_extra or {}  # those of a body that has not all of them
        names = (name for name in self.model_fields_set if name in _DECLARED and name not in unknown)
        values = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in values if value is not None}

    def format(self) -> tuple[str, Any]:
        """The path and the value of the field, other than `structured_outputs`, that sets the answer's form."""
        return "response_format", self.response_format

    def ignored_paths(self) -> Iterator[str]:
        yield from super().ignored_paths()
        path, requested = self.format()
        yield from (f"{path}.{name}" for name in unknown_format_keys(requested))


class SingleChoiceRequest(GenerationRequest):
    """Of a dialect whose answers have no place for several, or for log-probabilities."""

    n: Annotated[Any, UnsupportedField(1)] = None
    logprobs: Annotated[Any, UnsupportedField()] = None
    top_logprobs: Annotated[Any, UnsupportedField(0)] = None
    stream_mode: Annotated[Any, UnsupportedField("block_append")] = None  # which its streams are


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


class StreamOptions(RequestModel):
    include_usage: Annotated[bool | None, api_field("the stream's last chunk tells the usage", True)] = None
    continuous_usage_stats: Annotated[bool | None, api_field("with it, every chunk does", False)] = None
    include_obfuscation: Annotated[Any, UnsupportedField(False)] = None


class OpenAIRequest(GenerationRequest):
    """The fields that chat and completions share."""

    model: ModelName = None
    stream_options: Annotated[StreamOptions | None, api_field("what else a stream tells", {"include_usage": True})] = (
        None
    )
    stream_mode: Annotated[
        Literal["denoise", "block_append"] | None,
        api_field("`denoise` tells the open blocks after each step too; `block_append` changes nothing", "denoise"),
    ] = None
    user: Annotated[str | None, api_field("read by nobody", "someone")] = None
    metadata: Annotated[Entries | None, api_field("read by nobody", {"topic": "sums"})] = None
    store: Annotated[bool | None, api_field("changes nothing: no answers are kept", False)] = None
    service_tier: Annotated[str | None, api_field("changes nothing", "auto")] = None
    safety_identifier: Annotated[str | None, api_field("read by nobody", "someone")] = None
    prompt_cache_key: Annotated[str | None, api_field("changes nothing: prefixes are cached without it", "sums")] = None


class ChatRequest(OpenAIRequest):
    messages: Annotated[
        Messages, api_field("the conversation so far; the answer is a new message behind it", EXAMPLE_CHAT)
    ]
    max_completion_tokens: Annotated[Integer | None, api_field("`max_tokens`", 64)] = None
    chat_template_kwargs: TemplateArguments = None
    parallel_tool_calls: Annotated[
        bool | None, api_field("whether the answer may have several calls; default true", True)
    ] = None
    logprobs: Annotated[bool | None, api_field("tell each token's log-probability", True)] = None
    top_logprobs: Annotated[
        Integer | None, api_field("and those of so many alternatives in its place, up to 20", 2)
    ] = None
    tools: Annotated[ToolItems | None, api_field("functions that the model may call", EXAMPLE_TOOLS)] = None
    tool_choice: ToolChoice = None
    functions: Annotated[list[dict[str, Any]] | None, api_field("an old name of `tools`, refused unless empty", [])] = (
        None
    )
    echo: Annotated[Any, UnsupportedField(False)] = None
    add_generation_prompt: GenerationPrompt = None
    continue_final_message: FinalMessage = None
    chat_template: Annotated[Any, UnsupportedField()] = None
    documents: Annotated[Any, UnsupportedField([])] = None
    function_call: Annotated[
        Any, api_field("an old name of `tool_choice`, refused unless `none` or `auto`", "none")
    ] = None
    modalities: Annotated[Any, UnsupportedField(["text"])] = None
    audio: Annotated[Any, UnsupportedField()] = None
    prediction: Annotated[
        dict[str, Any] | None,
        api_field("changes nothing: it makes others' answers faster", {"type": "content", "content": "12 + 30 = 42."}),
    ] = None
    reasoning_effort: Annotated[str | None, api_field("for templates that know it", "low")] = None
    verbosity: Verbosity = None
    web_search_options: Annotated[
        dict[str, Any] | None, api_field("ignored, and named in `X-Unmask-Ignored`: the server searches nothing", {})
    ] = None

    def ignored_paths(self) -> Iterator[str]:
        yield from super().ignored_paths()
        if self.web_search_options is not None:
            yield "web_search_options"

    def set_fields(self) -> dict[str, Any]:
        """With `logprobs` as a number. Raises RequestError for `top_logprobs` without it."""
        found = super().set_fields()
        requested = found.pop("logprobs", False)
        if requested:
            found["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise RequestError("top_logprobs: only with logprobs true; leave it out", param="top_logprobs")
        return found


class CompletionRequest(OpenAIRequest):
    prompt: Annotated[
        Prompts, api_field("what is continued: a text, token ids, or several of either", "Solve: 12 + 30.")
    ]
    best_of: Annotated[Any, UnsupportedField(1)] = None
    echo: Annotated[bool | None, api_field("the prompt before the answer, in its text and logprobs", False)] = None
    prompt_logprobs_stride: Annotated[
        Integer | None, api_field("tokens of an echoed prompt that a forward scores", 1, ge=1, le=MAX_TOKENS_PER_STEP)
    ] = None
    suffix: Annotated[str | None, api_field("what stands behind the answer", " 8, 10")] = None


class TokenizeRequest(RequestModel):
    """Either a prompt or the messages of a chat."""

    model: ModelName = None
    prompt: Annotated[str | None, api_field("a text", "Solve: 12 + 30.")] = None
    messages: Annotated[Messages | None, api_field("a chat, instead of a prompt", EXAMPLE_CHAT)] = None
    tools: Annotated[ToolItems | None, api_field("functions that its template is told of", EXAMPLE_TOOLS)] = None
    chat_template_kwargs: TemplateArguments = None
    add_generation_prompt: GenerationPrompt = None
    continue_final_message: FinalMessage = None
    add_special_tokens: Annotated[
        bool | None, api_field("whether the token that begins a model's prompts comes first; default true", True)
    ] = None


class DetokenizeRequest(RequestModel):
    model: ModelName = None
    tokens: Annotated[Integers, api_field("ids", [40, 41, 42])]
    return_bytes: Annotated[bool | None, api_field("also the bytes of each token", False)] = None
