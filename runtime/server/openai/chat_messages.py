"""Messages of a chat: models of the OpenAI API, and conversion to messages for chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError, from_json

from runtime.errors import RequestError
from runtime.request.validation import preview, refuse
from runtime.server.preprocessing.request_body import RequestModel, api_field, check_shape, union_tag

MAX_MESSAGES = 2048
MAX_PARTS = 2048

TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})  # kinds of parts that are text
EXAMPLE_CHAT = [{"role": "user", "content": "Solve: 12 + 30."}]  # an example
# A grammar describes an answer from its beginning, which is in the prompt then.
NO_GRAMMAR_MESSAGE = (
    "cannot be combined with a continued last message; leave it out, or end with a message of another role"
)
_ROLES = {"developer": "system", "function": "tool"}  # OpenAI's newer and older names


class Part(RequestModel):
    """A part of a message, with its text in the field with the name of its type, or in `text`."""

    type: Annotated[str, api_field("`text`; other types are rejected", "text")]
    text: Annotated[str | None, api_field("text of a `text` part", "Hello!")] = None
    refusal: Annotated[str | None, api_field("text of a refusal", "I will not.")] = None
    cache_control: Annotated[Any, api_field("ignored; every prefix is cached", None)] = None
    annotations: Annotated[Any, api_field("accepted for compatibility; ignored", [])] = None

    text_types: ClassVar[frozenset[str]] = TEXT_TYPES

    @model_validator(mode="after")
    def _is_text(self) -> Part:
        if self.type not in self.text_types:
            kind = self.type[:40]
            raise PydanticCustomError("not_built", "{kind} parts are not supported, only text", {"kind": kind})
        if self.text is None and self.refusal is None:
            raise PydanticCustomError("no_text", "this part has no text; add it")
        return self

    def as_text(self) -> str:
        return self.text or self.refusal or ""


class Function(RequestModel):
    name: Annotated[str, api_field("name of the tool", "calculator")]
    arguments: Annotated[Any, api_field("JSON text, or an object", '{"expression": "12 + 30"}')] = None


class CustomCall(RequestModel):
    """A call of a tool whose input is text."""

    name: Annotated[str, api_field("name of the tool", "shell")]
    input: Annotated[str | None, api_field("input text", "ls")] = None


class Call(RequestModel):
    id: Annotated[str | None, api_field("id of the call", "call_1")] = None
    type: Annotated[
        str | None, api_field("`function`, or `custom` in the history of clients with custom tools", "function")
    ] = None
    function: Annotated[
        Function | None,
        api_field("name and arguments", {"name": "calculator", "arguments": '{"expression": "12 + 30"}'}),
    ] = None
    custom: Annotated[CustomCall | None, api_field("of a custom call: tool and input", None)] = None

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


class PromptEnding(Protocol):
    """A body with the fields that say how the prompt of its chat ends."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None


def continues_last_message(body: PromptEnding, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the answer continues the last of the messages. Raises RequestError if it cannot."""
    if not body.continue_final_message:
        return False
    name = "continue_final_message"
    if body.add_generation_prompt:
        raise refuse(name, "cannot be combined with add_generation_prompt true; leave one of them out")
    if not messages or messages[-1]["role"] != "assistant":
        raise refuse(name, "needs a last message of the role assistant; add one, or leave it out")
    check_continued(messages[-1], f"messages[{len(messages) - 1}]")
    return True


def check_no_chat_fields(body: PromptEnding) -> None:
    """Raises RequestError for fields that only a chat has."""
    for name in ("add_generation_prompt", "continue_final_message"):
        if getattr(body, name) is not None:
            raise RequestError(f"{name}: only with messages; leave it out", param=name)


def check_continued(message: Mapping[str, Any], path: str) -> None:
    """Raises RequestError for an assistant's message of which no text can be continued."""
    if message.get("tool_calls"):
        raise refuse(path, "has tool calls and cannot be continued; add their results")
    if message.get("reasoning_content") and not message["content"]:
        raise refuse(path, "has only reasoning and cannot be continued; add text")


def ending_variables(body: PromptEnding, variables: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A chat template's variables with `add_generation_prompt`, if the body sets it."""
    if body.add_generation_prompt is None:
        return variables
    return {"add_generation_prompt": body.add_generation_prompt, **(variables or {})}


_Parts = Annotated[list[Part], Field(max_length=MAX_PARTS, fail_fast=True)]
Content = Annotated[Annotated[str, Tag("str")] | Annotated[_Parts, Tag("list")], Discriminator(union_tag)]


class Message(RequestModel):
    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool", "function"],
        api_field("role of the author; `developer` means `system`, `function` means `tool`", "user"),
    ]
    content: Annotated[Content | None, api_field("text, or a list of parts; null with tool calls", "Hello!")] = None
    name: Annotated[str | None, api_field("name of the author, for templates that use it", "Ann")] = None
    tool_calls: Annotated[
        Annotated[list[Call], Field(max_length=MAX_PARTS, fail_fast=True)] | None,
        api_field(
            "tool calls of an assistant message",
            [{"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}],
        ),
    ] = None
    tool_call_id: Annotated[str | None, api_field("of a tool result: id of the call", "call_1")] = None
    function_call: Annotated[
        Function | None, api_field("deprecated form of `tool_calls`", {"name": "calculator", "arguments": "{}"})
    ] = None
    reasoning_content: Annotated[
        str | None, api_field("reasoning of the assistant, for templates that use it", "12 and 30 are 42.")
    ] = None
    reasoning: Annotated[str | None, api_field("alias of `reasoning_content`", "12 and 30 are 42.")] = None
    refusal: Annotated[str | None, api_field("refusal text of an assistant message", None)] = None
    audio: Annotated[Any, api_field("accepted for compatibility; ignored", None)] = None
    annotations: Annotated[Any, api_field("accepted for compatibility; ignored", [])] = None

    def text(self) -> str | None:
        if isinstance(self.content, list):
            return "".join(map(Part.as_text, self.content))
        return self.content if self.content is not None else self.refusal

    def calls(self) -> list[Call]:
        legacy = [Call(function=self.function_call)] if self.function_call else []
        return (self.tool_calls or []) + legacy


Messages = Annotated[list[Message], Field(max_length=MAX_MESSAGES, fail_fast=True)]


class Conversation:
    """Messages of a chat that are converted from the items of another API.

    Attributes:
        paths: path in the request of each message, for errors.
    """

    def __init__(self, result_id: str) -> None:
        """`result_id`: name of the field of a tool result with the id of the call."""
        self._result_id = result_id
        self.messages: list[Message] = []
        self.paths: list[str] = []

    def add(self, path: str, **fields: Any) -> None:
        self.messages.append(Message(**fields))
        self.paths.append(path)

    def assistant(
        self, path: str, *, text: str = "", reasoning: str = "", call: Call | None = None, begins: bool = False
    ) -> None:
        """Adds a piece of an answer to the last message if that is an assistant message, unless a new one `begins`."""
        if begins or not self.messages or self.messages[-1].role != "assistant":
            self.add(path, role="assistant", content=None)
        message = self.messages[-1]
        if text:
            message.content = (message.text() or "") + text
        if reasoning:
            message.reasoning_content = (message.reasoning_content or "") + reasoning
        if call is not None:
            message.tool_calls = [*(message.tool_calls or ()), call]

    def to_template(self) -> list[dict[str, Any]]:
        """Returns the messages as `template_messages`."""
        return template_messages(self.messages, self.paths, self._result_id)


def template_messages(
    messages: Sequence[Message], paths: Sequence[str] | None = None, result_id: str = "tool_call_id"
) -> list[dict[str, Any]]:
    """Returns messages for a chat template. Raises RequestError for messages that are invalid for their role.

    `paths`: path of each message in the request, for errors; by default those of ``messages``.
    """
    where = [f"messages[{i}]" for i in range(len(messages))] if paths is None else paths
    texts = [call.called.arguments for m in messages for call in m.calls() if isinstance(call.called.arguments, str)]
    if texts:
        check_shape("\n".join(texts).encode())  # before any of it is parsed
    _check_results(messages, where, result_id)
    return [_template_message(message, path) for message, path in zip(messages, where, strict=True)]


def _check_results(messages: Sequence[Message], paths: Sequence[str], result_id: str) -> None:
    """Raises RequestError for a tool result without its call before it. A result without an id matches any call."""
    known: set[str] = set()
    called = False
    for path, message in zip(paths, messages, strict=True):
        for call in message.calls():
            called = True
            known.add(call.id or "")
        if message.role not in ("tool", "function"):
            continue
        if not called:
            raise refuse(path, "is a tool result without an assistant message that calls a tool before it")
        if message.tool_call_id is not None and message.tool_call_id not in known and "" not in known:
            raise refuse(f"{path}.{result_id}", f"{preview(message.tool_call_id)} is not the id of an earlier call")


def _template_message(message: Message, path: str) -> dict[str, Any]:
    text, calls = message.text(), message.calls()
    if text is None and message.role not in ("assistant", "tool", "function"):
        raise RequestError(f"{path}.content: is missing; give a text", param=f"{path}.content")
    if calls and message.role != "assistant":
        raise RequestError(
            f"{path}.tool_calls: is allowed in assistant messages only; leave it out", param=f"{path}.tool_calls"
        )
    made: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": text or ""}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if reasoning is not None:
        made["reasoning_content"] = reasoning
    if calls:
        made["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.called.name, "arguments": _arguments(call.called.arguments)},
                **({} if call.id is None else {"id": call.id}),
            }
            for call in calls
        ]
    return made


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
