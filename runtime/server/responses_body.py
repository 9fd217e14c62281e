"""The body of ``/v1/responses``: OpenAI's items of a conversation, and what they are as a chat's messages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from runtime.request.checks import refuse, shown
from runtime.server.conversation import (
    MAX_MESSAGES,
    MAX_PARTS,
    TEXTS,
    Call,
    Conversation,
    Function,
    Part,
    arm,
    check_kind,
    template_arguments,
)
from runtime.server.fields import Body, Unbuilt, said
from runtime.server.schemas import Entries, ModelName, OneAnswer, TemplateArguments
from runtime.server.structured import nested
from runtime.server.tooling import MAX_TOOLS, Described, ToolChoice, Tooling, chosen, distinct, make_tool, offered

_KEPT = "answers are not kept here; send the whole conversation in input"
_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("name", "call_id"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}


class ItemPart(Part):
    """A piece of an item."""

    texts: ClassVar[frozenset[str]] = TEXTS | {"reasoning_text", "summary_text"}


_Parts = Annotated[list[ItemPart], Field(max_length=MAX_PARTS, fail_fast=True)]
_Text = Annotated[Annotated[str, Tag("str")] | Annotated[_Parts, Tag("list")], Discriminator(arm)]


class Item(Body):
    """A message, a call of a function, what one returned, or an answer's reasoning."""

    type: Annotated[
        str | None, said("message (which it is without), function_call, function_call_output or reasoning", "message")
    ] = None
    role: Annotated[
        Literal["system", "developer", "user", "assistant"] | None,
        said("of a message: whose it is; `developer` is `system`", "user"),
    ] = None
    content: Annotated[_Text | None, said("of a message or a reasoning: a text, or parts of it", "Hello!")] = None
    id: Annotated[str | None, said("as an answer gave it; read by nobody", "msg_1")] = None
    status: Annotated[str | None, said("as an answer gave it; read by nobody", "completed")] = None
    phase: Annotated[str | None, said("read by nobody", "final_answer")] = None
    call_id: Annotated[str | None, said("of a call: what its result names; of a result: the call's", "call_1")] = None
    name: Annotated[str | None, said("of a call: the function's", "calculator")] = None
    arguments: Annotated[str | None, said("of a call: JSON", '{"expression": "12 + 30"}')] = None
    output: Annotated[_Text | None, said("of a result: a text, or parts of it", "42")] = None
    summary: Annotated[_Parts | None, said("of a reasoning without content: parts of text", [])] = None
    encrypted_content: Annotated[str | None, said("read by nobody", "")] = None

    @property
    def kind(self) -> str:
        return self.type or "message"

    @model_validator(mode="after")
    def _is_known(self) -> Item:
        if self.kind == "item_reference":
            raise PydanticCustomError("not_kept", "names an item of an earlier answer; none are kept, so send it whole")
        check_kind(self, self.kind, _NEEDED, "items")
        return self


class TextConfig(Body):
    """The form of the answer's text."""

    format: Annotated[Any, said("text, json_object, or json_schema with a schema", {"type": "json_object"})] = None
    verbosity: Annotated[Any, Unbuilt("medium")] = None


class Reasoning(Body):
    """`effort` is a matter of templates that know it."""

    effort: Annotated[str | None, said("for templates that know `reasoning_effort`", "low")] = None
    summary: Annotated[str | None, said("changes nothing", "auto")] = None
    generate_summary: Annotated[str | None, said("changes nothing", "auto")] = None


class ResponsesTool(Described):
    """A function that the model may call."""

    type: Annotated[str, said("always `function`", "function")]
    name: Annotated[str | None, said("what a call names", "calculator")] = None


class ResponsesStreamOptions(Body):
    include_obfuscation: Annotated[Any, Unbuilt(False)] = None


class ResponsesRequest(OneAnswer):
    model: ModelName = None
    input: Annotated[
        Annotated[
            Annotated[str, Tag("str")]
            | Annotated[list[Item], Field(max_length=MAX_MESSAGES, fail_fast=True), Tag("list")],
            Discriminator(arm),
        ],
        said("a user's text, or the items of the conversation so far", "Solve: 12 + 30."),
    ]
    instructions: Annotated[str | None, said("what stands before it", "You are terse.")] = None
    max_output_tokens: Annotated[
        int | None, said("most tokens of the answer; what the model's length leaves without it", 64)
    ] = None
    text: Annotated[TextConfig | None, said("the form of the answer's text", {"format": {"type": "text"}})] = None
    reasoning: Annotated[Reasoning | None, said("how the model is to think", {"effort": "low"})] = None
    tools: Annotated[
        Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        said(
            "functions that the model may call",
            [{"type": "function", "name": "calculator", "parameters": {"type": "object"}}],
        ),
    ] = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: Annotated[
        bool | None, said("whether the answer may have several calls; default true", True)
    ] = None
    max_tool_calls: Annotated[int | None, said("changes nothing: it is about tools that a server runs", 1)] = None
    chat_template_kwargs: TemplateArguments = None
    metadata: Annotated[Entries | None, said("told back", {"topic": "sums"})] = None
    store: Annotated[bool | None, said("changes nothing: no answers are kept, as each says", False)] = None
    stream_options: Annotated[ResponsesStreamOptions | None, said("what else a stream tells", {})] = None
    user: Annotated[str | None, said("told back", "someone")] = None
    service_tier: Annotated[str | None, said("changes nothing", "auto")] = None
    safety_identifier: Annotated[str | None, said("read by nobody", "someone")] = None
    prompt_cache_key: Annotated[str | None, said("changes nothing: prefixes are cached without it", "sums")] = None
    prompt_cache_retention: Annotated[str | None, said("changes nothing", "24h")] = None
    include: Annotated[
        list[Literal["reasoning.encrypted_content"]] | None,
        said("changes nothing: no reasoning is encrypted", ["reasoning.encrypted_content"]),
    ] = None
    truncation: Annotated[Any, Unbuilt("disabled")] = None
    previous_response_id: Annotated[Any, Unbuilt(why=_KEPT)] = None
    conversation: Annotated[Any, Unbuilt(why=_KEPT)] = None
    prompt: Annotated[Any, Unbuilt(why="no prompts are kept here; send the text itself in input")] = None
    background: Annotated[Any, Unbuilt(False, why="answers are given while the client waits; leave it out")] = None
    response_format: Annotated[Any, Unbuilt(why="is text.format here; give it there")] = None
    context_management: Annotated[Any, Unbuilt([])] = None
    moderation: Annotated[Any, Unbuilt()] = None

    spelt: ClassVar[dict[str, str]] = {"prompt": "input", "max_tokens": "max_output_tokens"}

    def asked(self) -> dict[str, Any]:
        limit = {} if self.max_output_tokens is None else {"max_tokens": self.max_output_tokens}
        return super().asked() | limit

    def format(self) -> tuple[str, Any]:
        return "text.format", nested(None if self.text is None else self.text.format)

    def template_kwargs(self) -> dict[str, Any]:
        effort = None if self.reasoning is None else self.reasoning.effort
        return template_arguments(self.chat_template_kwargs, reasoning_effort=effort)

    def tooling(self) -> Tooling:
        """Raises RequestError for tools that are none, or none that are built."""
        tools = []
        for i, item in enumerate(self.tools or ()):
            path = f"tools[{i}]"
            if item.type != "function":
                raise refuse(f"{path}.type", f"{shown(item.type)} tools are not built in this version, only function")
            tools.append(
                make_tool(
                    path, "parameters", item.name or "", item.description, item.parameters, item.strict,
                    item.model_extra,
                )
            )  # fmt: skip
        distinct(tools, "name")
        return offered(tools, *chosen(self.tool_choice), single=self.parallel_tool_calls is False)

    def chat(self) -> Conversation:
        """The instructions and items as a chat's messages: what an answer consists of is one message again."""
        made = Conversation("call_id")
        if self.instructions is not None:
            made.add("instructions", role="system", content=self.instructions)
        if isinstance(self.input, str):
            made.add("input", role="user", content=self.input)
            return made
        for i, item in enumerate(self.input):
            path = f"input[{i}]"
            match item.kind:
                case "reasoning":
                    made.assistant(path, reasoning=_text(item.content) or _text(item.summary))
                case "function_call":
                    function = Function(name=item.name or "", arguments=item.arguments)
                    made.assistant(path, call=Call(id=item.call_id, type="function", function=function))
                case "function_call_output":
                    made.add(path, role="tool", content=_text(item.output), tool_call_id=item.call_id)
                case _ if item.role == "assistant":
                    made.assistant(path, text=_text(item.content))
                case _:
                    made.add(path, role=item.role, content=_text(item.content))
        return made


def _text(content: str | list[ItemPart] | None) -> str:
    return "".join(map(Part.plain, content)) if isinstance(content, list) else content or ""
