"""Models of chat completions and completions: requests, responses, chunks, and what all generation requests have.

Types of requests are strict (no true for 1), but numbers may be texts ("5" for 5). Ranges are validated by
`runtime.request`; here they are for the OpenAPI document. Unsupported fields are declared with their neutral values,
and any other value is rejected. Unknown fields are ignored and named in the header X-Unmask-Ignored.

Types of responses are those that routes return. mypy checks them; nothing is validated while the server runs. Fields
that may be missing are `NotRequired`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, NotRequired

import pydantic
from pydantic import Field, GetPydanticSchema, ValidationInfo, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError, core_schema, from_json
from typing_extensions import TypedDict

from runtime.request.resolve import MAX_TOKENS_PER_STEP
from runtime.request.sampling_params import PARAMETERS
from runtime.request.validation import preview, refuse
from runtime.server.openapi import values_schema
from runtime.server.serving.message_parts import Part, ReasoningPart, is_parts, result_text, special_part
from runtime.server.serving.request_body import (
    Identifier,
    Integer,
    Integers,
    MessageList,
    Number,
    PartList,
    RequestModel,
    TextOrParts,
    UnsupportedField,
    api_field,
    check_shape,
    ignored_field,
    optional,
)
from runtime.server.serving.tools import EXAMPLE_TOOLS, ToolChoice, ToolItems

EXAMPLE_CHAT = [{"role": "user", "content": "Solve: 12 + 30."}]  # an example
_ROLES = {"developer": "system", "function": "tool"}  # OpenAI's newer and older names


class Function(RequestModel):
    name: str = api_field("name of the tool", "calculator")
    arguments: Any = optional("JSON text, or an object", '{"expression": "12 + 30"}')


class CustomCall(RequestModel):
    """A call of a tool whose input is text."""

    name: str = api_field("name of the tool", "shell")
    input: str | None = optional("input text", "ls")


class Call(RequestModel):
    id: str | None = optional("id of the call", "call_1")
    type: str | None = optional("`function`, or `custom` in the history of clients with custom tools", "function")
    function: Function | None = optional(
        "name and arguments", {"name": "calculator", "arguments": '{"expression": "12 + 30"}'}
    )
    custom: CustomCall | None = optional("of a custom call: tool and input", None)

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


def effort_variables(effort: str | None) -> dict[str, Any]:
    """Returns the variables of a chat template that `effort` sets: any effort but `none` switches reasoning on."""
    return {"reasoning_effort": effort, "enable_thinking": None if effort is None else effort != "none"}


def check_unset(body: RequestModel, names: Iterable[str], message: str) -> None:
    """Raises RequestError with `message` for the first of the fields `names` that the request sets to more than []."""
    for name in names:
        if getattr(body, name, None) not in (None, []):
            raise refuse(name, message)


def check_continued(message: Mapping[str, Any], path: str) -> None:
    """Raises RequestError for an assistant's message of which no text can be continued."""
    if message.get("tool_calls"):
        raise refuse(path, "has tool calls and cannot be continued; add their results")
    if message.get("reasoning_content") and not message["content"]:
        raise refuse(path, "has only reasoning and cannot be continued; add text")


class Message(RequestModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = api_field(
        "role of the author; `developer` means `system`, `function` means `tool`", "user"
    )
    content: TextOrParts[Part] | None = optional(
        "text, or a list of parts; null with tool calls; other JSON in a tool's result becomes text; reasoning is "
        "allowed in parts of an assistant message; images and files in a tool's result are ignored and named in "
        "`X-Unmask-Ignored`",
        "Hello!",
    )
    name: str | None = optional("name of the author, for templates that use it", "Ann")
    tool_calls: PartList[Call] | None = optional(
        "tool calls of an assistant message",
        [{"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}],
    )
    tool_call_id: str | None = optional("of a tool result: id of the call", "call_1")
    function_call: Function | None = optional(
        "deprecated form of `tool_calls`", {"name": "calculator", "arguments": "{}"}
    )
    reasoning_content: str | None = optional(
        "reasoning of the assistant, for templates that use it", "12 and 30 are 42."
    )
    reasoning: str | None = optional("alias of `reasoning_content`", "12 and 30 are 42.")
    refusal: str | None = optional("refusal text of an assistant message", None)
    audio: Any = ignored_field(None)
    annotations: Any = ignored_field([])

    @field_validator("content", mode="before")
    @classmethod
    def _convert_parts(cls, content: Any, info: ValidationInfo) -> Any:
        role = info.data.get("role")
        if role in ("tool", "function") and content is not None and not is_parts(content):
            return result_text(content)
        return [special_part(role, part) for part in content] if isinstance(content, list) else content

    def text(self) -> str | None:
        if isinstance(self.content, list):
            return "".join(part.as_text() for part in self.content)
        return self.content if self.content is not None else self.refusal

    def reasoning_text(self) -> str | None:
        for found in (self.reasoning_content, self.reasoning):
            if found is not None:
                return found
        if not isinstance(self.content, list):
            return None
        parts = [part.text or "" for part in self.content if isinstance(part, ReasoningPart)]
        return "".join(parts) or None

    def calls(self) -> list[Call]:
        legacy = [Call(function=self.function_call)] if self.function_call else []
        return (self.tool_calls or []) + legacy


Messages = MessageList[Message]


class ChatPrompt(NamedTuple):
    """The input of a chat template.

    Attributes:
        messages: messages, as `template_messages` returns them.
        variables: further variables of the template.
        continued: the answer continues the last message, an assistant's.
    """

    messages: list[dict[str, Any]]
    variables: Mapping[str, Any]
    continued: bool = False


class Conversation:
    """Messages of a chat that are converted from the items of another API.

    Pieces of an answer are joined once, when the answer is complete: a request may have thousands of them.
    """

    def __init__(self, result_id: str) -> None:
        """`result_id`: name of the field of a tool result with the id of the call."""
        self._result_id = result_id
        self._messages: list[Message] = []
        self._paths: list[str] = []  # in the request, of each message
        self._pieces: list[tuple[list[str], list[str]]] = []  # of text and reasoning, of each message

    def add(self, path: str, **fields: Any) -> None:
        self._messages.append(Message(**fields))
        self._paths.append(path)
        self._pieces.append(([], []))

    def assistant(
        self, path: str, *, text: str = "", reasoning: str = "", call: Call | None = None, begins: bool = False
    ) -> None:
        """Adds a piece of an answer to the last message if that is an assistant message, unless a new one `begins`."""
        if begins or not self._messages or self._messages[-1].role != "assistant":
            self.add(path, role="assistant", content=None)
        texts, reasonings = self._pieces[-1]
        if text:
            texts.append(text)
        if reasoning:
            reasonings.append(reasoning)
        if call is not None:
            message = self._messages[-1]
            message.tool_calls = message.tool_calls or []
            message.tool_calls.append(call)

    def to_template(self) -> list[dict[str, Any]]:
        """Returns the messages as `template_messages`."""
        for message, (texts, reasonings) in zip(self._messages, self._pieces, strict=True):
            if texts:
                message.content = "".join(texts)
            if reasonings:
                message.reasoning_content = "".join(reasonings)
        return template_messages(self._messages, self._paths, self._result_id)


def template_messages(
    messages: Sequence[Message], paths: Sequence[str] | None = None, result_id: str = "tool_call_id"
) -> list[dict[str, Any]]:
    """Returns messages for a chat template. Raises RequestError for messages that are invalid for their role.

    `paths`: path of each message in the request, for errors; by default those of ``messages``.
    """
    where = [f"messages[{i}]" for i in range(len(messages))] if paths is None else paths
    texts = [call.called.arguments for m in messages for call in m.calls() if isinstance(call.called.arguments, str)]
    if texts:
        check_shape(*(text.encode() for text in texts))  # before any of it is parsed
    _check_results(messages, where, result_id)
    return [_template_message(message, path) for message, path in zip(messages, where, strict=True)]


def _check_results(messages: Sequence[Message], paths: Sequence[str], result_id: str) -> None:
    """Raises RequestError for a tool result without its call before it. A result without an id matches any call."""
    known: set[str] = set()  # ids of calls, "" for one without
    for path, message in zip(paths, messages, strict=True):
        known.update(call.id or "" for call in message.calls())
        if message.role not in ("tool", "function"):
            continue
        if not known:
            raise refuse(path, "is a tool result without an assistant message that calls a tool before it")
        if message.tool_call_id is not None and message.tool_call_id not in known and "" not in known:
            raise refuse(f"{path}.{result_id}", f"{preview(message.tool_call_id)} is not the id of an earlier call")


def _template_message(message: Message, path: str) -> dict[str, Any]:
    text, calls = message.text(), message.calls()
    if text is None and message.role not in ("assistant", "tool", "function"):
        raise refuse(f"{path}.content", "is missing; give a text")
    if calls and message.role != "assistant":
        raise refuse(f"{path}.tool_calls", "is allowed in assistant messages only; leave it out")
    optional_fields = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_text(),
        "tool_calls": [_template_call(call) for call in calls] or None,
    }
    converted = {"role": _ROLES.get(message.role, message.role), "content": text or ""}
    return converted | {name: value for name, value in optional_fields.items() if value is not None}


def _template_call(call: Call) -> dict[str, Any]:
    function = {"name": call.called.name, "arguments": _arguments(call.called.arguments)}
    return {"type": "function", "function": function, **({} if call.id is None else {"id": call.id})}


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
Verbosity = Annotated[Literal["low", "medium", "high"] | None, api_field("accepted for compatibility; ignored", "low")]
TemplateArguments = Annotated[Entries | None, api_field("variables of the chat template", {"enable_thinking": False})]
Stop = Annotated[str | Annotated[list[str], _FAIL_FAST], _type_error("must be a string or a list of strings")]


_TYPES: dict[str, Any] = {
    "integer": Integer, "number": Number, "flag": bool, "text": str, "object": dict[str, Any],
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
        stop: Any

else:
    SamplingFields = pydantic.create_model(
        "SamplingFields", __base__=RequestModel, **{name: (declared_type(name), None) for name in _DECLARED},
        **{
            name: (Any, optional(f"alias of `structured_outputs.{kind}`", example))
            for name, (kind, example) in FORMAT_ALIASES.items()
        },
    )  # fmt: skip


class ChatFields(RequestModel):
    """Fields of routes that accept a chat of OpenAI's messages."""

    messages: Messages | None = optional("messages of a chat, instead of `prompt`", EXAMPLE_CHAT)
    chat_template_kwargs: TemplateArguments = None
    add_generation_prompt: bool | None = optional(
        "end the prompt with the start of an assistant message; default true", True
    )
    continue_final_message: bool | None = optional(
        "continue the last message, which must be an assistant message; default false", False
    )

    # only with `messages`
    chat_fields: ClassVar[tuple[str, ...]] = ("chat_template_kwargs", "add_generation_prompt", "continue_final_message")

    def to_chat(self, **variables: Any) -> ChatPrompt:
        """Returns the chat. Raises RequestError for messages that are invalid, or cannot be continued.

        `variables`: further variables of the template; those that are None are left out.
        """
        messages = template_messages(self.messages or ())
        known = template_variables(
            self.chat_template_kwargs, add_generation_prompt=self.add_generation_prompt, **variables
        )
        return ChatPrompt(messages, known, self._continues(messages))

    def _continues(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the answer continues the last of the messages. Raises RequestError if it cannot."""
        if not self.continue_final_message:
            return False
        name = "continue_final_message"
        if self.add_generation_prompt:
            raise refuse(name, "cannot be combined with add_generation_prompt true; leave one of them out")
        if not messages or messages[-1]["role"] != "assistant":
            raise refuse(name, "needs a last message of the role assistant; add one, or leave it out")
        check_continued(messages[-1], f"messages[{len(messages) - 1}]")
        return True

    def check_input(self, prompt: object) -> None:
        """Raises RequestError unless there is either a prompt or messages, and for fields that only a chat has."""
        if (prompt is None) == (self.messages is None):
            raise refuse("prompt", "give either prompt or messages")
        if self.messages is None:
            check_unset(self, self.chat_fields, "only with messages; leave it out")
        else:
            check_unset(self, ["parse_special"], "only with prompt; leave it out")


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


class SingleChoiceRequest(GenerationRequest):
    """Request of an API without several completions and without log-probabilities."""

    n: Annotated[Any, UnsupportedField(1)] = None
    logprobs: Annotated[Any, UnsupportedField()] = None
    top_logprobs: Annotated[Any, UnsupportedField(0)] = None
    stream_mode: Annotated[Any, UnsupportedField("block_append")] = None  # which its streams are

    stream_fields: ClassVar[tuple[str, ...]] = ("stream_options",)


class ObfuscationOptions(RequestModel):
    """Options of streams that all APIs of OpenAI have."""

    include_obfuscation: bool | None = optional("true is ignored and named in `X-Unmask-Ignored`", False)

    def ignored_paths(self) -> Iterator[str]:
        if self.include_obfuscation:
            yield "include_obfuscation"


class StreamOptions(ObfuscationOptions):
    include_usage: bool | None = optional("add the usage to the last chunk", True)
    continuous_usage_stats: bool | None = optional("with it: add the usage to each chunk", False)


class OpenAIRequest(GenerationRequest):
    """The fields that chat and completions share."""

    stream_options: StreamOptions | None = optional("options of the stream", {"include_usage": True})
    stream_mode: Literal["denoise", "block_append"] | None = optional(
        "`denoise`: also return the open blocks after each step; `block_append`: the default", "denoise"
    )
    user: Identifier | None = ignored_field("someone")
    metadata: Entries | None = ignored_field({"topic": "sums"})
    store: bool | None = optional("ignored; responses are not stored", False)
    service_tier: str | None = ignored_field("auto")
    safety_identifier: Identifier | None = ignored_field("someone")
    prompt_cache_key: Identifier | None = optional("ignored; prefixes are cached without it", "sums")


class ChatRequest(OpenAIRequest, ChatFields):
    messages: Messages = api_field("messages of the chat", EXAMPLE_CHAT)
    max_completion_tokens: Integer | None = optional("alias of `max_tokens`", 64)
    parallel_tool_calls: bool | None = optional("allow several tool calls; default true", True)
    logprobs: bool | None = optional("return the log-probability of each token", True)
    top_logprobs: Integer | None = optional("alternatives per position with log-probabilities, at most 20", 2)
    tools: ToolItems | None = optional("functions that the model may call", EXAMPLE_TOOLS)
    tool_choice: ToolChoice = None
    functions: list[dict[str, Any]] | None = optional("deprecated form of `tools`; rejected unless empty", [])
    echo: Annotated[Any, UnsupportedField(False)] = None
    chat_template: Annotated[Any, UnsupportedField()] = None
    documents: Annotated[Any, UnsupportedField([])] = None
    function_call: Any = optional("deprecated form of `tool_choice`; rejected unless `none` or `auto`", "none")
    modalities: Annotated[Any, UnsupportedField(["text"])] = None
    audio: Annotated[Any, UnsupportedField()] = None
    prediction: dict[str, Any] | None = ignored_field({"type": "content", "content": "12 + 30 = 42."})
    reasoning_effort: str | None = optional(
        "sets `reasoning_effort` of the chat template, and `enable_thinking`: false if `none`, else true", "low"
    )
    verbosity: Verbosity = None
    web_search_options: dict[str, Any] | None = optional("ignored and named in `X-Unmask-Ignored`", {})

    def ignored_paths(self) -> Iterator[str]:
        yield from super().ignored_paths()
        if self.web_search_options is not None:
            yield "web_search_options"

    def names(self) -> dict[str, str]:
        limit = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        return {"prompt": "messages", "logprobs": "top_logprobs", **limit}

    def set_fields(self) -> dict[str, Any]:
        """Returns set fields: `logprobs` as a number, `max_completion_tokens` as `max_tokens`. Raises RequestError."""
        found = super().set_fields()
        limit = self.max_completion_tokens
        if limit is not None and found.setdefault("max_tokens", limit) != limit:
            raise refuse("max_completion_tokens", "differs from max_tokens; give one of them")
        requested = found.pop("logprobs", False)
        if requested:
            found["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise refuse("top_logprobs", "only with logprobs true; leave it out")
        return found


class CompletionRequest(OpenAIRequest):
    prompt: Prompts = api_field("prompts to continue: text, token ids, or a list of either", "Solve: 12 + 30.")
    best_of: Annotated[Any, UnsupportedField(1)] = None
    echo: bool | None = optional("return the prompt before the output, in `text` and `logprobs`", False)
    prompt_logprobs_stride: Integer | None = optional(
        "tokens of an echoed prompt scored per forward", 1, ge=1, le=MAX_TOKENS_PER_STEP
    )
    suffix: str | None = optional("text after the output", " 8, 10")
    parse_special: ParseSpecial = None


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


TOP_LOGPROBS = api_field("most probable tokens of the position in the step that filled it")


class TopLogprob(TypedDict):
    token: Annotated[str, api_field("text of the token; `bytes:` and escapes for incomplete characters")]
    logprob: Annotated[float, api_field("log-probability (natural logarithm)")]
    bytes: Annotated[list[int], api_field("text of the token as UTF-8")]


class TokenLogprob(TopLogprob):
    """A token of an answer."""

    top_logprobs: Annotated[list[TopLogprob], TOP_LOGPROBS]


class ChatLogprobs(TypedDict):
    content: Annotated[list[TokenLogprob], api_field("tokens in order")]
    refusal: None


class CalledFunction(TypedDict):
    name: Annotated[str, api_field("name of the tool")]
    arguments: Annotated[str, api_field("arguments as JSON")]


class AnswerCall(TypedDict):
    """A call of a tool."""

    id: Annotated[str, api_field("id for the message with the result")]
    type: Literal["function"]
    function: Annotated[CalledFunction, api_field("name and arguments")]


class AnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: Annotated[str | None, api_field("text; null with tool calls and no text")]
    refusal: None
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

    object: Literal["chat.completion"]
    choices: Annotated[list[ChatChoice], api_field("`n` completions")]
    usage: Annotated[Usage, api_field("token counts")]
    warning: Annotated[NotRequired[str], api_field("why structured output did not end by itself")]


class FunctionDelta(TypedDict):
    name: Annotated[NotRequired[str], api_field("name of the tool, in the first delta")]
    arguments: Annotated[str, api_field("new part of the JSON")]


class CallDelta(TypedDict):
    """More of a call: its id and name come first."""

    index: Annotated[int, api_field("index of the call")]
    id: Annotated[NotRequired[str], api_field("id for the message with the result")]
    type: NotRequired[Literal["function"]]
    function: Annotated[FunctionDelta, api_field("new part of the call")]


class ChatDelta(TypedDict):
    """What a message grew by; the empty object with a `finish_reason`."""

    role: Annotated[NotRequired[Literal["assistant"]], api_field("role, in the first chunk")]
    content: Annotated[NotRequired[str], api_field("new text")]
    refusal: NotRequired[None]
    reasoning_content: Annotated[NotRequired[str], api_field("new reasoning")]
    tool_calls: Annotated[NotRequired[list[CallDelta]], api_field("new part of a tool call")]


class ChatChunkChoice(TypedDict):
    index: Annotated[int, api_field("index of the completion")]
    delta: Annotated[ChatDelta, api_field("new part")]
    logprobs: Annotated[ChatLogprobs | None, api_field("log-probabilities of the tokens of this text, if requested")]
    finish_reason: Annotated[Reason | None, api_field("reason for the end; null before")]


class ChatChunk(_Chunk):
    """An event of a chat's stream."""

    object: Literal["chat.completion.chunk"]
    choices: Annotated[list[ChatChunkChoice], api_field("one completion; none in the last chunk with the usage")]
    warning: Annotated[NotRequired[str], api_field("why structured output did not end by itself")]


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

    object: Literal["text_completion"]
    choices: Annotated[list[CompletionChoice], api_field("`n` completions per prompt")]
    usage: Annotated[Usage, api_field("token counts")]
    warning: Annotated[
        NotRequired[str], api_field("mistake in the prompt, or why structured output did not end by itself")
    ]


class CompletionChunkChoice(TypedDict):
    index: Annotated[int, api_field("index of the completion")]
    text: Annotated[str, api_field("new part")]
    logprobs: Annotated[
        CompletionLogprobs | None, api_field("log-probabilities of the tokens of this text, if requested")
    ]
    finish_reason: Annotated[Reason | None, api_field("reason for the end; null before")]


class CompletionChunk(_Chunk):
    """An event of a completion's stream."""

    object: Literal["text_completion"]
    choices: Annotated[list[CompletionChunkChoice], api_field("one completion; none in the last chunk with the usage")]
    warning: Annotated[
        NotRequired[str], api_field("mistake in the prompt, or why structured output did not end by itself")
    ]
