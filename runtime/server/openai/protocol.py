"""Models of chat completions and completions: requests, responses, chunks, and what all generation requests have.

Types of requests are strict (no "5" for 5, no true for 1). Ranges are validated by `runtime.request`; here they are for
the OpenAPI document. Unsupported fields are declared with their neutral values, and any other value is rejected.
Unknown fields are ignored and named in the header X-Unmask-Ignored.

Types of responses are those that routes return. mypy checks them; nothing is validated while the server runs. Fields
that may be missing are `NotRequired`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired, Protocol

import pydantic
from pydantic import Discriminator, Field, PlainValidator, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError, from_json
from typing_extensions import TypedDict

from runtime.errors import RequestError
from runtime.request.resolve import MAX_TOKENS_PER_STEP
from runtime.request.sampling_params import PARAMETERS
from runtime.request.validation import preview, refuse
from runtime.server.openai.tools import EXAMPLE_TOOLS, ToolChoice, ToolItems
from runtime.server.openapi import values_schema
from runtime.server.preprocessing.request_body import (
    Integer,
    Integers,
    RequestModel,
    UnsupportedField,
    api_field,
    check_shape,
    union_tag,
)

MAX_MESSAGES = 2048
MAX_PARTS = 2048

TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})  # kinds of parts that are text
EXAMPLE_CHAT = [{"role": "user", "content": "Solve: 12 + 30."}]  # an example
_ROLES = {"developer": "system", "function": "tool"}  # OpenAI's newer and older names


class Part(RequestModel):
    """A part of a message, with its text in the field with the name of its type, or in `text`."""

    type: Annotated[str, api_field("`text`; other types are rejected", "text")]
    text: Annotated[str | None, api_field("text of a `text` part", "Hello!")] = None
    refusal: Annotated[str | None, api_field("text of a refusal", "I will not.")] = None
    cache_control: Annotated[Any, api_field("ignored; every prefix is cached", None)] = None
    annotations: Annotated[Any, api_field("accepted for compatibility; ignored", [])] = None

    text_types: ClassVar[frozenset[str]] = TEXT_TYPES
    ignored_types: ClassVar[frozenset[str]] = frozenset()

    def unsupported_kind(self) -> str | None:
        return self.type if self.type in self.ignored_types else None

    @model_validator(mode="after")
    def _is_text(self) -> Part:
        if self.unsupported_kind() is not None:
            return self
        if self.type not in self.text_types:
            kind = self.type[:40]
            raise PydanticCustomError("not_built", "{kind} parts are not supported, only text", {"kind": kind})
        if self.text is None and self.refusal is None:
            raise PydanticCustomError("no_text", "this part has no text; add it")
        return self

    def as_text(self) -> str:
        return self.text or self.refusal or ""


class Function(RequestModel):
    name: Annotated[str, api_field("name of the tool", "calculator")]
    arguments: Annotated[Any, api_field("JSON text, or an object", '{"expression": "12 + 30"}')] = None


class CustomCall(RequestModel):
    """A call of a tool whose input is text."""

    name: Annotated[str, api_field("name of the tool", "shell")]
    input: Annotated[str | None, api_field("input text", "ls")] = None


class Call(RequestModel):
    id: Annotated[str | None, api_field("id of the call", "call_1")] = None
    type: Annotated[
        str | None, api_field("`function`, or `custom` in the history of clients with custom tools", "function")
    ] = None
    function: Annotated[
        Function | None,
        api_field("name and arguments", {"name": "calculator", "arguments": '{"expression": "12 + 30"}'}),
    ] = None
    custom: Annotated[CustomCall | None, api_field("of a custom call: tool and input", None)] = None

    @model_validator(mode="after")
    def _has_function(self) -> Call:
        if self.function is None and self.custom is None:
            raise PydanticCustomError("missing", "a call needs a function; add it")
        return self

    @property
    def called(self) -> Function:
        """The function that is called; a custom tool's text is the argument `input` of one."""
        if self.function is None:
            assert self.custom is not None
            return Function(name=self.custom.name, arguments={"input": self.custom.input or ""})
        return self.function


def check_kind(part: RequestModel, kind: str, needed: Mapping[str, Sequence[str]], noun: str) -> None:
    """Raises for a part of a conversation of an unsupported kind, or without a field that its kind needs."""
    if kind not in needed:
        details = {"kind": kind[:40], "noun": noun, "known": ", ".join(needed)}
        raise PydanticCustomError("not_built", "{kind} {noun} are not supported, only {known}", details)
    for name in needed[kind]:
        if getattr(part, name) is None:
            details = {"kind": kind, "noun": noun, "name": name}
            raise PydanticCustomError("missing", "{kind} {noun} need {name}; add it", details)


def template_variables(extra: Mapping[str, Any] | None, **known: Any) -> dict[str, Any]:
    """Returns the variables of a chat template besides the messages: `extra` ones, then `known` ones that are set."""
    return {**{name: value for name, value in known.items() if value is not None}, **(extra or {})}


class PromptEnding(Protocol):
    """A body with the fields that say how the prompt of its chat ends."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None


def continues_last_message(body: PromptEnding, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the answer continues the last of the messages. Raises RequestError if it cannot."""
    if not body.continue_final_message:
        return False
    name = "continue_final_message"
    if body.add_generation_prompt:
        raise refuse(name, "cannot be combined with add_generation_prompt true; leave one of them out")
    if not messages or messages[-1]["role"] != "assistant":
        raise refuse(name, "needs a last message of the role assistant; add one, or leave it out")
    check_continued(messages[-1], f"messages[{len(messages) - 1}]")
    return True


def check_no_chat_fields(body: PromptEnding) -> None:
    """Raises RequestError for fields that only a chat has."""
    for name in ("add_generation_prompt", "continue_final_message"):
        if getattr(body, name) is not None:
            raise RequestError(f"{name}: only with messages; leave it out", param=name)


def check_continued(message: Mapping[str, Any], path: str) -> None:
    """Raises RequestError for an assistant's message of which no text can be continued."""
    if message.get("tool_calls"):
        raise refuse(path, "has tool calls and cannot be continued; add their results")
    if message.get("reasoning_content") and not message["content"]:
        raise refuse(path, "has only reasoning and cannot be continued; add text")


def ending_variables(body: PromptEnding, variables: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A chat template's variables with `add_generation_prompt`, if the body sets it."""
    if body.add_generation_prompt is None:
        return variables
    return {"add_generation_prompt": body.add_generation_prompt, **(variables or {})}


_Parts = Annotated[list[Part], Field(max_length=MAX_PARTS, fail_fast=True)]
Content = Annotated[Annotated[str, Tag("str")] | Annotated[_Parts, Tag("list")], Discriminator(union_tag)]


class Message(RequestModel):
    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool", "function"],
        api_field("role of the author; `developer` means `system`, `function` means `tool`", "user"),
    ]
    content: Annotated[Content | None, api_field("text, or a list of parts; null with tool calls", "Hello!")] = None
    name: Annotated[str | None, api_field("name of the author, for templates that use it", "Ann")] = None
    tool_calls: Annotated[
        Annotated[list[Call], Field(max_length=MAX_PARTS, fail_fast=True)] | None,
        api_field(
            "tool calls of an assistant message",
            [{"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}],
        ),
    ] = None
    tool_call_id: Annotated[str | None, api_field("of a tool result: id of the call", "call_1")] = None
    function_call: Annotated[
        Function | None, api_field("deprecated form of `tool_calls`", {"name": "calculator", "arguments": "{}"})
    ] = None
    reasoning_content: Annotated[
        str | None, api_field("reasoning of the assistant, for templates that use it", "12 and 30 are 42.")
    ] = None
    reasoning: Annotated[str | None, api_field("alias of `reasoning_content`", "12 and 30 are 42.")] = None
    refusal: Annotated[str | None, api_field("refusal text of an assistant message", None)] = None
    audio: Annotated[Any, api_field("accepted for compatibility; ignored", None)] = None
    annotations: Annotated[Any, api_field("accepted for compatibility; ignored", [])] = None

    def text(self) -> str | None:
        if isinstance(self.content, list):
            return "".join(map(Part.as_text, self.content))
        return self.content if self.content is not None else self.refusal

    def calls(self) -> list[Call]:
        legacy = [Call(function=self.function_call)] if self.function_call else []
        return (self.tool_calls or []) + legacy


Messages = Annotated[list[Message], Field(max_length=MAX_MESSAGES, fail_fast=True)]


class Conversation:
    """Messages of a chat that are converted from the items of another API.

    Attributes:
        paths: path in the request of each message, for errors.
    """

    def __init__(self, result_id: str) -> None:
        """`result_id`: name of the field of a tool result with the id of the call."""
        self._result_id = result_id
        self.messages: list[Message] = []
        self.paths: list[str] = []

    def add(self, path: str, **fields: Any) -> None:
        self.messages.append(Message(**fields))
        self.paths.append(path)

    def assistant(
        self, path: str, *, text: str = "", reasoning: str = "", call: Call | None = None, begins: bool = False
    ) -> None:
        """Adds a piece of an answer to the last message if that is an assistant message, unless a new one `begins`."""
        if begins or not self.messages or self.messages[-1].role != "assistant":
            self.add(path, role="assistant", content=None)
        message = self.messages[-1]
        if text:
            message.content = (message.text() or "") + text
        if reasoning:
            message.reasoning_content = (message.reasoning_content or "") + reasoning
        if call is not None:
            message.tool_calls = [*(message.tool_calls or ()), call]

    def to_template(self) -> list[dict[str, Any]]:
        """Returns the messages as `template_messages`."""
        return template_messages(self.messages, self.paths, self._result_id)


def template_messages(
    messages: Sequence[Message], paths: Sequence[str] | None = None, result_id: str = "tool_call_id"
) -> list[dict[str, Any]]:
    """Returns messages for a chat template. Raises RequestError for messages that are invalid for their role.

    `paths`: path of each message in the request, for errors; by default those of ``messages``.
    """
    where = [f"messages[{i}]" for i in range(len(messages))] if paths is None else paths
    texts = [call.called.arguments for m in messages for call in m.calls() if isinstance(call.called.arguments, str)]
    if texts:
        check_shape("\n".join(texts).encode())  # before any of it is parsed
    _check_results(messages, where, result_id)
    return [_template_message(message, path) for message, path in zip(messages, where, strict=True)]


def _check_results(messages: Sequence[Message], paths: Sequence[str], result_id: str) -> None:
    """Raises RequestError for a tool result without its call before it. A result without an id matches any call."""
    known: set[str] = set()
    called = False
    for path, message in zip(paths, messages, strict=True):
        for call in message.calls():
            called = True
            known.add(call.id or "")
        if message.role not in ("tool", "function"):
            continue
        if not called:
            raise refuse(path, "is a tool result without an assistant message that calls a tool before it")
        if message.tool_call_id is not None and message.tool_call_id not in known and "" not in known:
            raise refuse(f"{path}.{result_id}", f"{preview(message.tool_call_id)} is not the id of an earlier call")


def _template_message(message: Message, path: str) -> dict[str, Any]:
    text, calls = message.text(), message.calls()
    if text is None and message.role not in ("assistant", "tool", "function"):
        raise RequestError(f"{path}.content: is missing; give a text", param=f"{path}.content")
    if calls and message.role != "assistant":
        raise RequestError(
            f"{path}.tool_calls: is allowed in assistant messages only; leave it out", param=f"{path}.tool_calls"
        )
    made: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": text or ""}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if reasoning is not None:
        made["reasoning_content"] = reasoning
    if calls:
        made["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.called.name, "arguments": _arguments(call.called.arguments)},
                **({} if call.id is None else {"id": call.id}),
            }
            for call in calls
        ]
    return made


def _arguments(arguments: Any) -> Any:
    """Returns arguments as an object, which templates write as JSON; text that is no JSON object unchanged."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    if not arguments.strip():
        return {}
    try:
        value = from_json(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


MAX_ENTRIES = 64  # of metadata and of chat_template_kwargs; `request_body` has the limits of a body


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
ModelName = Annotated[
    str | None, api_field("name of the model or of an adapter; default: the first model name", "unmask-demo")
]
GenerationPrompt = Annotated[
    bool | None, api_field("end the prompt with the start of an assistant message; default true", True)
]
FinalMessage = Annotated[
    bool | None, api_field("continue the last message, which must be an assistant message; default false", False)
]
Verbosity = Annotated[Literal["low", "medium", "high"] | None, api_field("accepted for compatibility; ignored", "low")]
TemplateArguments = Annotated[Entries | None, api_field("variables of the chat template", {"enable_thinking": False})]
Stop = Annotated[Any, PlainValidator(_stop), WithJsonSchema({"anyOf": [_STRING, _STRINGS, {"type": "null"}]})]


_TYPES: dict[str, Any] = {
    "integer": Integer, "number": float, "flag": bool, "text": str, "object": dict[str, Any],
    "ids": Integers,
}  # fmt: skip
_DECLARED = {field.name: field for field in PARAMETERS}


def declared_type(name: str) -> Any:
    """Returns the type of a declared field, which may be null."""
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

    class SamplingFields(RequestModel):
        """Declared fields that routes read directly."""

        n: int | None
        max_tokens: int | None
        stop: Any

else:
    SamplingFields = pydantic.create_model(
        "SamplingFields", __base__=RequestModel, **{name: (declared_type(name), None) for name in _DECLARED}
    )


class GenerationRequest(SamplingFields):
    """Fields of all generation routes."""

    stream: Annotated[bool | None, api_field("return server-sent events", True)] = None
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
    guided_json: Annotated[Any, api_field("alias of `structured_outputs.json`", '{"type": "object"}')] = None
    guided_regex: Annotated[Any, api_field("alias of `structured_outputs.regex`", "[a-z]+")] = None
    guided_choice: Annotated[Any, api_field("alias of `structured_outputs.choice`", ["yes", "no"])] = None
    guided_grammar: Annotated[Any, api_field("alias of `structured_outputs.grammar`", 'start: "yes" | "no"')] = None
    regex: Annotated[Any, api_field("alias of `structured_outputs.regex`", "[a-z]+")] = None
    json_schema: Annotated[Any, api_field("alias of `structured_outputs.json`", '{"type": "object"}')] = None
    ebnf: Annotated[Any, api_field("alias of `structured_outputs.grammar`", 'root ::= "yes" | "no"')] = None
    response_format: Annotated[
        Any, api_field("`text`, `json_object` (with or without a schema) or `json_schema`", {"type": "json_object"})
    ] = None

    def set_fields(self) -> dict[str, Any]:
        """Returns the declared fields that the request sets, by name."""
        unknown = self.model_extra or {}  # those of a body that has not all of them
        names = (name for name in self.model_fields_set if name in _DECLARED and name not in unknown)
        values = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in values if value is not None}

    def format(self) -> tuple[str, Any]:
        """Returns path and value of the field, other than `structured_outputs`, that sets the format of the output."""
        return "response_format", self.response_format

    def ignored_paths(self) -> Iterator[str]:
        path, requested = self.format()
        yield from (f"{path}.{name}" for name in unknown_format_keys(requested))


class SingleChoiceRequest(GenerationRequest):
    """Request of an API without several completions and without log-probabilities."""

    n: Annotated[Any, UnsupportedField(1)] = None
    logprobs: Annotated[Any, UnsupportedField()] = None
    top_logprobs: Annotated[Any, UnsupportedField(0)] = None
    stream_mode: Annotated[Any, UnsupportedField("block_append")] = None  # which its streams are


class StreamOptions(RequestModel):
    include_usage: Annotated[bool | None, api_field("add the usage to the last chunk", True)] = None
    continuous_usage_stats: Annotated[bool | None, api_field("with it: add the usage to each chunk", False)] = None
    include_obfuscation: Annotated[Any, UnsupportedField(False)] = None


class OpenAIRequest(GenerationRequest):
    """The fields that chat and completions share."""

    model: ModelName = None
    stream_options: Annotated[StreamOptions | None, api_field("options of the stream", {"include_usage": True})] = None
    stream_mode: Annotated[
        Literal["denoise", "block_append"] | None,
        api_field("`denoise`: also return the open blocks after each step; `block_append`: the default", "denoise"),
    ] = None
    user: Annotated[str | None, api_field("accepted for compatibility; ignored", "someone")] = None
    metadata: Annotated[Entries | None, api_field("accepted for compatibility; ignored", {"topic": "sums"})] = None
    store: Annotated[bool | None, api_field("ignored; responses are not stored", False)] = None
    service_tier: Annotated[str | None, api_field("accepted for compatibility; ignored", "auto")] = None
    safety_identifier: Annotated[str | None, api_field("accepted for compatibility; ignored", "someone")] = None
    prompt_cache_key: Annotated[str | None, api_field("ignored; prefixes are cached without it", "sums")] = None


class ChatRequest(OpenAIRequest):
    messages: Annotated[Messages, api_field("messages of the chat", EXAMPLE_CHAT)]
    max_completion_tokens: Annotated[Integer | None, api_field("alias of `max_tokens`", 64)] = None
    chat_template_kwargs: TemplateArguments = None
    parallel_tool_calls: Annotated[bool | None, api_field("allow several tool calls; default true", True)] = None
    logprobs: Annotated[bool | None, api_field("return the log-probability of each token", True)] = None
    top_logprobs: Annotated[
        Integer | None, api_field("alternatives per position with log-probabilities, at most 20", 2)
    ] = None
    tools: Annotated[ToolItems | None, api_field("functions that the model may call", EXAMPLE_TOOLS)] = None
    tool_choice: ToolChoice = None
    functions: Annotated[
        list[dict[str, Any]] | None, api_field("deprecated form of `tools`; rejected unless empty", [])
    ] = None
    echo: Annotated[Any, UnsupportedField(False)] = None
    add_generation_prompt: GenerationPrompt = None
    continue_final_message: FinalMessage = None
    chat_template: Annotated[Any, UnsupportedField()] = None
    documents: Annotated[Any, UnsupportedField([])] = None
    function_call: Annotated[
        Any, api_field("deprecated form of `tool_choice`; rejected unless `none` or `auto`", "none")
    ] = None
    modalities: Annotated[Any, UnsupportedField(["text"])] = None
    audio: Annotated[Any, UnsupportedField()] = None
    prediction: Annotated[
        dict[str, Any] | None,
        api_field("accepted for compatibility; ignored", {"type": "content", "content": "12 + 30 = 42."}),
    ] = None
    reasoning_effort: Annotated[str | None, api_field("sets `reasoning_effort` of the chat template", "low")] = None
    verbosity: Verbosity = None
    web_search_options: Annotated[dict[str, Any] | None, api_field("ignored and named in `X-Unmask-Ignored`", {})] = (
        None
    )

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
        Prompts, api_field("prompts to continue: text, token ids, or a list of either", "Solve: 12 + 30.")
    ]
    best_of: Annotated[Any, UnsupportedField(1)] = None
    echo: Annotated[bool | None, api_field("return the prompt before the output, in `text` and `logprobs`", False)] = (
        None
    )
    prompt_logprobs_stride: Annotated[
        Integer | None, api_field("tokens of an echoed prompt scored per forward", 1, ge=1, le=MAX_TOKENS_PER_STEP)
    ] = None
    suffix: Annotated[str | None, api_field("text after the output", " 8, 10")] = None


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


class DenoiseStep(TypedDict):
    """The open blocks after a step."""

    start: Annotated[int, api_field("offset of the first token in the output")]
    tokens: Annotated[list[int], api_field("token ids; the mask id at masked positions")]
    masked: Annotated[list[int], api_field("offsets of masked positions from `start`")]
    nfe: Annotated[int, api_field("denoising steps so far")]


Reason = Literal["stop", "length", "tool_calls"]


class ResponseHead(TypedDict):
    """Fields of all responses."""

    id: Annotated[str, api_field("id of this request")]
    created: Annotated[int, api_field("creation time, Unix seconds")]
    model: Annotated[str, api_field("requested model name")]


class _Chunk(ResponseHead):
    usage: Annotated[
        NotRequired[Usage | None],
        api_field("with `include_usage`: in the last chunk, null before; with `continuous_usage_stats` in all"),
    ]
    denoise: Annotated[NotRequired[DenoiseStep], api_field("the step, with `stream_mode` `denoise`")]


class TopLogprob(TypedDict):
    token: Annotated[str, api_field("text of the token; `bytes:` and escapes for incomplete characters")]
    logprob: Annotated[float, api_field("log-probability (natural logarithm)")]
    bytes: Annotated[list[int], api_field("text of the token as UTF-8")]


class TokenLogprob(TopLogprob):
    """A token of an answer."""

    top_logprobs: Annotated[
        list[TopLogprob], api_field("most probable tokens of the position in the step that filled it")
    ]


class ChatLogprobs(TypedDict):
    content: Annotated[list[TokenLogprob], api_field("tokens in order")]
    refusal: Annotated[None, api_field("always null")]


class CalledFunction(TypedDict):
    name: Annotated[str, api_field("name of the tool")]
    arguments: Annotated[str, api_field("arguments as JSON")]


class AnswerCall(TypedDict):
    """A call of a tool."""

    id: Annotated[str, api_field("id for the message with the result")]
    type: Annotated[Literal["function"], api_field("always `function`")]
    function: Annotated[CalledFunction, api_field("name and arguments")]


class AnswerMessage(TypedDict):
    role: Annotated[Literal["assistant"], api_field("always `assistant`")]
    content: Annotated[str | None, api_field("text; null with tool calls and no text")]
    refusal: Annotated[None, api_field("always null")]
    reasoning_content: Annotated[NotRequired[str], api_field("reasoning, if the model marks it")]
    tool_calls: Annotated[NotRequired[list[AnswerCall]], api_field("tool calls")]


class ChatChoice(TypedDict):
    """One of `n` answers."""

    index: Annotated[int, api_field("index of the completion")]
    message: Annotated[AnswerMessage, api_field("generated text")]
    logprobs: Annotated[ChatLogprobs | None, api_field("log-probabilities of the tokens, if requested")]
    finish_reason: Annotated[
        Reason, api_field("`stop`: end of sequence or a stop string; `length`: a limit; `tool_calls`: tool calls")
    ]


class ChatAnswer(ResponseHead):
    """The answer of `/v1/chat/completions`."""

    object: Annotated[Literal["chat.completion"], api_field("always `chat.completion`")]
    choices: Annotated[list[ChatChoice], api_field("`n` completions")]
    usage: Annotated[Usage, api_field("token counts")]


class FunctionDelta(TypedDict):
    name: Annotated[NotRequired[str], api_field("name of the tool, in the first delta")]
    arguments: Annotated[str, api_field("new part of the JSON")]


class CallDelta(TypedDict):
    """More of a call: its id and name come first."""

    index: Annotated[int, api_field("index of the call")]
    id: Annotated[NotRequired[str], api_field("id for the message with the result")]
    type: Annotated[NotRequired[Literal["function"]], api_field("always `function`")]
    function: Annotated[FunctionDelta, api_field("new part of the call")]


class ChatDelta(TypedDict):
    """What a message grew by; the empty object with a `finish_reason`."""

    role: Annotated[NotRequired[Literal["assistant"]], api_field("role, in the first chunk")]
    content: Annotated[NotRequired[str], api_field("new text")]
    refusal: Annotated[NotRequired[None], api_field("always null")]
    reasoning_content: Annotated[NotRequired[str], api_field("new reasoning")]
    tool_calls: Annotated[NotRequired[list[CallDelta]], api_field("new part of a tool call")]


class ChatChunkChoice(TypedDict):
    index: Annotated[int, api_field("index of the completion")]
    delta: Annotated[ChatDelta, api_field("new part")]
    logprobs: Annotated[ChatLogprobs | None, api_field("log-probabilities of the tokens of this text, if requested")]
    finish_reason: Annotated[Reason | None, api_field("reason for the end; null before")]


class ChatChunk(_Chunk):
    """An event of a chat's stream."""

    object: Annotated[Literal["chat.completion.chunk"], api_field("always `chat.completion.chunk`")]
    choices: Annotated[list[ChatChunkChoice], api_field("one completion; none in the last chunk with the usage")]


class CompletionLogprobs(TypedDict):
    """Four lists, with an entry for each token."""

    tokens: Annotated[list[str], api_field("text of each token")]
    token_logprobs: Annotated[
        list[float | None], api_field("log-probability of each token; null for the first token of a prompt")
    ]
    top_logprobs: Annotated[
        list[dict[str, float] | None], api_field("most probable tokens of each position, and the token itself")
    ]
    text_offset: Annotated[list[int], api_field("offset of each token in `text`, in characters")]


class CompletionChoice(TypedDict):
    """One answer of a prompt."""

    index: Annotated[int, api_field("index of the completion; those of one prompt are consecutive")]
    text: Annotated[str, api_field("output, after the prompt with `echo`")]
    logprobs: Annotated[CompletionLogprobs | None, api_field("log-probabilities of the tokens, if requested")]
    finish_reason: Annotated[Reason, api_field("`stop`: end of sequence or a stop string; `length`: a limit")]


class CompletionAnswer(ResponseHead):
    """The answer of `/v1/completions`."""

    object: Annotated[Literal["text_completion"], api_field("always `text_completion`")]
    choices: Annotated[list[CompletionChoice], api_field("`n` completions per prompt")]
    usage: Annotated[Usage, api_field("token counts")]
    warning: Annotated[NotRequired[str], api_field("probable mistake in the prompt")]


class CompletionChunkChoice(TypedDict):
    index: Annotated[int, api_field("index of the completion")]
    text: Annotated[str, api_field("new part")]
    logprobs: Annotated[
        CompletionLogprobs | None, api_field("log-probabilities of the tokens of this text, if requested")
    ]
    finish_reason: Annotated[Reason | None, api_field("reason for the end; null before")]


class CompletionChunk(_Chunk):
    """An event of a completion's stream."""

    object: Annotated[Literal["text_completion"], api_field("always `text_completion`")]
    choices: Annotated[list[CompletionChunkChoice], api_field("one completion; none in the last chunk with the usage")]
    warning: Annotated[NotRequired[str], api_field("probable mistake in the prompt")]
