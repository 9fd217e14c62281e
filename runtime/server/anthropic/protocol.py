"""The body of ``/v1/messages``: Anthropic's turns and blocks, and what they are as a chat's messages."""

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
from runtime.server.openai.chat_messages import (
    EXAMPLE_CHAT,
    MAX_MESSAGES,
    MAX_PARTS,
    Call,
    Conversation,
    Function,
    check_continued,
    check_kind,
    template_variables,
    union_tag,
)
from runtime.server.openai.protocol import Entries, ModelName, SingleChoiceRequest, TemplateArguments
from runtime.server.openai.tools import MAX_TOOLS, Choice, ToolConfig, check_distinct_names, make_tool, select_tools
from runtime.server.schema_base import AnyOfUnion, Integer, RequestModel, UnsupportedField, api_field

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
            "text, thinking, redacted_thinking, tool_use or tool_result; blocks of server tools are ignored, and "
            "`X-Unmask-Ignored` names them",
            "text",
        ),
    ]
    text: Annotated[str | None, api_field("of a text", "Hello!")] = None
    thinking: Annotated[
        str | None, api_field("what the assistant thought, for templates that show it", "12 and 30 are 42.")
    ] = None
    signature: Annotated[str | None, api_field("read by nobody", "")] = None
    data: Annotated[str | None, api_field("read by nobody", "")] = None
    id: Annotated[str | None, api_field("of a call: what its result names", "call_1")] = None
    name: Annotated[str | None, api_field("of a call: the tool's", "calculator")] = None
    input: Annotated[dict[str, Any] | None, api_field("of a call: its arguments", {"expression": "12 + 30"})] = None
    tool_use_id: Annotated[str | None, api_field("of a result: the call's", "call_1")] = None
    content: Annotated[_Content | None, api_field("of a result: a text, or blocks of it", "42")] = None
    is_error: Annotated[bool | None, api_field("of a result; read by nobody", False)] = None
    caller: Annotated[Any, api_field("read by nobody", None)] = None
    citations: Annotated[Any, api_field("read by nobody", None)] = None
    cache_control: Annotated[Any, api_field("changes nothing: every prefix is cached", None)] = None

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


_Blocks = Annotated[list[Block], Field(max_length=MAX_PARTS, fail_fast=True)]
_Content = Annotated[
    Annotated[str, Tag("str")] | Annotated[_Blocks, Tag("list")] | Annotated[Any, Tag("any")],
    Discriminator(_content_arm),
    AnyOfUnion(),
]
BlockText = Annotated[Annotated[str, Tag("str")] | Annotated[_Blocks, Tag("list")], Discriminator(union_tag)]


class InputMessage(RequestModel):
    role: Annotated[Literal["user", "assistant", "system"], api_field("whose it is", "user")]
    content: Annotated[BlockText, api_field("a text, or blocks", "Hello!")]


class Thinking(RequestModel):
    """Whether templates that know `enable_thinking` are told to think first."""

    type: Annotated[
        Literal["enabled", "disabled", "adaptive"],
        api_field("templates that know `enable_thinking` are told to think unless `disabled`", "enabled"),
    ]
    budget_tokens: Annotated[Integer | None, api_field("changes nothing", 1024)] = None
    display: Annotated[str | None, api_field("changes nothing", "summarized")] = None


class OutputConfig(RequestModel):
    """The form of the answer's text; `effort` is a matter of templates that know `reasoning_effort`."""

    format: Annotated[
        Any, api_field("json_schema with a schema", {"type": "json_schema", "schema": {"type": "object"}})
    ] = None
    effort: Annotated[str | None, api_field("for templates that know `reasoning_effort`", "low")] = None


class MessagesTool(RequestModel):
    """A tool that the model may use."""

    type: Annotated[
        str | None,
        api_field(
            "`custom`, the default; a tool of another type is not offered to the model, and `X-Unmask-Ignored` "
            "names it",
            "custom",
        ),
    ] = None
    name: Annotated[str | None, api_field("what a call names", "calculator")] = None
    description: Annotated[str | None, api_field("when and how to use it", "Works out sums.")] = None
    input_schema: Annotated[
        dict[str, Any] | None,
        api_field("JSON schema of the input", {"type": "object", "properties": {"expression": {"type": "string"}}}),
    ] = None
    strict: Annotated[bool | None, api_field("the input always fits the schema", False)] = None
    cache_control: Annotated[Any, api_field("changes nothing: every prefix is cached", None)] = None

    def unsupported_kind(self) -> str | None:
        return None if self.type in (None, "custom") else self.type


class MessagesToolChoice(RequestModel):
    """Whether and which tools are to be used."""

    type: Annotated[
        Literal["auto", "any", "tool", "none"],
        api_field("`auto`: the model decides, `any`: some tool, `tool`: the one of this `name`, `none`", "auto"),
    ]
    name: Annotated[str | None, api_field("of the tool that is to be used", "calculator")] = None
    disable_parallel_tool_use: Annotated[bool | None, api_field("one call at most", False)] = None


class CountRequest(RequestModel):
    """A conversation whose tokens are counted."""

    model: ModelName = None
    messages: Annotated[
        Annotated[list[InputMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)],
        api_field("the conversation so far; a last turn of the assistant's is continued", EXAMPLE_CHAT),
    ]
    system: Annotated[
        BlockText | None, api_field("what stands before it: a text, or blocks of it", "You are terse.")
    ] = None
    tools: Annotated[
        Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        api_field("that the model may use", [{"name": "calculator", "input_schema": {"type": "object"}}]),
    ] = None
    tool_choice: Annotated[
        MessagesToolChoice | None, api_field("whether and which tools are to be used", {"type": "auto"})
    ] = None
    thinking: Annotated[Thinking | None, api_field("whether the model is to think first", {"type": "disabled"})] = None
    output_config: Annotated[OutputConfig | None, api_field("the form of the answer", {"effort": "low"})] = None
    chat_template_kwargs: TemplateArguments = None
    cache_control: Annotated[Any, api_field("changes nothing: every prefix is cached", None)] = None
    speed: Annotated[str | None, api_field("changes nothing", "standard")] = None

    def template_kwargs(self) -> dict[str, Any]:
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        effort = None if self.output_config is None else self.output_config.effort
        return template_variables(self.chat_template_kwargs, enable_thinking=thinks, reasoning_effort=effort)

    def tool_config(self) -> ToolConfig:
        """Raises RequestError for a tool that is malformed, and for a choice among them that cannot be."""
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
        Integer | None, api_field("most tokens of the answer; what the model's length leaves without it", 64)
    ] = None
    stop_sequences: Annotated[
        list[str] | None, api_field("texts before the first of which the answer ends", ["\n\n"])
    ] = None
    metadata: Annotated[Entries | None, api_field("read by nobody", {"user_id": "someone"})] = None
    service_tier: Annotated[str | None, api_field("changes nothing", "auto")] = None
    inference_geo: Annotated[str | None, api_field("changes nothing", "eu")] = None
    response_format: Annotated[Any, UnsupportedField(why="is not supported; use output_config.format")] = None
    container: Annotated[Any, UnsupportedField()] = None
    mcp_servers: Annotated[
        list[Any] | None,
        api_field(
            "ignored beside an `mcp_toolset` among `tools`, else refused unless empty: the server calls no tools", []
        ),
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

    def set_fields(self) -> dict[str, Any]:
        return super().set_fields() | ({} if self.stop_sequences is None else {"stop": self.stop_sequences})

    def names(self) -> dict[str, str]:
        return self.field_aliases | ({} if self.stop_sequences is None else {"stop": "stop_sequences"})

    def format(self) -> tuple[str, Any]:
        return "output_config.format", None if self.output_config is None else self.output_config.format


def _system(content: BlockText, path: str) -> str:
    """The text of a system prompt without the line that Claude Code puts before it: its value differs in every request,
    so that nothing behind it could come from the prefix cache."""
    text = _text(content, path)
    if not isinstance(content, list):
        return _BILLING.sub("", text)
    return "".join(_BILLING.sub("", block.text or "") for block in content if block.type == "text")


def _text(content: BlockText | None, path: str) -> str:
    """Of what is text alone."""
    if not isinstance(content, list):
        return content or ""
    for i, block in enumerate(content):
        if block.type != "text" and block.unsupported_kind() is None:
            at = path + f"[{i}]"
            raise RequestError(f"{at}: {block.type} blocks cannot stand here, only text", param=at)
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
            case "thinking" | "redacted_thinking":  # of the second nobody here can read a word
                made.assistant(at, reasoning=block.thinking or "", begins=begins)
            case "text":
                made.assistant(at, text=block.text or "", begins=begins)
            case _:
                raise RequestError(f"{at}: only a user's turn has {block.type} blocks; move it", param=at)
        begins = False


def _add_input(made: Conversation, message: InputMessage, path: str) -> None:
    """A user's turn, or one of the system's: results of tools are messages of their own, in their place."""
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
    type: Annotated[str, api_field("the kind of error, by the status")]
    message: Annotated[str, api_field("what is wrong, and what to do about it")]


class MessagesError(TypedDict):
    """A refusal or failure of `/v1/messages`, in an answer or a stream."""

    type: Annotated[Literal["error"], api_field("always `error`")]
    error: Annotated[MessagesErrorDetail, api_field("what happened")]


class TextBlock(TypedDict):
    type: Annotated[Literal["text"], api_field("always `text`")]
    text: Annotated[str, api_field("what the model says")]


class ThinkingBlock(TypedDict):
    type: Annotated[Literal["thinking"], api_field("always `thinking`")]
    thinking: Annotated[str, api_field("what the model thought, of families that mark it")]
    signature: Annotated[str, api_field("always empty")]


class ToolUseBlock(TypedDict):
    type: Annotated[Literal["tool_use"], api_field("always `tool_use`")]
    id: Annotated[str, api_field("for the block with its result")]
    name: Annotated[str, api_field("the tool's")]
    input: Annotated[Json, api_field("its arguments; in a stream they come behind, as pieces of JSON")]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(TypedDict):
    """Tokens."""

    input_tokens: Annotated[int, api_field("of the prompt, without those in the cache")]
    output_tokens: Annotated[int, api_field("of the answer")]
    cache_creation_input_tokens: Annotated[int, api_field("always 0")]
    cache_read_input_tokens: Annotated[int, api_field("of the prompt, that were in the cache")]


class MessagesAnswer(TypedDict):
    """The answer of `/v1/messages`."""

    id: Annotated[str, api_field("of this request")]
    type: Annotated[Literal["message"], api_field("always `message`")]
    role: Annotated[Literal["assistant"], api_field("always `assistant`")]
    model: Annotated[str, api_field("the name that was asked for")]
    content: Annotated[list[AnswerBlock], api_field("what the model thinks and says, and which tools it wants used")]
    stop_reason: Annotated[
        Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"] | None,
        api_field("why it ended; null in the first event of a stream"),
    ]
    stop_sequence: Annotated[str | None, api_field("which of `stop_sequences` ended it, if one did")]
    usage: Annotated[MessagesUsage, api_field("tokens")]


class TokenCount(TypedDict):
    input_tokens: Annotated[int, api_field("of the prompt that the conversation makes")]


class MessageStart(TypedDict):
    """The first event of a stream."""

    type: Annotated[Literal["message_start"], api_field("always `message_start`")]
    message: Annotated[MessagesAnswer, api_field("without content yet")]


class BlockStart(TypedDict):
    type: Annotated[Literal["content_block_start"], api_field("always `content_block_start`")]
    index: Annotated[int, api_field("of the block")]
    content_block: Annotated[AnswerBlock, api_field("empty yet")]


class TextDelta(TypedDict):
    type: Annotated[Literal["text_delta"], api_field("always `text_delta`")]
    text: Annotated[str, api_field("more of it")]


class ThinkingDelta(TypedDict):
    type: Annotated[Literal["thinking_delta"], api_field("always `thinking_delta`")]
    thinking: Annotated[str, api_field("more of it")]


class InputDelta(TypedDict):
    type: Annotated[Literal["input_json_delta"], api_field("always `input_json_delta`")]
    partial_json: Annotated[str, api_field("more of the input's JSON")]


class BlockDelta(TypedDict):
    type: Annotated[Literal["content_block_delta"], api_field("always `content_block_delta`")]
    index: Annotated[int, api_field("of the block")]
    delta: Annotated[TextDelta | ThinkingDelta | InputDelta, api_field("what it grew by")]


class BlockStop(TypedDict):
    type: Annotated[Literal["content_block_stop"], api_field("always `content_block_stop`")]
    index: Annotated[int, api_field("of the block")]


class MessageEnd(TypedDict):
    stop_reason: Annotated[Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"], api_field("why it ended")]
    stop_sequence: Annotated[str | None, api_field("which of `stop_sequences` ended it, if one did")]


class MessageDelta(TypedDict):
    type: Annotated[Literal["message_delta"], api_field("always `message_delta`")]
    delta: Annotated[MessageEnd, api_field("how the message ended")]
    usage: Annotated[MessagesUsage, api_field("tokens")]


class MessageStop(TypedDict):
    """The last event of a stream."""

    type: Annotated[Literal["message_stop"], api_field("always `message_stop`")]


MESSAGE_EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessagesError)
