"""The body of ``/v1/messages``: Anthropic's turns and blocks, and what they are as a chat's messages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from runtime.errors import RequestError
from runtime.request.checks import refuse, shown
from runtime.server.conversation import (
    MAX_MESSAGES,
    MAX_PARTS,
    Call,
    Conversation,
    Function,
    arm,
    check_kind,
    template_arguments,
)
from runtime.server.fields import Body, Unbuilt
from runtime.server.schemas import Entries, OneAnswer
from runtime.server.structured import nested
from runtime.server.tooling import MAX_TOOLS, Tooling, distinct, make_tool, offered

_CHOICES: dict[str, Literal["none", "auto", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}
_NEEDED = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
}


class Block(Body):
    """A piece of a turn: text, an answer's thinking, a call of a tool, or what one returned."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: BlockText | None = None
    is_error: bool | None = None
    caller: Any = None
    citations: Any = None
    cache_control: Any = None  # every prefix is cached here

    @model_validator(mode="after")
    def _is_known(self) -> Block:
        check_kind(self, self.type, _NEEDED, "blocks")
        return self


_Blocks = Annotated[list[Block], Field(max_length=MAX_PARTS, fail_fast=True)]
BlockText = Annotated[Annotated[str, Tag("str")] | Annotated[_Blocks, Tag("list")], Discriminator(arm)]


class Turn(Body):
    role: Literal["user", "assistant", "system"]
    content: BlockText


class Thinking(Body):
    """Whether templates that know `enable_thinking` are told to think first."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputConfig(Body):
    """The form of the answer's text; `effort` is a matter of templates that know `reasoning_effort`."""

    format: Annotated[Any, Field(description="json_schema with a schema")] = None
    effort: str | None = None


class MessagesTool(Body):
    """A tool that the model may use."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: Annotated[dict[str, Any] | None, Field(description="JSON schema of the input")] = None
    strict: Annotated[bool | None, Field(description="the input always fits the schema")] = None
    cache_control: Any = None


class MessagesToolChoice(Body):
    """Whether and which tools are to be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class CountRequest(Body):
    """A conversation whose tokens are counted."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(max_length=MAX_MESSAGES, fail_fast=True)]
    system: BlockText | None = None
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Entries | None = None
    cache_control: Any = None
    speed: str | None = None

    def template_kwargs(self) -> dict[str, Any]:
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        effort = None if self.output_config is None else self.output_config.effort
        return template_arguments(self.chat_template_kwargs, enable_thinking=thinks, reasoning_effort=effort)

    def tooling(self) -> Tooling:
        """Raises RequestError for tools that are none, or none that are built."""
        tools = []
        for i, item in enumerate(self.tools or ()):
            path = f"tools[{i}]"
            if item.type not in (None, "custom"):
                raise refuse(f"{path}.type", f"{shown(item.type)} tools are not built in this version, only custom")
            tools.append(make_tool(path, "input_schema", item.name, item.description, item.input_schema, item.strict))
        distinct(tools, "name")
        choice = self.tool_choice or MessagesToolChoice(type="auto")
        named = choice.name or "" if choice.type == "tool" else ""
        if choice.type == "tool" and not named:
            raise refuse("tool_choice.name", "is missing; name one of the tools")
        single = choice.disable_parallel_tool_use is True
        return offered(tools, _CHOICES[choice.type], named, single=single)

    def chat(self) -> Conversation:
        """System and turns as a chat's messages. Raises RequestError for blocks that their turn cannot have."""
        made = Conversation("tool_use_id")
        if self.system is not None:
            made.add("system", role="system", content=_text(self.system, "system"))
        for i, turn in enumerate(self.messages):
            path = f"messages[{i}]"
            if turn.role == "assistant":
                _answer(made, turn.content, path)
            else:
                _asked(made, turn, path)
        if self.messages and self.messages[-1].role == "assistant":
            path = f"messages[{len(self.messages) - 1}].role"
            raise RequestError(
                f"{path}: the last turn is the assistant's, and to go on with it is not built; end with a user's",
                param=path,
            )
        return made


class MessagesRequest(CountRequest, OneAnswer):
    max_tokens: int | None = None  # Anthropic asks for it; here it is what the model's length leaves
    stop_sequences: list[str] | None = None
    metadata: Entries | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    response_format: Annotated[Any, Unbuilt(why="is output_config.format here; give it there")] = None
    container: Annotated[Any, Unbuilt()] = None
    mcp_servers: Annotated[Any, Unbuilt([])] = None

    spelt: ClassVar[dict[str, str]] = {"prompt": "messages"}

    def asked(self) -> dict[str, Any]:
        return super().asked() | ({} if self.stop_sequences is None else {"stop": self.stop_sequences})

    def names(self) -> dict[str, str]:
        return self.spelt | ({} if self.stop_sequences is None else {"stop": "stop_sequences"})

    def format(self) -> tuple[str, Any]:
        return "output_config.format", nested(None if self.output_config is None else self.output_config.format)


def _text(content: BlockText | None, path: str) -> str:
    """Of what is text alone."""
    if not isinstance(content, list):
        return content or ""
    for i, block in enumerate(content):
        if block.type != "text":
            at = path + f"[{i}]"
            raise RequestError(f"{at}: {block.type} blocks cannot stand here, only text", param=at)
    return "".join(block.text or "" for block in content)


def _answer(made: Conversation, content: BlockText, path: str) -> None:
    if isinstance(content, str):
        made.assistant(path, text=content, begins=True)
        return
    for i, block in enumerate(content):
        at = f"{path}.content[{i}]"
        begins = i == 0
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


def _asked(made: Conversation, turn: Turn, path: str) -> None:
    """A user's turn, or one of the system's: results of tools are messages of their own, in their place."""
    blocks = [Block(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content
    texts: list[str] = []
    added = False
    for i, block in enumerate(blocks):
        at = f"{path}.content[{i}]"
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type == "tool_result" and turn.role == "user":
            if texts:
                made.add(path, role="user", content="".join(texts))
                texts = []
            made.add(at, role="tool", content=_text(block.content, f"{at}.content"), tool_call_id=block.tool_use_id)
            added = True
        else:
            raise RequestError(f"{at}: a {turn.role}'s turn has no {block.type} blocks; move it", param=at)
    if texts or not added:
        made.add(path, role=turn.role, content="".join(texts))
