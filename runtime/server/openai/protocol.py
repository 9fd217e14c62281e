"""Models of chat completions and completions: requests, responses and chunks.

Types of responses are those that routes return. mypy checks them; nothing is validated while the server runs. Fields
that may be missing are `NotRequired`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NotRequired, get_args

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from runtime.request.resolve import MAX_TOKENS_PER_STEP
from runtime.request.validation import preview, refuse
from runtime.server.serving import chat, generation
from runtime.server.serving.request_body import (
    Identifier,
    Integer,
    RequestModel,
    UnsupportedField,
    api_field,
    ignored_field,
    optional,
)
from runtime.server.serving.tools import (
    EXAMPLE_TOOLS,
    Choice,
    ChoiceMode,
    ToolConfig,
    ToolItems,
    offered_tools,
    select_tools,
)

Verbosity = Annotated[Literal["low", "medium", "high"] | None, api_field("accepted for compatibility; ignored", "low")]
_FUNCTION = {"type": "object", "properties": {"name": {"type": "string"}}}
_NAMED = {"type": "object", "properties": {"type": {"const": "function"}, "function": _FUNCTION}}
ToolChoice = Annotated[
    Any,
    api_field("`none`, `auto`, `required`, or an object with the name of a function", "auto"),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": list(get_args(ChoiceMode))}, _NAMED, {"type": "null"}]}),
]


def parse_tool_choice(choice: object, origins: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> Choice:
    """Parses OpenAI's `tool_choice`.

    Args:
        choice: The value of the field.
        origins: As in `ToolConfig`; a function of a namespace may have the name that the client defined.

    Raises:
        RequestError: The value is no choice, or selects only tools that are not functions.
    """
    offered = {origin: name for name, origin in origins.items()}
    match choice:
        case None:
            return Choice(origins=origins)
        case "none" | "auto" | "required":
            return Choice(choice, origins=origins)
        case dict() if choice.get("type") == "allowed_tools":
            inner = choice.get("allowed_tools", choice)
            mode, tools = (inner.get("mode"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
            if mode not in ("auto", "required") or not isinstance(tools, list):
                raise refuse("tool_choice", "allowed_tools needs a mode, auto or required, and a list of tools")
            functions = [tool for tool in tools if isinstance(tool, dict) and tool.get("type") == "function"]
            names = (_function_name(tool, offered) for tool in functions)
            return Choice(mode, allowed=frozenset(filter(None, names)), origins=origins)
        case dict() if choice.get("type", "function") == "function":
            name = _function_name(choice, offered)
            if not name:
                raise refuse("tool_choice.function.name", "is missing; name one of the tools")
            return Choice("required", name, origins=origins)
    known = 'none, auto, required or {"type": "function", "function": {"name": ...}}'
    raise refuse("tool_choice", f"{preview(choice)} is not supported; use {known}", own=known)


def _function_name(selector: Mapping[str, Any], offered: Mapping[tuple[str, str], str]) -> str:
    """Returns the name, as offered to the model, of the function that an entry of `tool_choice` selects.

    Args:
        selector: The entry.
        offered: The offered name of each function of a namespace, by its own name and its namespace.

    Returns:
        The name; "" if the entry has none.
    """
    function = selector.get("function")
    described = function if isinstance(function, dict) else selector
    name, namespace = described.get("name"), described.get("namespace")
    if not isinstance(name, str):
        return ""
    return offered.get((name, namespace), name) if isinstance(namespace, str) else name


class ObfuscationOptions(RequestModel):
    """Options of streams that all APIs of OpenAI have."""

    include_obfuscation: bool | None = optional("true is ignored and named in `X-Unmask-Ignored`", False)

    def ignored_paths(self) -> Iterator[str]:
        if self.include_obfuscation:
            yield "include_obfuscation"


class StreamOptions(ObfuscationOptions):
    include_usage: bool | None = optional("add the usage to the last chunk", True)
    continuous_usage_stats: bool | None = optional("with it: add the usage to each chunk", False)


class AccountFields(RequestModel):
    """Fields for the services of OpenAI's accounts, which all of its APIs have."""

    store: bool | None = optional("ignored; responses are not stored", False)
    service_tier: str | None = ignored_field("auto")
    safety_identifier: Identifier | None = ignored_field("someone")
    prompt_cache_key: Identifier | None = optional("ignored; prefixes are cached without it", "sums")


class OpenAIRequest(generation.StepMapRequest, AccountFields):
    """The fields that chat and completions share."""

    return_token_ids: bool | None = optional("return the token ids of prompts and outputs", True)

    stream_options: StreamOptions | None = optional("options of the stream", {"include_usage": True})
    stream_mode: Literal["denoise", "block_append"] | None = optional(
        "`denoise`: also return the open blocks after each step; `block_append`: the default", "denoise"
    )
    user: Identifier | None = ignored_field("someone")
    metadata: generation.Entries | None = ignored_field({"topic": "sums"})


class ChatRequest(OpenAIRequest, chat.ChatFields):
    messages: chat.Messages = api_field("messages of the chat", chat.EXAMPLE_CHAT)
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
        return {**super().names(), "prompt": "messages", "logprobs": "top_logprobs", **limit}

    def set_fields(self) -> dict[str, Any]:
        """Returns set fields: `logprobs` as a number, `max_completion_tokens` as `max_tokens`. Raises RequestError."""
        found = super().set_fields()
        generation.set_alias(found, "max_completion_tokens", self.max_completion_tokens, "max_tokens")
        requested = found.pop("logprobs", False)
        if requested:
            found["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise refuse("top_logprobs", "only with logprobs true; leave it out")
        return found

    def tool_config(self) -> ToolConfig:
        """Returns the tools. Raises RequestError for an invalid tool, an impossible choice, or deprecated fields."""
        if self.functions and self.function_call != "none":
            fix = "send tools, and tool_choice instead of function_call"
            raise refuse("functions", f"the deprecated form of tools is not supported; {fix}")
        if self.function_call not in (None, "none", "auto"):
            fix = "send tools and tool_choice"
            raise refuse("function_call", f"the deprecated form of tool_choice is not supported; {fix}")
        choice = parse_tool_choice(self.tool_choice)
        return select_tools(offered_tools(self.tools), choice, single_call=self.parallel_tool_calls is False)

    def to_chat(self, **variables: Any) -> chat.ChatPrompt:
        return super().to_chat(**chat.effort_variables(self.reasoning_effort), **variables)


class CompletionRequest(OpenAIRequest):
    prompt: generation.Prompts = api_field(
        "prompts to continue: text, token ids, or a list of either", "Solve: 12 + 30."
    )
    best_of: Annotated[Any, UnsupportedField(1)] = None
    echo: bool | None = optional("return the prompt before the output, in `text` and `logprobs`", False)
    prompt_logprobs_stride: Integer | None = optional(
        "tokens of an echoed prompt scored per forward", 1, ge=1, le=MAX_TOKENS_PER_STEP
    )
    suffix: str | None = optional("text after the output", " 8, 10")
    parse_special: generation.ParseSpecial = None


Reason = Literal["stop", "length", "tool_calls"]


class ResponseHead(TypedDict):
    """Fields of all responses."""

    id: Annotated[str, api_field("id of this request")]
    created: Annotated[int, api_field("creation time, Unix seconds")]
    model: Annotated[str, api_field("requested model name")]


class TokenFields(generation.StepFields):
    """Tokens of an output and their steps, if requested."""

    token_ids: Annotated[NotRequired[list[int]], api_field("token ids of the output, with `return_token_ids`")]


class PromptIds(TypedDict):
    prompt_token_ids: Annotated[NotRequired[list[int]], api_field("token ids of the prompt, with `return_token_ids`")]


class _Chunk(ResponseHead):
    usage: Annotated[
        NotRequired[generation.Usage | None],
        api_field("with `include_usage`: in the last chunk, null before; with `continuous_usage_stats` in all"),
    ]
    denoise: Annotated[NotRequired[generation.DenoiseStep], api_field("the step, with `stream_mode` `denoise`")]


class TopLogprob(TypedDict):
    token: Annotated[str, api_field("text of the token; `bytes:` and escapes for incomplete characters")]
    logprob: Annotated[float, api_field("log-probability (natural logarithm)")]
    bytes: Annotated[list[int], api_field("text of the token as UTF-8")]


class TokenLogprob(TopLogprob):
    """A token of an answer."""

    top_logprobs: Annotated[list[TopLogprob], generation.TOP_LOGPROBS]


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


class ChatChoice(TokenFields):
    """One of `n` answers."""

    index: Annotated[int, api_field("index of the completion")]
    message: Annotated[AnswerMessage, api_field("generated text")]
    logprobs: Annotated[ChatLogprobs | None, api_field("log-probabilities of the tokens, if requested")]
    finish_reason: Annotated[
        Reason, api_field("`stop`: end of sequence or a stop string; `length`: a limit; `tool_calls`: tool calls")
    ]


class ChatAnswer(ResponseHead, PromptIds, generation.Warned):
    """The answer of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: Annotated[list[ChatChoice], api_field("`n` completions")]
    usage: Annotated[generation.Usage, api_field("token counts")]


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


class ChatChunkChoice(TokenFields):
    """Part of an answer. Its last chunk has the tokens and their steps."""

    index: Annotated[int, api_field("index of the completion")]
    delta: Annotated[ChatDelta, api_field("new part")]
    logprobs: Annotated[ChatLogprobs | None, api_field("log-probabilities of the tokens of this text, if requested")]
    finish_reason: Annotated[Reason | None, api_field("reason for the end; null before")]


class ChatChunk(_Chunk, PromptIds, generation.Warned):
    """An event of a chat's stream."""

    object: Literal["chat.completion.chunk"]
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


class CompletionChoice(TokenFields, PromptIds):
    """One answer of a prompt."""

    index: Annotated[int, api_field("index of the completion; those of one prompt are consecutive")]
    text: Annotated[str, api_field("output, after the prompt with `echo`")]
    logprobs: Annotated[CompletionLogprobs | None, api_field("log-probabilities of the tokens, if requested")]
    finish_reason: Annotated[Reason, api_field("`stop`: end of sequence or a stop string; `length`: a limit")]


class CompletionAnswer(ResponseHead, generation.PromptWarned):
    """The answer of `/v1/completions`."""

    object: Literal["text_completion"]
    choices: Annotated[list[CompletionChoice], api_field("`n` completions per prompt")]
    usage: Annotated[generation.Usage, api_field("token counts")]


class CompletionChunkChoice(TokenFields, PromptIds):
    """Part of an answer. Its last chunk has the tokens and their steps."""

    index: Annotated[int, api_field("index of the completion")]
    text: Annotated[str, api_field("new part")]
    logprobs: Annotated[
        CompletionLogprobs | None, api_field("log-probabilities of the tokens of this text, if requested")
    ]
    finish_reason: Annotated[Reason | None, api_field("reason for the end; null before")]


class CompletionChunk(_Chunk, generation.PromptWarned):
    """An event of a completion's stream."""

    object: Literal["text_completion"]
    choices: Annotated[list[CompletionChunkChoice], api_field("one completion; none in the last chunk with the usage")]
