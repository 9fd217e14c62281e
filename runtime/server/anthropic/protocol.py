"""Models of ``/v1/messages``: requests, responses and events; and conversion of blocks to messages of a chat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from runtime.errors import RequestError
from runtime.request.validation import refuse
from runtime.server.openai.protocol import (
    EXAMPLE_CHAT,
    MAX_MESSAGES,
    MAX_PARTS,
    Call,
    Conversation,
    Entries,
    Function,
    ModelName,
    SingleChoiceRequest,
    TemplateArguments,
    check_continued,
    check_kind,
    template_variables,
)
from runtime.server.openai.tools import MAX_TOOLS, Choice, ToolConfig, check_distinct_names, make_tool, select_tools
from runtime.server.preprocessing.request_body import (
    AnyOfUnion,
    Integer,
    RequestModel,
    UnsupportedField,
    api_field,
    union_tag,
)

_CHOICES: dict[str, Literal["none", "auto", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}
_BILLING = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n*")
_REQUIRED_FIELDS = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
}


def _is_tool_block(kind: str) -> bool:
    """Whether a block type is one that servers with tools of their own write."""
    return kind.endswith(("_tool_use", "_tool_result")) or kind in ("container_upload", "tool_reference", "compaction")


def _content_arm(content: Any) -> str:
    """The arm of `Block.content`: results of server tools have forms of their own."""
    if not isinstance(content, list):
        return "any" if isinstance(content, dict) else "str"
    kinds = [part.get("type") for part in content if isinstance(part, dict)]
    own = any(isinstance(kind, str) and kind.endswith(("_result", "_error", "_output")) for kind in kinds)
    return "any" if own else "list"


class Block(RequestModel):
    """A piece of a turn: text, an answer's thinking, a call of a tool, or what one returned."""

    type: Annotated[
        str,
        api_field(
            "text, thinking, redacted_thinking, tool_use or tool_result; blocks of server "
            "tools are ignored and named in `X-Unmask-Ignored`",
            "text",
        ),
    ]
    text: Annotated[str | None, api_field("text of a `text` part", "Hello!")] = None
    thinking: Annotated[
        str | None, api_field("reasoning of the assistant, for templates that use it", "12 and 30 are 42.")
    ] = None
    signature: Annotated[str | None, api_field("accepted for compatibility; ignored", "")] = None
    data: Annotated[str | None, api_field("accepted for compatibility; ignored", "")] = None
    id: Annotated[str | None, api_field("of a tool call: its id", "call_1")] = None
    name: Annotated[str | None, api_field("of a tool call: name of the tool", "calculator")] = None
    input: Annotated[dict[str, Any] | None, api_field("of a tool call: its arguments", {"expression": "12 + 30"})] = (
        None
    )
    tool_use_id: Annotated[str | None, api_field("of a tool result: id of the call", "call_1")] = None
    content: Annotated[
        _Content | None,
        api_field(
            "of a tool result: text, or a list of blocks; images are ignored and named in `X-Unmask-Ignored`", "42"
        ),
    ] = None
    is_error: Annotated[bool | None, api_field("of a tool result; accepted for compatibility; ignored", False)] = None
    caller: Annotated[Any, api_field("accepted for compatibility; ignored", None)] = None
    citations: Annotated[Any, api_field("accepted for compatibility; ignored", None)] = None
    cache_control: Annotated[Any, api_field("ignored; every prefix is cached", None)] = None

    @model_validator(mode="after")
    def _is_known(self) -> Block:
        if self.unsupported_kind() is not None:
            return self
        check_kind(self, self.type, _REQUIRED_FIELDS, "blocks")
        if self.type == "tool_result" and not isinstance(self.content, str | list | None):
            raise PydanticCustomError("content_type", "tool_result blocks have a content that is text or blocks")
        return self

    def unsupported_kind(self) -> str | None:
        return self.type if self.type not in _REQUIRED_FIELDS and _is_tool_block(self.type) else None

    def result_text(self, path: str) -> str:
        """The content of a tool's result as text: JSON of a list with blocks that have forms of their own."""
        content = self.content
        if isinstance(content, list) and not all(isinstance(block, Block) for block in content):
            return json.dumps(content, ensure_ascii=False)
        return _text(content, path)


class ResultBlock(Block):
    """A piece of a tool's result: agents send images there that no request of a user asks for."""

    def unsupported_kind(self) -> str | None:
        return self.type if self.type == "image" else super().unsupported_kind()


_Blocks = Annotated[list[Block], Field(max_length=MAX_PARTS, fail_fast=True)]
_ResultBlocks = Annotated[list[ResultBlock], Field(max_length=MAX_PARTS, fail_fast=True)]
_Content = Annotated[
    Annotated[str, Tag("str")] | Annotated[_ResultBlocks, Tag("list")] | Annotated[Any, Tag("any")],
    Discriminator(_content_arm),
    AnyOfUnion(),
]
BlockText = Annotated[Annotated[str, Tag("str")] | Annotated[_Blocks, Tag("list")], Discriminator(union_tag)]


class InputMessage(RequestModel):
    role: Annotated[Literal["user", "assistant", "system"], api_field("role of the author", "user")]
    content: Annotated[BlockText, api_field("text, or a list of blocks", "Hello!")]


class Thinking(RequestModel):
    """Controls `enable_thinking` of the chat template."""

    type: Annotated[
        Literal["enabled", "disabled", "adaptive"],
        api_field("sets `enable_thinking` of the chat template to false if `disabled`, else true", "enabled"),
    ]
    budget_tokens: Annotated[Integer | None, api_field("accepted for compatibility; ignored", 1024)] = None
    display: Annotated[str | None, api_field("accepted for compatibility; ignored", "summarized")] = None


class OutputConfig(RequestModel):
    """Format of the output, and `reasoning_effort` for templates that support it."""

    format: Annotated[
        Any, api_field("`json_schema` with a schema", {"type": "json_schema", "schema": {"type": "object"}})
    ] = None
    effort: Annotated[str | None, api_field("sets `reasoning_effort` of the chat template", "low")] = None


class MessagesTool(RequestModel):
    """A tool that the model may use."""

    type: Annotated[
        str | None,
        api_field(
            "`custom`, the default; tools of other types are ignored and named in `X-Unmask-Ignored`",
            "custom",
        ),
    ] = None
    name: Annotated[str | None, api_field("name of the function", "calculator")] = None
    description: Annotated[str | None, api_field("description for the model", "Works out sums.")] = None
    input_schema: Annotated[
        dict[str, Any] | None,
        api_field("JSON schema of the input", {"type": "object", "properties": {"expression": {"type": "string"}}}),
    ] = None
    strict: Annotated[bool | None, api_field("constrain the input to the schema", False)] = None
    cache_control: Annotated[Any, api_field("ignored; every prefix is cached", None)] = None

    def unsupported_kind(self) -> str | None:
        return None if self.type in (None, "custom") else self.type


class MessagesToolChoice(RequestModel):
    """Whether and which tools are to be used."""

    type: Annotated[
        Literal["auto", "any", "tool", "none"],
        api_field("`auto`: the model decides; `any`: any tool; `tool`: the tool `name`; `none`", "auto"),
    ]
    name: Annotated[str | None, api_field("name of the tool for `tool`", "calculator")] = None
    disable_parallel_tool_use: Annotated[bool | None, api_field("allow at most one call", False)] = None


class CountRequest(RequestModel):
    """A conversation whose tokens are counted."""

    model: ModelName = None
    messages: Annotated[
        Annotated[list[InputMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)],
        api_field("messages of the chat; a last message of the assistant is continued", EXAMPLE_CHAT),
    ]
    system: Annotated[BlockText | None, api_field("system prompt: text, or a list of blocks", "You are terse.")] = None
    tools: Annotated[
        Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        api_field("tools that the model may call", [{"name": "calculator", "input_schema": {"type": "object"}}]),
    ] = None
    tool_choice: Annotated[
        MessagesToolChoice | None, api_field("whether and which tools are called", {"type": "auto"})
    ] = None
    thinking: Annotated[Thinking | None, api_field("whether the model reasons first", {"type": "disabled"})] = None
    output_config: Annotated[OutputConfig | None, api_field("format and effort of the output", {"effort": "low"})] = (
        None
    )
    output_format: Annotated[
        Any, api_field("earlier name of `output_config.format`", {"type": "json_schema", "schema": {"type": "object"}})
    ] = None
    chat_template_kwargs: TemplateArguments = None
    cache_control: Annotated[Any, api_field("ignored; every prefix is cached", None)] = None
    speed: Annotated[str | None, api_field("accepted for compatibility; ignored", "standard")] = None

    def template_kwargs(self) -> dict[str, Any]:
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        effort = None if self.output_config is None else self.output_config.effort
        return template_variables(self.chat_template_kwargs, enable_thinking=thinks, reasoning_effort=effort)

    def tool_config(self) -> ToolConfig:
        """Returns the tools. Raises RequestError for an invalid tool or an impossible choice."""
        tools = [
            make_tool(f"tools[{i}]", "input_schema", item.name or "", item.description, item.input_schema, item.strict)
            for i, item in enumerate(self.tools or ())
            if item.unsupported_kind() is None
        ]
        check_distinct_names(tools)
        choice = self.tool_choice or MessagesToolChoice(type="auto")
        named = choice.name or "" if choice.type == "tool" else ""
        if choice.type == "tool" and not named:
            raise refuse("tool_choice.name", "is missing; name one of the tools")
        single = choice.disable_parallel_tool_use is True
        return select_tools(tools, Choice(_CHOICES[choice.type], named), single=single)

    def to_chat(self) -> Conversation:
        """System and turns as a chat's messages. Raises RequestError for blocks that their turn cannot have."""
        made = Conversation("tool_use_id")
        if self.system is not None:
            made.add("system", role="system", content=_system(self.system, "system"))
        for i, message in enumerate(self.messages):
            path = f"messages[{i}]"
            if message.role == "assistant":
                _add_assistant(made, message.content, path)
            else:
                _add_input(made, message, path)
        return made

    def continued(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the answer continues the last turn, an assistant's. Raises RequestError if it cannot."""
        if not messages:
            raise refuse("messages", "has no text, call or result that the server supports; add one")
        if self.messages[-1].role != "assistant" or messages[-1]["role"] != "assistant":
            return False
        check_continued(messages[-1], f"messages[{len(self.messages) - 1}]")
        return True


class MessagesRequest(CountRequest, SingleChoiceRequest):
    max_tokens: Annotated[
        Integer | None, api_field("maximum output tokens; default: the rest of max_model_len", 64)
    ] = None
    stop_sequences: Annotated[
        list[str] | None, api_field("stop strings; the output ends before the first one", ["\n\n"])
    ] = None
    metadata: Annotated[Entries | None, api_field("accepted for compatibility; ignored", {"user_id": "someone"})] = None
    service_tier: Annotated[str | None, api_field("accepted for compatibility; ignored", "auto")] = None
    inference_geo: Annotated[str | None, api_field("accepted for compatibility; ignored", "eu")] = None
    response_format: Annotated[Any, UnsupportedField(why="is not supported; use output_config.format")] = None
    container: Annotated[Any, UnsupportedField()] = None
    mcp_servers: Annotated[
        list[Any] | None,
        api_field("ignored with an `mcp_toolset` in `tools`, otherwise rejected unless empty", []),
    ] = None

    field_aliases: ClassVar[dict[str, str]] = {"prompt": "messages"}

    def ignored_paths(self) -> Iterator[str]:
        yield from super().ignored_paths()
        if self.mcp_servers:
            yield "mcp_servers"

    def check_servers(self) -> None:
        """Raises RequestError for `mcp_servers` without a toolset, which `X-Unmask-Ignored` would name with them."""
        if self.mcp_servers and not any(tool.type == "mcp_toolset" for tool in self.tools or ()):
            raise refuse("mcp_servers", "is not supported; leave it out")

    def check_formats(self) -> None:
        """Raises RequestError for two different formats."""
        name, found = self.format()
        if self.output_format is not None and self.output_format != found:
            raise refuse("output_format", f"conflicts with {name}; send one of them")

    def set_fields(self) -> dict[str, Any]:
        return super().set_fields() | ({} if self.stop_sequences is None else {"stop": self.stop_sequences})

    def names(self) -> dict[str, str]:
        return self.field_aliases | ({} if self.stop_sequences is None else {"stop": "stop_sequences"})

    def format(self) -> tuple[str, Any]:
        current = None if self.output_config is None else self.output_config.format
        if current is None and self.output_format is not None:
            return "output_format", self.output_format
        return "output_config.format", current


def _system(content: BlockText, path: str) -> str:
    """Returns the text of a system prompt without the billing line of Claude Code.

    Its value differs in every request, so that nothing after it could be found in the prefix cache.
    """
    text = _text(content, path)
    if not isinstance(content, list):
        return _BILLING.sub("", text)
    return "".join(_BILLING.sub("", block.text or "") for block in content if block.type == "text")


def _text(content: str | Sequence[Block] | None, path: str) -> str:
    """Returns the text of content that may have only text. Raises RequestError."""
    if content is None or isinstance(content, str):
        return content or ""
    for i, block in enumerate(content):
        if block.type != "text" and block.unsupported_kind() is None:
            at = path + f"[{i}]"
            raise RequestError(f"{at}: {block.type} blocks are not supported here, only text", param=at)
    return "".join(block.text or "" for block in content if block.type == "text")


def _add_assistant(made: Conversation, content: BlockText, path: str) -> None:
    if isinstance(content, str):
        made.assistant(path, text=content, begins=True)
        return
    begins = True
    for i, block in enumerate(content):
        at = f"{path}.content[{i}]"
        if block.unsupported_kind() is not None:
            continue
        match block.type:
            case "tool_use":
                function = Function(name=block.name or "", arguments=block.input or {})
                made.assistant(at, call=Call(id=block.id, type="function", function=function), begins=begins)
            case "thinking" | "redacted_thinking":  # redacted_thinking has no readable text
                made.assistant(at, reasoning=block.thinking or "", begins=begins)
            case "text":
                made.assistant(at, text=block.text or "", begins=begins)
            case _:
                raise RequestError(f"{at}: only a user's turn has {block.type} blocks; move it", param=at)
        begins = False


def _add_input(made: Conversation, message: InputMessage, path: str) -> None:
    """Adds a message of the user or the system. Results of tools become separate messages in the same order."""
    blocks = [Block(type="text", text=message.content)] if isinstance(message.content, str) else message.content
    texts: list[str] = []
    added = False
    for i, block in enumerate(blocks):
        at = f"{path}.content[{i}]"
        if block.unsupported_kind() is not None:
            continue
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type == "tool_result" and message.role == "user":
            if texts:
                made.add(path, role="user", content="".join(texts))
                texts = []
            made.add(at, role="tool", content=block.result_text(f"{at}.content"), tool_call_id=block.tool_use_id)
            added = True
        else:
            raise RequestError(f"{at}: a {message.role}'s turn has no {block.type} blocks; move it", param=at)
    if texts or not added:
        made.add(path, role=message.role, content="".join(texts))


Json = dict[str, Any]


class MessagesErrorDetail(TypedDict):
    type: Annotated[str, api_field("type of the error, by status")]
    message: Annotated[str, api_field("what is wrong, and the fix")]


class MessagesError(TypedDict):
    """A refusal or failure of `/v1/messages`, in an answer or a stream."""

    type: Annotated[Literal["error"], api_field("always `error`")]
    error: Annotated[MessagesErrorDetail, api_field("details")]


class TextBlock(TypedDict):
    type: Annotated[Literal["text"], api_field("always `text`")]
    text: Annotated[str, api_field("generated text")]


class ThinkingBlock(TypedDict):
    type: Annotated[Literal["thinking"], api_field("always `thinking`")]
    thinking: Annotated[str, api_field("reasoning, if the model marks it")]
    signature: Annotated[str, api_field("always empty")]


class ToolUseBlock(TypedDict):
    type: Annotated[Literal["tool_use"], api_field("always `tool_use`")]
    id: Annotated[str, api_field("id for the block with the result")]
    name: Annotated[str, api_field("name of the tool")]
    input: Annotated[Json, api_field("arguments; in a stream they follow as deltas of JSON")]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(TypedDict):
    """Tokens."""

    input_tokens: Annotated[int, api_field("prompt tokens, without cached ones")]
    output_tokens: Annotated[int, api_field("output tokens")]
    cache_creation_input_tokens: Annotated[int, api_field("always 0")]
    cache_read_input_tokens: Annotated[int, api_field("prompt tokens found in the prefix cache")]


class MessagesAnswer(TypedDict):
    """The answer of `/v1/messages`."""

    id: Annotated[str, api_field("id of this request")]
    type: Annotated[Literal["message"], api_field("always `message`")]
    role: Annotated[Literal["assistant"], api_field("always `assistant`")]
    model: Annotated[str, api_field("requested model name")]
    content: Annotated[list[AnswerBlock], api_field("reasoning, text and tool calls")]
    stop_reason: Annotated[
        Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"] | None,
        api_field("reason for the end; null in the first event of a stream"),
    ]
    stop_sequence: Annotated[str | None, api_field("the stop sequence that ended the output, if any")]
    usage: Annotated[MessagesUsage, api_field("token counts")]


class TokenCount(TypedDict):
    input_tokens: Annotated[int, api_field("tokens of the prompt")]


class MessageStart(TypedDict):
    """The first event of a stream."""

    type: Annotated[Literal["message_start"], api_field("always `message_start`")]
    message: Annotated[MessagesAnswer, api_field("the message, without content")]


class BlockStart(TypedDict):
    type: Annotated[Literal["content_block_start"], api_field("always `content_block_start`")]
    index: Annotated[int, api_field("index of the block")]
    content_block: Annotated[AnswerBlock, api_field("the block, empty")]


class TextDelta(TypedDict):
    type: Annotated[Literal["text_delta"], api_field("always `text_delta`")]
    text: Annotated[str, api_field("new text")]


class ThinkingDelta(TypedDict):
    type: Annotated[Literal["thinking_delta"], api_field("always `thinking_delta`")]
    thinking: Annotated[str, api_field("new text")]


class InputDelta(TypedDict):
    type: Annotated[Literal["input_json_delta"], api_field("always `input_json_delta`")]
    partial_json: Annotated[str, api_field("new part of the JSON of `input`")]


class BlockDelta(TypedDict):
    type: Annotated[Literal["content_block_delta"], api_field("always `content_block_delta`")]
    index: Annotated[int, api_field("index of the block")]
    delta: Annotated[TextDelta | ThinkingDelta | InputDelta, api_field("new part")]


class BlockStop(TypedDict):
    type: Annotated[Literal["content_block_stop"], api_field("always `content_block_stop`")]
    index: Annotated[int, api_field("index of the block")]


class MessageEnd(TypedDict):
    stop_reason: Annotated[
        Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"], api_field("reason for the end")
    ]
    stop_sequence: Annotated[str | None, api_field("the stop sequence that ended the output, if any")]


class MessageDelta(TypedDict):
    type: Annotated[Literal["message_delta"], api_field("always `message_delta`")]
    delta: Annotated[MessageEnd, api_field("how the message ended")]
    usage: Annotated[MessagesUsage, api_field("token counts")]


class MessageStop(TypedDict):
    """The last event of a stream."""

    type: Annotated[Literal["message_stop"], api_field("always `message_stop`")]


MESSAGE_EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessagesError)
