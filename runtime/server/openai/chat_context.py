"""Context of one chat: tools in its prompt, grammar of its tool calls, and the parser of its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from runtime.config import ServerConfig
from runtime.config.chat_flags import OFF
from runtime.errors import ConfigError, RequestError
from runtime.parsers import (
    ChatOutputParser,
    ReasoningFormat,
    ToolFormat,
    reasoning_format,
    reasoning_formats,
    tool_format,
    tool_formats,
)
from runtime.parsers.chat_output import ReasoningParser
from runtime.parsers.tool_call_grammar import CallMode, ToolCallConstraint, grammar, part_name
from runtime.request.engine_messages import EngineInfo
from runtime.request.structured import grammar_of
from runtime.request.validation import refuse
from runtime.server.openai.chat_messages import NO_GRAMMAR_MESSAGE
from runtime.server.openai.tools import NO_TOOLS, ToolConfig

if TYPE_CHECKING:
    from runtime.server.preprocessing.preprocessor import Preprocessor
    from runtime.tokenizer import Tokenizer


_TAIL_TOKENS = 32  # last tokens of a prompt that are searched for the start of reasoning


def check_parsers(config: ServerConfig) -> None:
    """Raises ConfigError for a parser that is not there."""
    for name, known in (("tool_call_parser", tool_formats()), ("reasoning_parser", reasoning_formats())):
        value = getattr(config, name)
        if value is not None and value not in (OFF, *known):
            raise ConfigError(
                f"--{name.replace('_', '-')}: unknown parser {value!r}; available: {', '.join(known)}, {OFF}"
            )


class ChatContext:
    """One chat's.

    Attributes:
        optional: strict tools alone ask for the grammar, which calls are read without where it cannot be had: most
            agents call all of their tools strict. unheld: so it is, as it cannot be had in this format.
        continued: The answer continues the last message, which the prompt ends with.
    """

    def __init__(
        self, config: ServerConfig, info: EngineInfo, tokenizer: Tokenizer, tools: ToolConfig = NO_TOOLS
    ) -> None:
        """Raises RequestError for tools that cannot be described to the model."""
        self._tokenizer = tokenizer
        self._tools = tools
        self._format: ToolFormat | None = tool_format(config.tool_call_parser or info.tool_calls)
        self._reasoning: ReasoningFormat | None = reasoning_format(config.reasoning_parser or info.reasoning)
        self._in_reasoning = self.continued = self.optional = self.strict_unsupported = False
        self._any_object: frozenset[int] = frozenset()  # tools whose schemas the grammar leaves out
        if not tools.tools:
            self._format = None
        elif self._format is None:
            raise refuse("tools", f"are disabled by --tool-call-parser {OFF}; leave them out")
        elif not tokenizer.supports_tools and self._format.instructs is None:
            raise refuse(
                "tools",
                f"the chat template does not support tools and parser {self._format.key} cannot describe them in the "
                "prompt; start the server with another --chat-template or --tool-call-parser",
            )

    @property
    def single(self) -> bool:
        """Whether the answer ends with its first call, which has to be noticed when it comes."""
        return bool(self._tools.tools) and self._tools.single

    async def prompt(
        self,
        request: Request,
        preparer: Preprocessor,
        messages: list[dict[str, Any]],
        kwargs: Mapping[str, Any] | None,
        *,
        continued: bool = False,
    ) -> list[int]:
        """The ids of the chat, whose messages are `plain`, with its tools. `continued`: the answer continues the last
        of them. Raises RequestError."""
        text = str(messages[-1]["content"]) if continued else ""
        self.continued = continued
        if self._format is not None and text.rfind(self._format.opens) > text.rfind(self._format.closes):
            raise refuse(
                "tools", "cannot continue a message that ends within a tool call; complete the call or leave tools out"
            )
        if self._format is None:
            items = None
        elif self._tokenizer.supports_tools:
            items = [tool.item for _, tool in self._tools.tools]
        else:
            items, messages = None, self._with_tool_instructions(self._format, messages)
        ids = await preparer.encode_chat(request, messages, kwargs, items, continued=continued)
        if self._reasoning is not None:
            tail = self._tokenizer.decode(ids[-_TAIL_TOKENS - len(text) :]).removesuffix(text).rstrip()
            begun = ReasoningParser(self._reasoning, tail.endswith(self._reasoning.opens))
            begun.push(text)
            self._in_reasoning = begun.in_reasoning
            if begun.is_done:
                self._reasoning = None
        return ids

    def _with_tool_instructions(self, made: ToolFormat, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages, with what a template would say of tools that knew them."""
        assert made.instructs is not None
        instructions = made.instructs([tool for _, tool in self._tools.tools])
        if messages and messages[0]["role"] == "system":
            return [{**messages[0], "content": f"{messages[0]['content']}\n\n{instructions}".lstrip()}, *messages[1:]]
        return [{"role": "system", "content": instructions}, *messages]

    def grammar(self, asked: dict[str, Any] | None, at: str) -> tuple[str, str]:
        """Returns the grammar of the output, "" for none, and the field that requests it.

        Args:
            asked: requested format of the output, None without one. at: the field that requests it.

        Raises:
            RequestError: it cannot be made.
        """
        tools = self._tools
        if self.continued and (asked is not None or tools.forced):
            raise refuse(tools.param if tools.forced else at, NO_GRAMMAR_MESSAGE)
        calls = self._format is not None and (tools.forced or tools.strict or asked is not None)
        opened = self._reasoning if self._in_reasoning else None
        self.optional = calls and not tools.forced and asked is None
        if not calls and (asked is None or opened is None):
            return "", at
        form = "" if asked is None or tools.forced else grammar_of(asked, at)
        param = tools.param if calls and (tools.forced or asked is None) else at
        constraint = None
        if calls:
            assert self._format is not None
            if self._format.wraps is None and self.optional:
                self.strict_unsupported = True
                return "", at
            if self._format.wraps is None:
                raise RequestError(
                    f"{param}: calls in the format {self._format.key} cannot be constrained to a schema; leave it out, "
                    'with tool_choice "auto" and no strict tools',
                    param=param,
                )
            mode: CallMode = "only" if tools.forced else "or_form" if form else "within"
            constraint = ToolCallConstraint(self._format, tools.callable, mode, tools.single, self._any_object)
        return grammar(constraint, form, opened, self._tokenizer.control_id, param), param

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
        if tools.forced or not numbers:
            return None
        self._any_object |= frozenset(numbers)
        strict = [tools.callable[i] for i in numbers if tools.callable[i][1].strict]
        return [f"{path.rpartition('.')[0]}.strict" for path, _ in strict]

    def parts(self, *, exact: bool, streamed: bool) -> ChatOutputParser:
        """Returns the parser of the output. `exact`: a grammar constrains all calls to their schema, and no stop
        string cuts one."""
        tools = self._tools
        return ChatOutputParser(
            reasoning=self._reasoning,
            opened=self._in_reasoning,
            tools=self._format,
            available_tools=[tool for _, tool in tools.callable],
            exact=exact,
            early=streamed,  # otherwise a truncated call would be returned with partial arguments
            forced=tools.forced,
            single=tools.single,
        )
