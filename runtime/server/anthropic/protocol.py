"""Models of ``/v1/messages``: requests, responses and events; and conversion of blocks to messages of a chat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from runtime.errors import RequestError
from runtime.request.validation import refuse
from runtime.server.http_protocol.error_responses import ERROR_TYPES
from runtime.server.serving import chat, generation
from runtime.server.serving.request_body import (
    AnyOfUnion,
    Integer,
    MessageList,
    PartList,
    RequestModel,
    TextOrParts,
    ToolList,
    UnsupportedField,
    api_field,
    ignored_field,
    optional,
)
from runtime.server.serving.tools import Choice, ChoiceMode, FunctionDescription, ToolConfig, make_tool, select_tools

_CHOICES: dict[str, ChoiceMode] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_BILLING = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n*")
_SERVER_BLOCKS = frozenset({"container_upload", "tool_reference", "compaction", "mcp_tool_listing", "fallback"})
_REQUIRED_FIELDS = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "document": ("source",),
    "search_result": ("content",),
}


def _is_tool_block(kind: str) -> bool:
    """Whether a block type is one that servers with tools of their own write."""
    return kind.endswith(("_tool_use", "_tool_result")) or kind in _SERVER_BLOCKS


def _content_arm(content: Any) -> str:
    """The arm of `Block.content`: results of server tools have forms of their own."""
    if not chat.is_parts(content):
        return "str" if isinstance(content, str) else "any"
    kinds = [part["type"] for part in content]
    own = any(isinstance(kind, str) and kind.endswith(("_result", "_error", "_output")) for kind in kinds)
    return "any" if own else "list"


class Block(RequestModel):
    """A piece of a turn: text, an answer's thinking, a call of a tool, or what one returned."""

    type: str = api_field(
        "text, document, search_result, thinking, redacted_thinking, tool_use or tool_result; blocks of "
        "server tools are ignored and named in `X-Unmask-Ignored`",
        "text",
    )
    text: str | None = optional("text of a `text` part", "Hello!")
    thinking: str | None = optional("reasoning of the assistant, for templates that use it", "12 and 30 are 42.")
    signature: str | None = ignored_field("")
    data: str | None = ignored_field("")
    source: Any = optional(
        "of a `document`: its text; other documents are rejected, and ignored in results of tools; of a "
        "`search_result`: ignored",
        {"type": "text", "media_type": "text/plain", "data": "Hello!"},
    )
    id: str | None = optional("of a tool call: its id", "call_1")
    name: str | None = optional("of a tool call: name of the tool", "calculator")
    input: dict[str, Any] | None = optional("of a tool call: its arguments", {"expression": "12 + 30"})
    tool_use_id: str | None = optional("of a tool result: id of the call", "call_1")
    content: _Content | None = optional(
        "of a tool or search result: text, or a list of blocks; other JSON in a tool result becomes text; images and "
        "files are ignored and named in `X-Unmask-Ignored`",
        "42",
    )
    is_error: bool | None = optional("of a tool result; accepted for compatibility; ignored", False)
    caller: Any = ignored_field(None)
    citations: Any = ignored_field(None)
    cache_control: Any = optional("ignored; every prefix is cached", None)

    @model_validator(mode="after")
    def _is_known(self) -> Block:
        if self.unsupported_kind() is not None:
            return self
        chat.check_kind(self, self.type, _REQUIRED_FIELDS, "blocks")
        if self.as_text() is None:
            details = {"noun": self.type.replace("_", " ") + "s"}
            raise PydanticCustomError("not_built", "{noun} other than text are not supported; send their text", details)
        return self

    def as_text(self) -> str | None:
        """The text of a text block, document or search result; None for one that is not text alone."""
        if self.type == "search_result":
            return _joined_texts(self.content)
        if self.type != "document":
            return self.text or ""
        source = self.source if isinstance(self.source, dict) else {}
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return str(source["data"])
        return _joined_texts(source.get("content")) if source.get("type") == "content" else None

    def unsupported_kind(self) -> str | None:
        return self.type if self.type not in _REQUIRED_FIELDS and _is_tool_block(self.type) else None

    def ignored_paths(self) -> Iterator[str]:
        if self.type == "search_result" and self.source is not None:
            yield "source"

    def result_text(self, path: str) -> str:
        """The content of a tool's result as text: JSON of what is neither text nor blocks."""
        content = self.content
        if isinstance(content, list) and all(isinstance(block, Block) for block in content):
            return "".join(_texts(content, path, has_documents=True))
        return chat.result_text(content)


def _joined_texts(content: Any) -> str | None:
    """Returns a text, or the texts of a list of text blocks, parsed or not; None for other values."""
    if isinstance(content, str):
        return content
    parts = [dict(part) if isinstance(part, Block) else part for part in content] if isinstance(content, list) else []
    texts: list[Any] = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    is_text = texts and len(texts) == len(parts) and all(isinstance(text, str) for text in texts)
    return "".join(texts) if is_text else None


class ResultBlock(Block):
    """A part of a tool's result. Images and files are ignored, because agents send them in every later request."""

    def unsupported_kind(self) -> str | None:
        if self.type == "image" or self.as_text() is None:
            return self.type
        return super().unsupported_kind()


_Content = Annotated[
    Annotated[str, Tag("str")] | Annotated[PartList[ResultBlock], Tag("list")] | Annotated[Any, Tag("any")],
    Discriminator(_content_arm),
    AnyOfUnion(),
]
BlockText = TextOrParts[Block]


class InputMessage(RequestModel):
    role: Literal["user", "assistant", "system"] = api_field("role of the author", "user")
    content: BlockText = api_field("text, or a list of blocks", "Hello!")


class Thinking(RequestModel):
    """Controls `enable_thinking` of the chat template."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"] = api_field(
        "sets `enable_thinking` of the chat template to false if `disabled`, else true", "enabled"
    )
    budget_tokens: Integer | None = ignored_field(1024)
    display: str | None = ignored_field("summarized")


class OutputConfig(RequestModel):
    """Format of the output, and `reasoning_effort` for templates that support it."""

    format: Any = optional("`json_schema` with a schema", {"type": "json_schema", "schema": {"type": "object"}})
    effort: str | None = optional("sets `reasoning_effort` of the chat template", "low")


class MessagesTool(RequestModel):
    """A tool that the model may use."""

    type: str | None = optional(
        "`custom`, the default; tools of other types are ignored and named in `X-Unmask-Ignored`", "custom"
    )
    name: str | None = optional("name of the function", "calculator")
    description: str | None = optional("description for the model", "Works out sums.")
    input_schema: dict[str, Any] | None = optional(
        "JSON schema of the input", {"type": "object", "properties": {"expression": {"type": "string"}}}
    )
    strict: bool | None = optional("constrain the input to the schema", False)
    cache_control: Any = optional("ignored; every prefix is cached", None)

    def unsupported_kind(self) -> str | None:
        return None if self.type in (None, "custom") else self.type

    def function(self) -> FunctionDescription:
        return FunctionDescription(description=self.description, parameters=self.input_schema, strict=self.strict)


class MessagesToolChoice(RequestModel):
    """Whether and which tools are to be used."""

    type: Literal["auto", "any", "tool", "none"] = api_field(
        "`auto`: the model decides; `any`: any tool; `tool`: the tool `name`; `none`", "auto"
    )
    name: str | None = optional("name of the tool for `tool`", "calculator")
    disable_parallel_tool_use: bool | None = optional("allow at most one call", False)


class CountRequest(RequestModel):
    """A conversation whose tokens are counted."""

    model: generation.ModelName = None
    messages: MessageList[InputMessage] = api_field(
        "messages of the chat; a last message of the assistant is continued", chat.EXAMPLE_CHAT
    )
    system: BlockText | None = optional("system prompt: text, or a list of blocks", "You are terse.")
    tools: ToolList[MessagesTool] | None = optional(
        "tools that the model may call", [{"name": "calculator", "input_schema": {"type": "object"}}]
    )
    tool_choice: MessagesToolChoice | None = optional("whether and which tools are called", {"type": "auto"})
    thinking: Thinking | None = optional("whether the model reasons first", {"type": "disabled"})
    output_config: OutputConfig | None = optional("format and effort of the output", {"effort": "low"})
    output_format: Any = optional(
        "earlier name of `output_config.format`", {"type": "json_schema", "schema": {"type": "object"}}
    )
    chat_template_kwargs: generation.TemplateArguments = None
    cache_control: Any = optional("ignored; every prefix is cached", None)
    speed: str | None = ignored_field("standard")

    def tool_config(self) -> ToolConfig:
        """Returns the tools. Raises RequestError for an invalid tool or an impossible choice."""
        tools = [
            make_tool(f"tools[{i}]", item.name or "", item.function(), "input_schema")
            for i, item in enumerate(self.tools or ())
            if item.unsupported_kind() is None
        ]
        choice = self.tool_choice or MessagesToolChoice(type="auto")
        named = choice.name or "" if choice.type == "tool" else ""
        if choice.type == "tool" and not named:
            raise refuse("tool_choice.name", "is missing; name one of the tools")
        single_call = choice.disable_parallel_tool_use is True
        return select_tools(tools, Choice(_CHOICES[choice.type], named), single_call=single_call)

    def to_chat(self) -> chat.ChatPrompt:
        """Returns the chat of system prompt and turns. A last turn of the assistant is continued.

        Raises RequestError for blocks that their turn cannot have, or a turn that cannot be continued.
        """
        made = chat.Conversation("tool_use_id")
        if self.system is not None:
            # Claude Code's billing line differs per request, so that nothing after it could be in the prefix cache
            texts = (_BILLING.sub("", text) for text in _texts(self.system, "system"))
            made.add("system", role="system", content="".join(texts))
        for i, message in enumerate(self.messages):
            path = f"messages[{i}]"
            if message.role == "assistant":
                _add_assistant(made, message.content, path)
            else:
                _add_input(made, message, path)
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        effort = None if self.output_config is None else self.output_config.effort
        variables = chat.template_variables(self.chat_template_kwargs, enable_thinking=thinks, reasoning_effort=effort)
        messages = made.to_template()
        return chat.ChatPrompt(messages, variables, self._continues(messages))

    def _continues(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the answer continues the last turn, an assistant's. Raises RequestError if it cannot."""
        if not self.messages:
            return False
        if not messages:
            raise refuse("messages", "has no text, call or result that the server supports; add one")
        if self.messages[-1].role != "assistant" or messages[-1]["role"] != "assistant":
            return False
        chat.check_continued(messages[-1], f"messages[{len(self.messages) - 1}]")
        return True


class MessagesRequest(CountRequest, generation.SingleChoiceRequest):
    max_tokens: Integer | None = optional("maximum output tokens; default: the rest of max_model_len", 64)
    stop_sequences: list[str] | None = optional("stop strings; the output ends before the first one", ["\n\n"])
    metadata: generation.Entries | None = ignored_field({"user_id": "someone"})
    service_tier: str | None = ignored_field("auto")
    inference_geo: str | None = ignored_field("eu")
    response_format: Annotated[Any, UnsupportedField(why="is not supported; use output_config.format")] = None

    stream_fields = ()
    container: Annotated[Any, UnsupportedField()] = None
    mcp_servers: list[Any] | None = optional(
        "ignored with an `mcp_toolset` in `tools`, otherwise rejected unless empty", []
    )

    def ignored_paths(self) -> Iterator[str]:
        yield from super().ignored_paths()
        if self.mcp_servers:
            yield "mcp_servers"

    def check_conflicts(self) -> None:
        """Raises RequestError for conflicting fields, and for `mcp_servers` without a toolset.

        With a toolset, `mcp_servers` is ignored and named in `X-Unmask-Ignored`.
        """
        if self.mcp_servers and not any(tool.type == "mcp_toolset" for tool in self.tools or ()):
            raise refuse("mcp_servers", "is not supported; leave it out")
        name, found = self.format()
        if self.output_format is not None and self.output_format != found:
            raise refuse("output_format", f"conflicts with {name}; send one of them")
        if self.stop_sequences is not None:
            generation.check_unset(self, ["stop"], "is stop_sequences here; give that alone")

    def set_fields(self) -> dict[str, Any]:
        return super().set_fields() | ({} if self.stop_sequences is None else {"stop": self.stop_sequences})

    def names(self) -> dict[str, str]:
        return {"prompt": "messages", **({} if self.stop_sequences is None else {"stop": "stop_sequences"})}

    def format(self) -> tuple[str, Any]:
        current = None if self.output_config is None else self.output_config.format
        if current is None and self.output_format is not None:
            return "output_format", self.output_format
        return "output_config.format", current


def _blocks(content: str | Sequence[Block] | None, path: str) -> Iterator[tuple[str, Block]]:
    """Yields the supported blocks with their paths; a text is one block."""
    if content is None or isinstance(content, str):
        yield path, Block(type="text", text=content or "")
        return
    for i, block in enumerate(content):
        if block.unsupported_kind() is None:
            yield f"{path}[{i}]", block


def _texts(content: str | Sequence[Block] | None, path: str, *, has_documents: bool = False) -> list[str]:
    """Returns the texts of content that may have only text, and documents if allowed. Raises RequestError."""
    blocks = list(_blocks(content, path))
    for at, block in blocks:
        if block.type != "text" and not (has_documents and block.type == "document"):
            raise refuse(at, f"{block.type} blocks are not supported here, only text")
    return [block.as_text() or "" for _, block in blocks]


def _add_assistant(made: chat.Conversation, content: BlockText, path: str) -> None:
    begins = True
    for at, block in _blocks(content, f"{path}.content"):
        match block.type:
            case "tool_use":
                function = chat.Function(name=block.name or "", arguments=block.input or {})
                made.assistant(at, call=chat.Call(id=block.id, type="function", function=function), begins=begins)
            case "thinking" | "redacted_thinking":  # redacted_thinking has no readable text
                made.assistant(at, reasoning=block.thinking or "", begins=begins)
            case "text":
                made.assistant(at, text=block.text or "", begins=begins)
            case _:
                raise refuse(at, f"only a user's turn has {block.type} blocks; move it")
        begins = False


def _add_input(made: chat.Conversation, message: InputMessage, path: str) -> None:
    """Adds a message of the user or the system. Results of tools become separate messages in the same order."""
    texts: list[str] = []
    added = False
    for at, block in _blocks(message.content, f"{path}.content"):
        if block.type == "text" or (block.type in ("document", "search_result") and message.role == "user"):
            texts.append(block.as_text() or "")
        elif block.type == "tool_result" and message.role == "user":
            if texts:
                made.add(path, role="user", content="".join(texts))
                texts = []
            made.add(at, role="tool", content=block.result_text(f"{at}.content"), tool_call_id=block.tool_use_id)
            added = True
        else:
            raise refuse(at, f"a {message.role}'s turn has no {block.type} blocks; move it")
    if texts or not added:
        made.add(path, role=message.role, content="".join(texts))


class MessagesErrorDetail(TypedDict):
    type: Annotated[str, api_field("type of the error, by status")]
    message: Annotated[str, api_field("what is wrong, and the fix")]


class MessagesError(TypedDict):
    """A refusal or failure of `/v1/messages`, in an answer or a stream."""

    type: Literal["error"]
    error: Annotated[MessagesErrorDetail, api_field("details")]


_ERROR_TYPES = ERROR_TYPES | {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


def error_object(error: RequestError) -> MessagesError:
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class TextBlock(TypedDict):
    type: Literal["text"]
    text: Annotated[str, api_field("generated text")]


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: Annotated[str, api_field("reasoning, if the model marks it")]
    signature: Annotated[str, api_field("always empty")]


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: Annotated[str, api_field("id for the block with the result")]
    name: Annotated[str, api_field("name of the tool")]
    input: Annotated[dict[str, Any], api_field("arguments; in a stream they follow as deltas of JSON")]


StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"]
AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(TypedDict):
    """Tokens."""

    input_tokens: Annotated[int, api_field("prompt tokens, without cached ones")]
    output_tokens: Annotated[int, api_field("output tokens")]
    cache_creation_input_tokens: Annotated[int, api_field("always 0")]
    cache_read_input_tokens: Annotated[int, api_field("prompt tokens found in the prefix cache")]


class MessagesAnswer(generation.Warned):
    """The answer of `/v1/messages`."""

    id: Annotated[str, api_field("id of this request")]
    type: Literal["message"]
    role: Literal["assistant"]
    model: Annotated[str, api_field("requested model name")]
    content: Annotated[list[AnswerBlock], api_field("reasoning, text and tool calls")]
    stop_reason: Annotated[StopReason | None, api_field("reason for the end; null in the first event of a stream")]
    stop_sequence: Annotated[str | None, api_field("the stop sequence that ended the output, if any")]
    usage: Annotated[MessagesUsage, api_field("token counts")]


class TokenCount(TypedDict):
    input_tokens: Annotated[int, api_field("tokens of the prompt")]


class MessageStart(TypedDict):
    """The first event of a stream."""

    type: Literal["message_start"]
    message: Annotated[MessagesAnswer, api_field("the message, without content")]


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: Annotated[int, api_field("index of the block")]
    content_block: Annotated[AnswerBlock, api_field("the block, empty")]


class TextDelta(TypedDict):
    type: Literal["text_delta"]
    text: Annotated[str, api_field("new text")]


class ThinkingDelta(TypedDict):
    type: Literal["thinking_delta"]
    thinking: Annotated[str, api_field("new text")]


class InputDelta(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: Annotated[str, api_field("new part of the JSON of `input`")]


class BlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: Annotated[int, api_field("index of the block")]
    delta: Annotated[TextDelta | ThinkingDelta | InputDelta, api_field("new part")]


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: Annotated[int, api_field("index of the block")]


class MessageEnd(TypedDict):
    stop_reason: Annotated[StopReason, api_field("reason for the end")]
    stop_sequence: Annotated[str | None, api_field("the stop sequence that ended the output, if any")]


class MessageDelta(generation.Warned):
    type: Literal["message_delta"]
    delta: Annotated[MessageEnd, api_field("how the message ended")]
    usage: Annotated[MessagesUsage, api_field("token counts")]


class MessageStop(TypedDict):
    """The last event of a stream."""

    type: Literal["message_stop"]


MESSAGE_EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessagesError)
