"""Requests for generation: fields that all routes have, the format of the output, and what all responses report.

Types of requests are strict (no true for 1), but numbers may be texts ("5" for 5). Ranges are validated by
`runtime.request`; here they are for the OpenAPI document. Unsupported fields are declared with their neutral values,
and any other value is rejected. Unknown fields are ignored and named in the header X-Unmask-Ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NotRequired

import pydantic
from pydantic import Field, GetPydanticSchema, WithJsonSchema
from pydantic_core import core_schema
from typing_extensions import TypedDict

from runtime.request.field_spec import Limits
from runtime.request.sampling_params import PARAMETERS
from runtime.request.structured import FIELD
from runtime.request.validation import preview, refuse
from runtime.server.serving.request_body import (
    Integer,
    Integers,
    Number,
    RequestModel,
    UnsupportedField,
    api_field,
    optional,
)

MAX_ENTRIES = 64  # of metadata, of chat_template_kwargs and of include; `request_body` has the limits of a body


def _type_error(message: str) -> GetPydanticSchema:
    """Replaces the errors of a type, one for each arm of a union, with `message`."""
    return GetPydanticSchema(
        lambda kind, handler: core_schema.custom_error_schema(handler(kind), "value_type", custom_error_message=message)
    )


_FAIL_FAST = Field(fail_fast=True)
Prompt = Annotated[str | Integers, _type_error("must be a string or a list of token ids")]
Prompts = Annotated[
    str | Integers | Annotated[list[str | Integers], _FAIL_FAST],
    _type_error("must be a string, a list of token ids, or a list of strings or of such lists"),
]
Entries = Annotated[dict[str, Any], Field(max_length=MAX_ENTRIES)]
ModelName = Annotated[
    str | None, api_field("name of the model or of an adapter; default: the first model name", "unmask-demo")
]
ParseSpecial = Annotated[
    bool | None,
    api_field("read the texts of special tokens in a prompt of text as these tokens; default false", True),
]
TemplateArguments = Annotated[Entries | None, api_field("variables of the chat template", {"enable_thinking": False})]
Stop = Annotated[str | Annotated[list[str], _FAIL_FAST], _type_error("must be a string or a list of strings")]

_TYPES: dict[str, Any] = {
    "integer": Integer, "number": Number, "flag": bool, "text": str, "choice": str, "object": dict[str, Any],
    "ids": Integers,
}  # fmt: skip
_DECLARED = {field.name: field for field in PARAMETERS}
_JSON_TYPES = {"number": "number", "integer": "integer", "flag": "boolean", "choice": "string", "text": "string"}


def values_schema(limits: Limits) -> dict[str, Any]:
    """Returns the JSON schema of the valid values of a declared field, except ids and objects."""
    schema: dict[str, Any] = {"type": _JSON_TYPES[limits.kind]}
    if limits.kind == "choice":
        schema["enum"] = list(limits.choices)
    elif limits.kind == "text":
        schema["maxLength"] = limits.high
    elif limits.kind != "flag":
        schema["exclusiveMinimum" if limits.above_low else "minimum"] = limits.low
        if limits.high is not None:
            schema["maximum"] = limits.high
        if limits.multiple_of > 1:
            schema["multipleOf"] = limits.multiple_of
    return schema


def declared_type(name: str) -> Any:
    """Returns the type of a declared field, which may be null."""
    field = _DECLARED[name]
    kind = _TYPES.get(field.kind, Stop)
    if field.refused:
        kind = Annotated[kind, WithJsonSchema({"type": "null"})]
    elif field.kind in _TYPES and field.kind not in ("object", "ids") and not field.stands_for:
        kind = Annotated[kind, WithJsonSchema(values_schema(field))]
    return Annotated[kind | None, api_field(field.refused or field.help, field.example)]


# Other servers' names for the kinds of `structured_outputs`, with an example.
FORMAT_ALIASES: dict[str, tuple[str, Any]] = {
    "guided_json": ("json", '{"type": "object"}'),
    "guided_regex": ("regex", "[a-z]+"),
    "guided_choice": ("choice", ["yes", "no"]),
    "guided_grammar": ("grammar", 'start: "yes" | "no"'),
    "regex": ("regex", "[a-z]+"),
    "json_schema": ("json", '{"type": "object"}'),
    "ebnf": ("grammar", 'root ::= "yes" | "no"'),
}
_DESCRIBED = frozenset({"name", "description", "schema", "strict"})  # of a JSON schema
_FORMATS: dict[Any, frozenset[str]] = {"json_object": frozenset({"schema"}), "json_schema": _DESCRIBED}


def unknown_format_keys(requested: object) -> Iterator[str]:
    """Paths of the non-null values in a `response_format` that the server does not know."""
    if not isinstance(requested, dict):
        return
    kind, nested = requested.get("type"), requested.get("json_schema")
    known = _FORMATS.get(kind, frozenset()) if isinstance(kind, str) else frozenset()
    if kind != "json_schema" or not isinstance(nested, dict):
        nested = None
    elif nested:
        known = frozenset({"json_schema"})
    else:  # empty: the schema is in the format itself
        known |= {"json_schema"}
    yield from (name for name, value in requested.items() if name not in {"type", *known} and value is not None)
    for name, value in (nested or {}).items():
        if name not in _DESCRIBED and value is not None:
            yield f"json_schema.{name}"


if TYPE_CHECKING:

    class SamplingFields(RequestModel):
        """Declared fields that routes read directly."""

        n: int | None
        max_tokens: int | None
        min_tokens: int | None
        stop: Any

else:
    SamplingFields = pydantic.create_model(
        "SamplingFields", __base__=RequestModel, **{name: (declared_type(name), None) for name in _DECLARED},
        **{
            name: (Any, optional(f"alias of `structured_outputs.{kind}`", example))
            for name, (kind, example) in FORMAT_ALIASES.items()
        },
    )  # fmt: skip


def check_unset(body: RequestModel, names: Iterable[str], message: str) -> None:
    """Raises RequestError with `message` for the first of the fields `names` that the request sets to more than []."""
    for name in names:
        if getattr(body, name, None) not in (None, []):
            raise refuse(name, message)


def set_alias(found: dict[str, Any], alias: str, value: Any, name: str) -> None:
    """Sets the field `name` to the `value` of its alias; None: it is not set. Raises RequestError if the two differ."""
    if value is not None and found.setdefault(name, value) != value:
        raise refuse(alias, f"differs from {name}; give one of them")


class GenerationRequest(SamplingFields):
    """Fields of all generation routes."""

    model: ModelName = None
    stream: bool | None = optional("return server-sent events", True)
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
    return_step_map: Annotated[Any, UnsupportedField(False)] = None
    return_step_maps: Annotated[Any, UnsupportedField(False)] = None
    truncate_prompt_tokens: Annotated[Any, UnsupportedField()] = None
    response_format: Any = optional(
        "`text`, `json_object` (with or without a schema) or `json_schema`", {"type": "json_object"}
    )

    default_stream_mode: ClassVar[str] = "block_append"
    stream_fields: ClassVar[tuple[str, ...]] = ("stream_mode", "stream_options")  # only with `stream`

    def mode(self) -> str | None:
        """Returns the stream mode; None without `stream`. Raises RequestError for stream fields alone."""
        if self.stream:
            return getattr(self, "stream_mode", None) or self.default_stream_mode
        check_unset(self, self.stream_fields, "only with stream true; leave it out")
        return None

    def set_fields(self) -> dict[str, Any]:
        """Returns the declared fields that the request sets, by name."""
        values = {name: getattr(self, name) for name in self.model_fields_set & _DECLARED.keys()}
        return {name: value for name, value in values.items() if value is not None}

    def names(self) -> dict[str, str]:
        """Returns names of fields as the client spelled them, by the names of `SamplingParams`."""
        return {}

    def format(self) -> tuple[str, Any]:
        """Returns path and value of the field, other than `structured_outputs`, that sets the format of the output."""
        return "response_format", self.response_format

    def ignored_paths(self) -> Iterator[str]:
        path, requested = self.format()
        yield from (f"{path}.{name}" for name in unknown_format_keys(requested))


STEP_MAP = "return_step_map"
SGLANG_STEP_MAPS = "return_step_maps"


class StepMapRequest(GenerationRequest):
    """Request of an API whose answers may have the steps of their tokens."""

    return_step_map: bool | None = optional(_DECLARED[STEP_MAP].help, True)
    return_step_maps: Annotated[
        bool | Annotated[list[bool], _FAIL_FAST] | None,
        _type_error("must be true or false, or a list of one of them"),
        api_field("SGLang's name of `return_step_map`", True),
    ] = None

    def set_fields(self) -> dict[str, Any]:
        """Returns set fields, with SGLang's name of the step map under ours. Raises RequestError if they conflict."""
        found, asked = super().set_fields(), self.return_step_maps
        if asked is None:
            return found
        values = asked if isinstance(asked, list) else [asked]
        if len(values) != 1:
            raise refuse(SGLANG_STEP_MAPS, f"has {len(values)} entries; give true or false for the whole request")
        set_alias(found, SGLANG_STEP_MAPS, values[0], STEP_MAP)
        return found

    def names(self) -> dict[str, str]:
        return {STEP_MAP: SGLANG_STEP_MAPS} if self.return_step_map is None and self.return_step_maps else {}


class SingleChoiceRequest(GenerationRequest):
    """Request of an API without several completions and without log-probabilities."""

    n: Annotated[Any, UnsupportedField(1)] = None
    logprobs: Annotated[Any, UnsupportedField()] = None
    top_logprobs: Annotated[Any, UnsupportedField(0)] = None
    logprobs_mode: Annotated[Any, UnsupportedField("raw")] = None
    stream_mode: Annotated[Any, UnsupportedField("block_append")] = None  # which its streams are
    stream_candidates: Annotated[Any, UnsupportedField(0)] = None

    stream_fields: ClassVar[tuple[str, ...]] = ("stream_options",)


# Keywords that determine the type of a value. Schemas with one of them get no type.
_TYPED = {"type", "enum", "const", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf"}


def parse_response_format(body: GenerationRequest) -> tuple[dict[str, Any] | None, str]:
    """Returns the format in the form of `structured_outputs`, None without one, and the field that requests it.

    Raises RequestError for conflicting or invalid formats.
    """
    found = {
        name: {kind: value} for name, (kind, _) in FORMAT_ALIASES.items() if (value := getattr(body, name)) is not None
    }
    asked = getattr(body, FIELD)
    if asked is not None:
        found[FIELD] = asked
    name, requested = body.format()
    if requested is not None and (made := _parse_format(name, requested)) is not None:
        found[name] = made
    if not found:
        return None, FIELD
    first, *others = found
    for name in others:  # clients name one form in the ways of several servers
        if found[name] != found[first]:
            raise refuse(name, f"conflicts with {first}; send one of them")
    return found[first], first


def _parse_format(name: str, requested: object) -> dict[str, Any] | None:
    """Parses `response_format` and the fields of its form.

    A JSON schema is one level higher in `text.format` and `output_config.format`; some clients write it there in
    `response_format` too.
    """
    fields = requested if isinstance(requested, dict) else {}
    match fields.get("type"):
        case "text":
            return None
        case "json_object":
            schema = fields.get("schema")
            return {"json_object": True} if schema is None or schema is True else {"json": _object_schema(schema)}
        case "json_schema":
            described = fields.get("json_schema") or fields
            schema = described.get("schema") if isinstance(described, dict) else None
            if schema is None:
                raise refuse(name, "json_schema must be an object with a schema")
            return {"json": schema}
    raise refuse(name, f"{preview(requested)} is not supported; its type must be text, json_object or json_schema")


def _object_schema(schema: Any) -> Any:
    """Returns the schema of `json_object`, restricted to objects if it has no type."""
    if isinstance(schema, dict) and not _TYPED & schema.keys():
        return {"type": "object", **schema}
    return schema


class PromptDetails(TypedDict):
    cached_tokens: Annotated[int, api_field("prompt tokens found in the prefix cache")]


class CompletionDetails(TypedDict):
    reasoning_tokens: Annotated[int, api_field("output tokens that are reasoning")]


class Usage(TypedDict):
    """Tokens of a request."""

    prompt_tokens: Annotated[int, api_field("prompt tokens, each prompt counted once, including the chat template")]
    completion_tokens: Annotated[int, api_field("output tokens, without end-of-sequence tokens")]
    total_tokens: Annotated[int, api_field("sum of both")]
    prompt_tokens_details: Annotated[PromptDetails, api_field("details")]
    completion_tokens_details: Annotated[NotRequired[CompletionDetails], api_field("details, if the output has parts")]


class Timings(TypedDict):
    """Seconds from the request's arrival."""

    queue_seconds: Annotated[float, api_field("seconds until the first forward")]
    first_text_seconds: Annotated[float | None, api_field("seconds until the first text, for streams")]
    total_seconds: Annotated[float, api_field("seconds until the end")]


class Warned(TypedDict, total=False):
    """Optional field of a response."""

    warning: Annotated[str, api_field("why structured output did not end by itself")]


class PromptWarned(TypedDict, total=False):
    """Optional field of a response to a prompt of text."""

    warning: Annotated[str, api_field("mistake in the prompt, or why structured output did not end by itself")]


class DenoiseStep(TypedDict):
    """The open blocks after a step."""

    start: Annotated[int, api_field("offset of the first token in the output")]
    tokens: Annotated[list[int], api_field("token ids; the mask id at masked positions")]
    masked: Annotated[list[int], api_field("offsets of masked positions from `start`")]
    nfe: Annotated[int, api_field("denoising steps so far")]
    candidates: Annotated[
        NotRequired[list[list[int]]],
        api_field("with `stream_candidates`: most probable tokens of each position of `masked`; none if not computed"),
    ]
    confidence: Annotated[NotRequired[list[list[float]]], api_field("probabilities of the `candidates`")]


class StepFields(TypedDict):
    """Steps of the tokens of an output, if requested."""

    step_map: Annotated[
        NotRequired[list[int]], api_field("denoising step, from 1, that first unmasked the position of each token")
    ]
    last_step_map: Annotated[
        NotRequired[list[int]], api_field("step of its last change, with algorithms that revise tokens")
    ]
    block_starts: Annotated[NotRequired[list[int]], api_field("offset in the tokens at which each block begins")]


TOP_LOGPROBS = api_field("most probable tokens of the position in the step that filled it")
