"""Tools and reasoning of a chat: models of tools, their part of the prompt, grammar of calls, parser of the output."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from starlette.requests import Request

from runtime.config import ServerConfig
from runtime.parsers import formats
from runtime.parsers.argument_types import with_json_types
from runtime.parsers.chat_output import ChatOutputParser, ReasoningParser
from runtime.parsers.formats import NO_ARGUMENTS, Tool
from runtime.parsers.tool_call_grammar import CallMode, ToolCallConstraint, grammar, part_name, tool_names
from runtime.parsers.tool_call_parser import ToolCallOptions
from runtime.request.engine_messages import EngineInfo, ToolNames
from runtime.request.structured import grammar_of
from runtime.request.validation import preview, refuse
from runtime.server.serving.chat import ChatPrompt
from runtime.server.serving.preprocessor import Preprocessor
from runtime.server.serving.request_body import RequestModel, ToolList, api_field, optional
from runtime.tokenizer import Tokenizer

# A grammar describes an answer from its beginning, which is in the prompt then.
NO_GRAMMAR_MESSAGE = (
    "cannot be combined with a continued last message; leave it out, or end with a message of another role"
)
MAX_NAME = 128
_NAME = re.compile(r"[A-Za-z0-9_.:/-]+")
ChoiceMode = Literal["none", "auto", "required"]
_CALCULATOR = {"type": "object", "properties": {"expression": {"type": "string"}}}
EXAMPLE_TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": _CALCULATOR}}]  # an example


class FunctionDescription(RequestModel):
    """Fields that describe a function."""

    description: str | None = optional("description for the model", "Works out sums.")
    parameters: dict[str, Any] | None = optional("JSON schema of the arguments", _CALCULATOR)
    strict: bool | None = optional("constrain the arguments to the schema", False)


class FunctionItem(FunctionDescription):
    name: str = api_field("name of the function", "calculator")


_TYPE_HELP = "`function`, the default; tools of other types are ignored and named in `X-Unmask-Ignored`"


class ToolItem(RequestModel):
    """A function that the model may call."""

    type: str | None = optional(_TYPE_HELP, "function")
    function: FunctionItem | None = optional("the function", {"name": "calculator"})

    def unsupported_kind(self) -> str | None:
        return None if self.type in (None, "function") else self.type


ToolItems = ToolList[ToolItem]


@dataclass(frozen=True)
class ToolConfig:
    """The tools of a request.

    Attributes:
        tools: offered tools, each with the path of its schema in the request; none if the model may call none.
        required: the output has to be calls, as with `tool_choice` "required".
        named: the only tool that may be called; "" for any.
        single_call: at most one call is allowed.
        param: the field that forces the calls, or that has the tools.
        origins: The name and the namespace of each function that a namespace defines, by the name offered to the model.
    """

    tools: Sequence[tuple[str, Tool]] = ()
    required: bool = False
    named: str = ""
    single_call: bool = False
    param: str = "tools"
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def strict(self) -> bool:
        return any(tool.strict for _, tool in self.tools)

    @property
    def callable(self) -> Sequence[tuple[str, Tool]]:
        """The tools that the output may call."""
        return [found for found in self.tools if not self.named or found[1].name == self.named]


NO_TOOLS = ToolConfig()


class Choice(NamedTuple):
    """A parsed `tool_choice`.

    Attributes:
        mode: Whether the model may or has to call.
        name: The only function that it may call; "" for any.
        allowed: Names of the functions that stay available; None for all.
        origins: As in `ToolConfig`.
    """

    mode: ChoiceMode = "auto"
    name: str = ""
    allowed: frozenset[str] | None = None
    origins: Mapping[str, tuple[str, str]] = MappingProxyType({})


def select_tools(tools: Sequence[tuple[str, Tool]], choice: Choice, *, single_call: bool) -> ToolConfig:
    """Returns the tools that `choice` allows. `single_call`: at most one call.

    Raises RequestError for two tools of one name, or a choice that the tools cannot satisfy.
    """
    _check_distinct_names(tools)
    if choice.mode == "none":
        return NO_TOOLS
    param = "tool_choice"
    names = [tool.name for _, tool in tools]
    listed = ", ".join(map(preview, names))[:200]
    if choice.allowed is not None:
        tools = [found for found in tools if found[1].name in choice.allowed]
        if not tools:
            raise refuse(param, f"allows no function among the tools: {listed or 'there are none'}")
    if choice.mode == "auto":
        return ToolConfig(tools, single_call=single_call, origins=choice.origins)
    if not tools:
        raise refuse(param, "requires a call, but there are no tools; send tools, or leave it out")
    if choice.name and choice.name not in names:
        raise refuse(param, f"{preview(choice.name)} is not among the tools: {listed}")
    return ToolConfig(tools, True, choice.name, single_call or bool(choice.name), param, choice.origins)


def _check_distinct_names(tools: Sequence[tuple[str, Tool]]) -> None:
    paths: dict[str, str] = {}
    for where, tool in tools:
        path = where.rpartition(".")[0]  # of the object with name and schema
        if tool.name in paths:
            first = paths[tool.name].removesuffix(".function")
            raise refuse(f"{path}.name", f"{preview(tool.name)} is also that of {first}; give another")
        paths[tool.name] = path


def offered_tools(items: Sequence[ToolItem] | None) -> list[tuple[str, Tool]]:
    """Returns the functions among tools, each with the path of its schema. Raises RequestError for a malformed one."""
    return [_tool(item, f"tools[{i}]") for i, item in enumerate(items or ()) if item.unsupported_kind() is None]


def _tool(item: ToolItem, path: str) -> tuple[str, Tool]:
    if item.function is None:
        raise refuse(f"{path}.function", "is missing; describe the function")
    return make_tool(f"{path}.function", item.function.name, item.function)


def make_tool(path: str, name: str, function: FunctionDescription, schema: str = "parameters") -> tuple[str, Tool]:
    """Returns a checked tool, and the path of the schema of its parameters.

    `path`: path of the object with the name, and with the schema in the field `schema`.
    """
    if not name:
        raise refuse(f"{path}.name", "is missing; name the function")
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        kinds = "letters, digits, and any of _ - . : /"
        raise refuse(f"{path}.name", f"{preview(name)} is not a name of 1 to {MAX_NAME} {kinds}")
    description, parameters = function.description, with_json_types(function.parameters)
    kind = parameters.get("type") if parameters else None
    if kind is not None and kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise refuse(f"{path}.{schema}", f"the schema is of {preview(kind)}; arguments are always an object")
    known = {"description": description, "parameters": function.parameters, **(function.model_extra or {})}
    described = {"name": name, **{key: value for key, value in known.items() if value is not None}}
    item = {"type": "function", "function": described}
    tool = Tool(name, description or "", parameters or NO_ARGUMENTS, strict=bool(function.strict), item=item)
    return f"{path}.{schema}", tool


_TAIL_TOKENS = 32  # last tokens of a prompt that are searched for the start of reasoning


@functools.cache
def _formats(tool_calls: str, reasoning: str) -> tuple[formats.ToolFormat | None, formats.ReasoningFormat | None]:
    """Returns the formats of these names. Cached, as all chats of a server use the same."""
    return formats.tool_format(tool_calls), formats.reasoning_format(reasoning)


class ChatContext:
    """Tools, reasoning and grammar of one chat.

    Attributes:
        optional: Only strict tools require the grammar. Calls are parsed without it where it is impossible, as most
            agents mark all of their tools as strict.
        strict_unsupported: The grammar is impossible in this format of calls, and optional.
        continued: The answer continues the last message, with which the prompt ends.
        single_call: The answer ends with its first call, which has to be detected as it arrives.
    """

    def __init__(
        self, config: ServerConfig, info: EngineInfo, tokenizer: Tokenizer, tools: ToolConfig = NO_TOOLS
    ) -> None:
        """Raises RequestError for tools that cannot be described to the model."""
        self._tokenizer = tokenizer
        self._tools = tools
        self.single_call = bool(tools.tools) and tools.single_call
        self._format, self._reasoning = _formats(
            config.tool_call_parser or info.tool_calls, config.reasoning_parser or info.reasoning
        )
        self._in_reasoning = self.continued = self.optional = self.strict_unsupported = False
        self._any_object: frozenset[int] = frozenset()  # tools whose schemas the grammar leaves out
        if not tools.tools:
            self._format = None
        elif self._format is None:
            raise refuse("tools", f"are disabled by --tool-call-parser {formats.OFF}; leave them out")
        elif not tokenizer.supports_tools and self._format.instructs is None:
            raise refuse(
                "tools",
                f"the chat template does not support tools and parser {self._format.key} cannot describe them in the "
                "prompt; start the server with another --chat-template or --tool-call-parser",
            )

    async def prompt(self, request: Request, preprocessor: Preprocessor, chat: ChatPrompt) -> list[int]:
        """Returns the ids of a chat with its tools. Raises RequestError."""
        text = str(chat.messages[-1]["content"]) if chat.continued else ""
        self.continued = chat.continued
        if self._format is not None and text.rfind(self._format.opens) > text.rfind(self._format.closes):
            raise refuse(
                "tools", "cannot continue a message that ends within a tool call; complete the call or leave tools out"
            )
        items = None
        if self._format is not None and self._tokenizer.supports_tools:
            items = [tool.item for _, tool in self._tools.tools]
        elif self._format is not None:
            chat = chat._replace(messages=self._with_tool_instructions(self._format, chat.messages))
        ids = await preprocessor.encode_chat(request, chat, items)
        if self._reasoning is not None:
            tail = self._tokenizer.decode(ids[-_TAIL_TOKENS - len(text) :]).removesuffix(text).rstrip()
            parser = ReasoningParser(self._reasoning, tail.endswith(self._reasoning.opens))
            parser.push(text)
            self._in_reasoning = parser.in_reasoning
            if parser.is_done:
                self._reasoning = None
        return ids

    def _with_tool_instructions(
        self, tool_format: formats.ToolFormat, messages: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Returns the messages with a description of the tools, for templates without support of tools."""
        assert tool_format.instructs is not None
        instructions = tool_format.instructs([tool for _, tool in self._tools.tools])
        if messages and messages[0]["role"] == "system":
            return [{**messages[0], "content": f"{messages[0]['content']}\n\n{instructions}".lstrip()}, *messages[1:]]
        return [{"role": "system", "content": instructions}, *messages]

    def grammar(self, output_format: dict[str, Any] | None, at: str) -> tuple[str, str]:
        """Returns the grammar of the output, "" for none, and the field that requests it.

        Args:
            output_format: requested format of the output, None without one. at: the field that requests it.

        Raises:
            RequestError: it cannot be made.
        """
        tools = self._tools
        if self.continued and (output_format is not None or tools.required):
            raise refuse(tools.param if tools.required else at, NO_GRAMMAR_MESSAGE)
        calls = self._format is not None and (tools.required or tools.strict or output_format is not None)
        opened = self._reasoning if self._in_reasoning else None
        self.optional = calls and not tools.required and output_format is None
        if not calls and (output_format is None or opened is None):
            return "", at
        form = "" if output_format is None or tools.required else grammar_of(output_format, at)
        param = tools.param if calls and (tools.required or output_format is None) else at
        constraint = None
        if calls:
            assert self._format is not None
            if self._format.wraps is None and self.optional:
                self.strict_unsupported = True
                return "", at
            if self._format.wraps is None:
                sentence = (
                    f"calls in the format {self._format.key} cannot be constrained to a schema; leave it out, "
                    'with tool_choice "auto" and no strict tools'
                )
                raise refuse(param, sentence, own=sentence)
            mode: CallMode = "only" if tools.required else "or_form" if form else "within"
            constraint = ToolCallConstraint(self._format, tools.callable, mode, tools.single_call, self._any_object)
        return grammar(constraint, form, opened, self._tokenizer.control_id, param), param

    def tool_names(self) -> ToolNames | None:
        """Returns what constrains the names of calls where no grammar constrains the output; None without tools."""
        if self._format is None:
            return None
        names = [tool.name for _, tool in self._tools.callable]
        return tool_names(
            self._format, names, self._reasoning, self._tokenizer.control_id, in_reasoning=self._in_reasoning
        )

    def preamble(self) -> ReasoningParser | None:
        """Returns what finds the reasoning of one answer. None if the model marks none."""
        return None if self._reasoning is None else ReasoningParser(self._reasoning, self._in_reasoning)

    def leave_out_schemas(self, parts: Sequence[str]) -> list[str] | None:
        """Leaves rejected schemas out of the next `grammar`, if calls are optional.

        Args:
            parts: The names of the grammar's parts that were refused.

        Returns:
            The fields `strict` of these tools that are not honored, or None where nothing may be left out.
        """
        tools = self._tools
        numbers = [i for i in range(len(tools.callable)) if part_name(i) in parts and i not in self._any_object]
        if tools.required or not numbers:
            return None
        self._any_object |= frozenset(numbers)
        strict = [tools.callable[i] for i in numbers if tools.callable[i][1].strict]
        return [f"{path.rpartition('.')[0]}.strict" for path, _ in strict]

    def output_parser(self, *, constrained: bool, streamed: bool) -> ChatOutputParser:
        """Returns the parser of the output. `constrained`: a grammar constrains all calls to their schema, and no stop
        string cuts one."""
        options = None
        if self._format is not None:
            options = ToolCallOptions(
                format=self._format,
                available_tools=[tool for _, tool in self._tools.callable],
                constrained=constrained,
                stream_arguments=streamed,  # otherwise a truncated call would be returned with partial arguments
                required=self._tools.required,
                single_call=self._tools.single_call,
            )
        return ChatOutputParser(reasoning=self._reasoning, opened=self._in_reasoning, tools=options)
