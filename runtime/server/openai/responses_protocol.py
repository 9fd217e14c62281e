"""Models of ``/v1/responses``: requests, responses and events; and conversion of items to messages of a chat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NotRequired

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from runtime.request.validation import preview, refuse
from runtime.server.openai.protocol import AccountFields, ObfuscationOptions, ToolChoice, Verbosity, parse_tool_choice
from runtime.server.serving import chat, generation
from runtime.server.serving.request_body import (
    MAX_TOOLS,
    AnyOfUnion,
    Identifier,
    Integer,
    PartList,
    RequestModel,
    TextOrParts,
    ToolList,
    UnsupportedField,
    api_field,
    ignored_field,
    optional,
)
from runtime.server.serving.tools import FunctionDescription, ToolConfig, make_tool, select_tools

_NOT_STORED = "is not supported, as responses are not stored; send the full conversation in input"
_ENCRYPTED = "reasoning.encrypted_content"
_REQUIRED_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("name", "call_id"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
    "custom_tool_call": ("name", "call_id", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "local_shell_call": ("action",),
    "local_shell_call_output": ("output",),
    "shell_call": ("call_id", "action"),
    "shell_call_output": ("call_id", "output"),
    "apply_patch_call": ("call_id", "operation"),
    "apply_patch_call_output": ("call_id",),
}
# The fields that are the arguments of a call which is no function's.
_ARGUMENTS = {
    "custom_tool_call": ("input",),
    "local_shell_call": ("action",),
    "shell_call": ("action",),
    "apply_patch_call": ("operation",),
}
_RESULTS = frozenset({"function_call_output", *(f"{kind}_output" for kind in _ARGUMENTS)})


class ItemPart(chat.Part):
    """A piece of an item."""

    logprobs: Any = ignored_field([])

    text_types: ClassVar[frozenset[str]] = chat.TEXT_TYPES | {"reasoning_text", "summary_text"}


class ResultPart(ItemPart):
    """A part of a tool's result. Images and files are ignored, because agents send them in every later request."""

    ignored_types: ClassVar[frozenset[str]] = chat.ResultPart.ignored_types


def _output_arm(output: Any) -> str:
    """The arm of `Item.output`: any JSON is a result."""
    return "str" if isinstance(output, str) else "list" if chat.is_parts(output) else "any"


_Output = Annotated[
    Annotated[str, Tag("str")] | Annotated[PartList[ResultPart], Tag("list")] | Annotated[Any, Tag("any")],
    Discriminator(_output_arm),
    AnyOfUnion(),
]


def _is_tool_item(kind: str) -> bool:
    """Whether an item type is one that servers with tools of their own write."""
    if kind == "program" or "compaction" in kind:
        return True
    return kind.endswith(("_call", "_output")) or kind.startswith(("mcp_", "tool_search_"))


class ResponsesTool(FunctionDescription):
    """A function that the model may call, or a namespace of functions."""

    type: str = api_field(
        "`function` or `namespace` (a group of functions); tools of other types "
        "are ignored and named in `X-Unmask-Ignored`",
        "function",
    )
    name: str | None = optional("name of the function", "calculator")
    tools: ToolList[ResponsesTool] | None = optional(
        "of a namespace: its functions", [{"type": "function", "name": "read"}]
    )

    def unsupported_kind(self) -> str | None:
        return None if self.type in ("function", "namespace") else self.type


class Item(RequestModel):
    """A message, a call of a tool, what one returned, or an answer's reasoning."""

    type: str | None = optional(
        f"message (the default), {', '.join(list(_REQUIRED_FIELDS)[1:])}; items of other tools are ignored and "
        "named in `X-Unmask-Ignored`",
        "message",
    )
    role: Literal["system", "developer", "user", "assistant"] | None = optional(
        "of a message: role of the author; `developer` means `system`", "user"
    )
    content: TextOrParts[ItemPart] | None = optional(
        "of a message or reasoning item: text, or a list of parts", "Hello!"
    )
    id: str | None = ignored_field("msg_1")
    status: str | None = ignored_field("completed")
    phase: str | None = ignored_field("final_answer")
    call_id: str | None = optional("id of the call, in calls and results", "call_1")
    name: str | None = optional("of a call: name of the function", "calculator")
    namespace: str | None = optional("of a call: namespace of the function", "mcp__files")
    arguments: Any = optional("of a function call: arguments as JSON text", '{"expression": "12 + 30"}')
    input: str | None = optional("of a custom tool call: its input", "ls")
    action: Any = optional("of a shell call: an object", {"command": ["ls"]})
    operation: Any = optional("of an apply_patch call: an object", {"type": "delete_file", "path": "a.txt"})
    output: _Output | None = optional(
        "of a result: text, a list of parts, or other JSON; images and files are ignored and named in "
        "`X-Unmask-Ignored`",
        "42",
    )
    summary: PartList[ItemPart] | None = optional("of a reasoning item without content: list of parts", [])
    encrypted_content: str | None = ignored_field("")

    @property
    def kind(self) -> str:
        return self.type or "message"

    @model_validator(mode="after")
    def _is_known(self) -> Item:
        if self.kind == "item_reference" or (self.id and not self.model_extra and self.model_fields_set == {"id"}):
            raise PydanticCustomError(
                "not_kept", "refers to an item of an earlier response; responses are not stored, so send the full item"
            )
        if self.unsupported_kind() is not None:
            return self
        chat.check_kind(self, self.kind, _REQUIRED_FIELDS, "items")
        if self.kind == "function_call" and not isinstance(self.arguments, str | None):
            raise PydanticCustomError("not_text", "function_call items have arguments that are text; give JSON")
        return self

    def unsupported_kind(self) -> str | None:
        return self.kind if self.kind not in _REQUIRED_FIELDS and _is_tool_item(self.kind) else None

    def result_text(self) -> str:
        """The output of a tool as text: JSON of what is neither text nor parts."""
        output = self.output
        if isinstance(output, list) and all(isinstance(part, ItemPart) for part in output):
            return _text(output)
        return chat.result_text(output)

    def call(self, names: Mapping[tuple[str, str], str]) -> chat.Call:
        """The call as a chat has it. `names`: functions of namespaces, as they are offered to the model."""
        call_id, name, arguments = self.call_id, self.name or "", self.arguments
        if self.kind == "function_call":
            name = names.get((name, self.namespace or ""), name)
        else:
            call_id, name = call_id or self.id, name or self.kind.removesuffix("_call")
            arguments = {field: getattr(self, field) for field in _ARGUMENTS[self.kind]}
        return chat.Call(id=call_id, type="function", function=chat.Function(name=name, arguments=arguments))


class AdditionalTools(Item):
    """An item that adds tools to those of the request."""

    type: Literal["additional_tools"] = api_field("`additional_tools`", "additional_tools")
    tools: ToolList[ResponsesTool] = api_field(
        "functions that the model may call, as in `tools` of the request", [{"type": "function", "name": "read"}]
    )

    @model_validator(mode="after")
    def _is_known(self) -> AdditionalTools:
        return self


def _item_arm(item: Any) -> str:
    """The arm of an item in `ResponsesRequest.input`. `AdditionalTools` is a type of its own, because `tools` of other
    items have other forms."""
    return "added" if isinstance(item, dict) and item.get("type") == "additional_tools" else "item"


InputItem = Annotated[
    Annotated[Item, Tag("item")] | Annotated[AdditionalTools, Tag("added")], Discriminator(_item_arm), AnyOfUnion()
]


class TextConfig(RequestModel):
    """The form of the answer's text."""

    format: Any = optional("`text`, `json_object`, or `json_schema` with a schema", {"type": "json_object"})
    verbosity: Verbosity = None


class Reasoning(RequestModel):
    """Options of reasoning, for templates that support them."""

    effort: str | None = optional(
        "sets `reasoning_effort` of the chat template, and `enable_thinking`: false if `none`, else true", "low"
    )
    summary: str | None = ignored_field("auto")
    generate_summary: str | None = ignored_field("auto")


class _DefinedFunction(NamedTuple):
    """A function with the path and the namespace in which the request defines it."""

    path: str
    tool: ResponsesTool
    namespace: ResponsesTool | None


class ResponsesRequest(generation.SingleChoiceRequest, AccountFields):
    input: TextOrParts[InputItem] = api_field("text of the user, or the items of the conversation", "Solve: 12 + 30.")
    instructions: str | None = optional("system prompt", "You are terse.")
    max_output_tokens: Integer | None = optional("maximum output tokens; default: the rest of max_model_len", 64)
    text: TextConfig | None = optional("format of the output text", {"format": {"type": "text"}})
    reasoning: Reasoning | None = optional("options of reasoning", {"effort": "low"})
    tools: ToolList[ResponsesTool] | None = optional(
        "functions that the model may call",
        [{"type": "function", "name": "calculator", "parameters": {"type": "object"}}],
    )
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = optional("allow several tool calls; default true", True)
    max_tool_calls: Integer | None = ignored_field(1)
    chat_template_kwargs: generation.TemplateArguments = None
    metadata: generation.Entries | None = optional("returned in the response", {"topic": "sums"})
    stream_options: ObfuscationOptions | None = optional("options of the stream", {})
    user: Identifier | None = optional("returned in the response", "someone")
    prompt_cache_retention: str | None = ignored_field("24h")
    include: Annotated[list[str], Field(max_length=generation.MAX_ENTRIES, fail_fast=True)] | None = optional(
        f"`{_ENCRYPTED}`, which is ignored, and outputs of the hosted tools of the request", [_ENCRYPTED]
    )
    truncation: Literal["auto", "disabled"] | None = optional(
        "ignored; a conversation that is too long is rejected", "auto"
    )
    previous_response_id: Annotated[Any, UnsupportedField(why=_NOT_STORED)] = None
    conversation: Annotated[Any, UnsupportedField(why=_NOT_STORED)] = None
    prompt: Annotated[
        Any, UnsupportedField(why="is not supported, as prompts are not stored; send the text in input")
    ] = None
    background: Annotated[Any, UnsupportedField(False, why="is not supported; leave it out")] = None
    response_format: Annotated[Any, UnsupportedField(why="is not supported; use text.format")] = None
    context_management: Annotated[Any, UnsupportedField([])] = None
    moderation: Annotated[Any, UnsupportedField()] = None

    def names(self) -> dict[str, str]:
        return {"prompt": "input", "max_tokens": "max_output_tokens"}

    def set_fields(self) -> dict[str, Any]:
        limit = {} if self.max_output_tokens is None else {"max_tokens": self.max_output_tokens}
        return super().set_fields() | limit

    def format(self) -> tuple[str, Any]:
        return "text.format", None if self.text is None else self.text.format

    def tool_config(self) -> ToolConfig:
        """Returns the functions, those of namespaces among them. Raises RequestError for one that is malformed.

        A namespace's function has its own name, or, where another function has that name too, a qualified one.
        """
        all_tools = self._all_tools()
        self._check_include(all_tools)
        defined = self._functions(all_tools)
        uses = Counter(each.tool.name or "" for each in defined)
        origins: dict[str, tuple[str, str]] = {}
        tools = []
        for path, item, namespace in defined:
            name = item.name or ""
            if namespace is not None:
                origin = (name, namespace.name or "")
                name = f"{origin[1].removesuffix('__')}__{name}" if uses[name] > 1 else name
                origins[name] = origin
                if item.description is None:
                    item = item.model_copy(update={"description": namespace.description})
            tools.append(make_tool(path, name, item))
        choice = parse_tool_choice(self.tool_choice, origins)
        return select_tools(tools, choice, single_call=self.parallel_tool_calls is False)

    def _check_include(self, all_tools: Sequence[tuple[str, ResponsesTool]]) -> None:
        """Raises RequestError for additional output that no response can have.

        Output of a hosted tool is allowed with that tool in the request, as clients send both together.
        """
        kinds = [tool.type for _, tool in all_tools if tool.unsupported_kind() is not None]
        for i, value in enumerate(self.include or ()):
            hosted = value.partition("_call")[0]
            if value != _ENCRYPTED and not ("_call" in value and any(kind.startswith(hosted) for kind in kinds)):
                raise refuse(f"include[{i}]", f"{preview(value)} is not supported, only {_ENCRYPTED}; leave it out")

    def _all_tools(self) -> list[tuple[str, ResponsesTool]]:
        """The tools with their paths: those of `tools`, then those that items add."""
        found = [(f"tools[{i}]", tool) for i, tool in enumerate(self.tools or ())]
        for i, added in enumerate(self.input if isinstance(self.input, list) else ()):
            if isinstance(added, AdditionalTools):
                found += [(f"input[{i}].tools[{j}]", tool) for j, tool in enumerate(added.tools)]
        return found

    def _functions(self, all_tools: Sequence[tuple[str, ResponsesTool]]) -> list[_DefinedFunction]:
        """Returns the functions in the same order. Raises RequestError for malformed ones or too many."""
        found: list[_DefinedFunction] = []
        for path, item in all_tools:
            if item.type == "function":
                found.append(_DefinedFunction(path, item, None))
            elif item.type == "namespace":
                if not item.name:
                    raise refuse(f"{path}.name", "is missing; name the namespace")
                for j, tool in enumerate(item.tools or ()):
                    if tool.type == "namespace":
                        raise refuse(f"{path}.tools[{j}].type", "is namespace within a namespace; move it to tools")
                    if tool.type == "function":
                        found.append(_DefinedFunction(f"{path}.tools[{j}]", tool, item))
        if len(found) > MAX_TOOLS:
            field = "tools" if self.tools else "input"
            raise refuse(field, f"defines {len(found)} functions, those of namespaces included; at most {MAX_TOOLS}")
        return found

    def to_chat(self, origins: Mapping[str, tuple[str, str]]) -> chat.ChatPrompt:
        """Returns the chat of instructions and items. Items of one answer become one message.

        Args:
            origins: As in `ToolConfig`; calls in the history get the names that are offered to the model.

        Raises:
            RequestError: A result has no call before it.
        """
        effort = None if self.reasoning is None else self.reasoning.effort
        variables = chat.template_variables(self.chat_template_kwargs, **chat.effort_variables(effort))
        names = {found: flat for flat, found in origins.items()}
        conversation = chat.Conversation("call_id")
        if self.instructions is not None:
            conversation.add("instructions", role="system", content=self.instructions)
        items: Sequence[Item] = [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        call_ids: dict[str, str] = {}  # by the ids of items, which some results name instead
        for i, item in enumerate(items):
            path = f"input[{i}]"
            if item.id and item.call_id:
                call_ids[item.id] = item.call_id
            match item.kind:
                case "reasoning":
                    conversation.assistant(path, reasoning=_text(item.content) or _text(item.summary))
                case "function_call" | "custom_tool_call" | "local_shell_call" | "shell_call" | "apply_patch_call":
                    conversation.assistant(path, call=item.call(names))
                case kind if kind in _RESULTS:
                    call_id = item.call_id or call_ids.get(item.id or "", item.id)
                    conversation.add(path, role="tool", content=item.result_text(), tool_call_id=call_id)
                case _ if item.unsupported_kind() is not None or isinstance(item, AdditionalTools):
                    pass
                case _ if item.role == "assistant":
                    conversation.assistant(path, text=_text(item.content))
                case _:
                    conversation.add(path, role=item.role, content=_text(item.content))
        return chat.ChatPrompt(conversation.to_template(), variables)


def _text(content: str | Sequence[ItemPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.as_text() for part in content)


Json = dict[str, Any]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: Annotated[str, api_field("generated text")]
    annotations: Annotated[list[Json], api_field("always empty")]
    logprobs: Annotated[list[Json], api_field("always empty")]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: Annotated[str, api_field("reasoning text")]


class _OutputItem(TypedDict):
    id: Annotated[str, api_field("id of the item")]
    status: Annotated[Literal["in_progress", "completed", "incomplete"], api_field("status of the item")]


class MessageItem(_OutputItem):
    type: Literal["message"]
    role: Literal["assistant"]
    content: Annotated[list[OutputText], api_field("one text; empty in the first event of the item")]


class CallItem(_OutputItem):
    """A call of a function."""

    type: Literal["function_call"]
    call_id: Annotated[str, api_field("id for the item with the result")]
    name: Annotated[str, api_field("name of the function")]
    namespace: NotRequired[Annotated[str, api_field("namespace of the function in the request")]]
    arguments: Annotated[str, api_field("arguments as JSON")]


class ReasoningItem(_OutputItem):
    type: Literal["reasoning"]
    summary: Annotated[list[Json], api_field("always empty")]
    content: Annotated[list[ReasoningText], api_field("one text; empty in the first event of the item")]


OutputItem = MessageItem | CallItem | ReasoningItem


class Incomplete(TypedDict):
    reason: Annotated[Literal["max_output_tokens"], api_field("reached a limit")]


class ResponseError(TypedDict):
    code: Annotated[str, api_field("error code")]
    message: Annotated[str, api_field("details")]


class InputDetails(generation.PromptDetails):
    cache_write_tokens: Annotated[int, api_field("always 0")]


class ResponsesUsage(TypedDict):
    """Tokens."""

    input_tokens: Annotated[int, api_field("prompt tokens")]
    input_tokens_details: Annotated[InputDetails, api_field("details")]
    output_tokens: Annotated[int, api_field("output tokens")]
    output_tokens_details: Annotated[generation.CompletionDetails, api_field("details")]
    total_tokens: Annotated[int, api_field("sum of both")]


class ReasoningSettings(TypedDict):
    effort: Annotated[str | None, api_field("as requested")]
    summary: None


class TextSettings(TypedDict):
    format: Annotated[Json, api_field("as requested; default: type `text`")]


ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseSettings(TypedDict):
    """Fields of the request that the response repeats."""

    instructions: Annotated[str | None, api_field("as requested")]
    metadata: Annotated[Json, api_field("as requested")]
    max_output_tokens: Annotated[int | None, api_field("as requested")]
    temperature: Annotated[float, api_field("value that was used")]
    top_p: Annotated[float, api_field("value that was used")]
    reasoning: Annotated[ReasoningSettings, api_field("value that was used")]
    text: Annotated[TextSettings, api_field("value that was used")]
    tools: Annotated[list[Json], api_field("as requested")]
    tool_choice: Annotated[Any, api_field("as requested; default `auto`")]
    parallel_tool_calls: Annotated[bool, api_field("whether several calls are allowed")]
    previous_response_id: Annotated[None, api_field("always null; responses are not stored")]
    background: Annotated[bool, api_field("always false")]
    store: Annotated[bool, api_field("always false; responses are not stored")]
    truncation: Annotated[Literal["auto", "disabled"], api_field("as requested; default `disabled`")]
    user: Annotated[str | None, api_field("as requested")]


class ResponsesAnswer(ResponseSettings, generation.Warned):
    """The answer of `/v1/responses`."""

    id: Annotated[str, api_field("id of this request")]
    object: Literal["response"]
    created_at: Annotated[int, api_field("creation time, Unix seconds")]
    status: Annotated[ResponseStatus, api_field("`in_progress` and `failed` occur in streams only")]
    model: Annotated[str, api_field("requested model name")]
    output: Annotated[list[OutputItem], api_field("reasoning, text and function calls")]
    usage: Annotated[ResponsesUsage | None, api_field("token counts, after the end")]
    error: Annotated[ResponseError | None, api_field("reason of a failure")]
    incomplete_details: Annotated[Incomplete | None, api_field("reason for an incomplete response")]


class _Numbered(TypedDict):
    sequence_number: Annotated[int, api_field("number of the event in its stream, from 0")]


class ResponseEvent(_Numbered):
    """The stream's first two events and its last, with the response as it is then."""

    type: Annotated[
        Literal[
            "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
        ],
        api_field("details"),
    ]
    response: Annotated[ResponsesAnswer, api_field("current state")]


class ItemEvent(_Numbered):
    """An item begins or has ended."""

    type: Annotated[Literal["response.output_item.added", "response.output_item.done"], api_field("type of the event")]
    output_index: Annotated[int, api_field("index of the item in `output`")]
    item: Annotated[OutputItem, api_field("current state")]


class _Placed(_Numbered):
    item_id: Annotated[str, api_field("id of the item")]
    output_index: Annotated[int, api_field("index of the item in `output`")]


class _Within(_Placed):
    content_index: Annotated[int, api_field("always 0")]


class PartEvent(_Within):
    """A message's or a reasoning's text begins or has ended."""

    type: Annotated[
        Literal["response.content_part.added", "response.content_part.done"], api_field("type of the event")
    ]
    part: Annotated[OutputText | ReasoningText, api_field("current state")]


class TextEvent(_Within):
    """More text."""

    type: Literal["response.output_text.delta"]
    delta: Annotated[str, api_field("new part")]
    logprobs: Annotated[list[Json], api_field("always empty")]


class TextDone(_Within):
    """All of a text."""

    type: Literal["response.output_text.done"]
    text: Annotated[str, api_field("complete text")]
    logprobs: Annotated[list[Json], api_field("always empty")]


class ReasoningEvent(_Within):
    """More reasoning."""

    type: Literal["response.reasoning_text.delta"]
    delta: Annotated[str, api_field("new part")]


class ReasoningDone(_Within):
    """All of a reasoning."""

    type: Literal["response.reasoning_text.done"]
    text: Annotated[str, api_field("complete text")]


class ArgumentsEvent(_Placed):
    """More of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    delta: Annotated[str, api_field("new part of the JSON")]


class ArgumentsDone(_Placed):
    """All of a call's arguments."""

    type: Literal["response.function_call_arguments.done"]
    arguments: Annotated[str, api_field("complete JSON")]
    name: Annotated[str, api_field("name of the function")]


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
