"""Messages of a chat and their parts as templates take them, and conversion of the items of other APIs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, from_json

from runtime.request.validation import preview, refuse
from runtime.server.serving.generation import TemplateArguments, check_unset
from runtime.server.serving.request_body import (
    MessageList,
    PartList,
    RequestModel,
    TextOrParts,
    api_field,
    check_shape,
    ignored_field,
    optional,
)

EXAMPLE_CHAT = [{"role": "user", "content": "Solve: 12 + 30."}]  # an example
_ROLES = {"developer": "system", "function": "tool"}  # newer and older names
TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})  # kinds of parts that are text


class Part(RequestModel):
    """A part of a message, with its text in the field with the name of its type, or in `text`."""

    type: str = api_field("`text`; other types are rejected", "text")
    text: str | None = optional("text of a `text` part", "Hello!")
    refusal: str | None = optional("text of a refusal", "I will not.")
    cache_control: Any = optional("ignored; every prefix is cached", None)
    annotations: Any = ignored_field([])

    text_types: ClassVar[frozenset[str]] = TEXT_TYPES
    ignored_types: ClassVar[frozenset[str]] = frozenset()

    def unsupported_kind(self) -> str | None:
        return self.type if self.type in self.ignored_types else None

    @model_validator(mode="after")
    def _is_text(self) -> Part:
        if self.unsupported_kind() is not None:
            return self
        if self.type not in self.text_types:
            kind = self.type[:40]
            raise PydanticCustomError("not_built", "{kind} parts are not supported, only text", {"kind": kind})
        if self.text is None and self.refusal is None:
            raise PydanticCustomError("no_text", "this part has no text; add it")
        return self

    def as_text(self) -> str:
        return self.text or self.refusal or ""


class ResultPart(Part):
    """A part of a tool's result. Images, audio and files are ignored: agents send them in every later request."""

    ignored_types: ClassVar[frozenset[str]] = frozenset(
        {"image_url", "image", "input_image", "input_audio", "file", "input_file", "video_url"}
    )


class ReasoningPart(Part):
    """Reasoning among the parts of an assistant message, as other APIs have it."""

    signature: str | None = ignored_field("")
    data: str | None = ignored_field("")

    text_types: ClassVar[frozenset[str]] = frozenset({"thinking", "reasoning", "redacted_thinking"})

    def as_text(self) -> str:
        return ""


def result_text(value: Any) -> str:
    """Returns the result of a tool as text: a text unchanged, "" for null, JSON of any other value."""
    return value or "" if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)


def is_parts(content: Any) -> bool:
    """Returns whether a parsed value is a list of parts: objects with a type."""
    return isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)


def special_part(role: object, part: Any) -> Any:
    """Converts a part that is only allowed in messages of this role; returns others unchanged."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        return part
    if role in ("tool", "function") and kind in ResultPart.ignored_types:
        return ResultPart(type=kind)
    if role != "assistant" or kind not in ReasoningPart.text_types:
        return part
    text = _joined(part.get(kind, part.get("text", "")))
    if text is None:
        return part
    unknown = {name: value for name, value in part.items() if name != kind and name not in ReasoningPart.model_fields}
    return ReasoningPart(type=kind, text=text, **unknown)


def _joined(value: Any) -> str | None:
    """Returns a text, or the texts of a list of parts; None for other values."""
    if isinstance(value, list):
        texts: list[Any] = [part.get("text", "") if isinstance(part, dict) else None for part in value]
        return "".join(texts) if all(isinstance(text, str) for text in texts) else None
    return value if isinstance(value, str) else None


class Function(RequestModel):
    name: str = api_field("name of the tool", "calculator")
    arguments: Any = optional("JSON text, or an object", '{"expression": "12 + 30"}')


class CustomCall(RequestModel):
    """A call of a tool whose input is text."""

    name: str = api_field("name of the tool", "shell")
    input: str | None = optional("input text", "ls")


class Call(RequestModel):
    id: str | None = optional("id of the call", "call_1")
    type: str | None = optional("`function`, or `custom` in the history of clients with custom tools", "function")
    function: Function | None = optional(
        "name and arguments", {"name": "calculator", "arguments": '{"expression": "12 + 30"}'}
    )
    custom: CustomCall | None = optional("of a custom call: tool and input", None)

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


def effort_variables(effort: str | None) -> dict[str, Any]:
    """Returns the variables of a chat template that `effort` sets: any effort but `none` switches reasoning on."""
    return {"reasoning_effort": effort, "enable_thinking": None if effort is None else effort != "none"}


def check_continued(message: Mapping[str, Any], path: str) -> None:
    """Raises RequestError for an assistant's message of which no text can be continued."""
    if message.get("tool_calls"):
        raise refuse(path, "has tool calls and cannot be continued; add their results")
    if message.get("reasoning_content") and not message["content"]:
        raise refuse(path, "has only reasoning and cannot be continued; add text")


class Message(RequestModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = api_field(
        "role of the author; `developer` means `system`, `function` means `tool`", "user"
    )
    content: TextOrParts[Part] | None = optional(
        "text, or a list of parts; null with tool calls; other JSON in a tool's result becomes text; reasoning is "
        "allowed in parts of an assistant message; images and files in a tool's result are ignored and named in "
        "`X-Unmask-Ignored`",
        "Hello!",
    )
    name: str | None = optional("name of the author, for templates that use it", "Ann")
    tool_calls: PartList[Call] | None = optional(
        "tool calls of an assistant message",
        [{"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}],
    )
    tool_call_id: str | None = optional("of a tool result: id of the call", "call_1")
    function_call: Function | None = optional(
        "deprecated form of `tool_calls`", {"name": "calculator", "arguments": "{}"}
    )
    reasoning_content: str | None = optional(
        "reasoning of the assistant, for templates that use it", "12 and 30 are 42."
    )
    reasoning: str | None = optional("alias of `reasoning_content`", "12 and 30 are 42.")
    refusal: str | None = optional("refusal text of an assistant message", None)
    audio: Any = ignored_field(None)
    annotations: Any = ignored_field([])

    @field_validator("content", mode="before")
    @classmethod
    def _convert_parts(cls, content: Any, info: ValidationInfo) -> Any:
        role = info.data.get("role")
        if role in ("tool", "function") and content is not None and not is_parts(content):
            return result_text(content)
        return [special_part(role, part) for part in content] if isinstance(content, list) else content

    def text(self) -> str | None:
        if isinstance(self.content, list):
            return "".join(part.as_text() for part in self.content)
        return self.content if self.content is not None else self.refusal

    def reasoning_text(self) -> str | None:
        for found in (self.reasoning_content, self.reasoning):
            if found is not None:
                return found
        if not isinstance(self.content, list):
            return None
        parts = [part.text or "" for part in self.content if isinstance(part, ReasoningPart)]
        return "".join(parts) or None

    def calls(self) -> list[Call]:
        legacy = [Call(function=self.function_call)] if self.function_call else []
        return (self.tool_calls or []) + legacy


Messages = MessageList[Message]


class ChatPrompt(NamedTuple):
    """The input of a chat template.

    Attributes:
        messages: messages, as `template_messages` returns them.
        variables: further variables of the template.
        continued: the answer continues the last message, an assistant's.
    """

    messages: list[dict[str, Any]]
    variables: Mapping[str, Any]
    continued: bool = False


class Conversation:
    """Messages of a chat that are converted from the items of another API.

    Pieces of an answer are joined once, when the answer is complete: a request may have thousands of them.
    """

    def __init__(self, result_id: str) -> None:
        """`result_id`: name of the field of a tool result with the id of the call."""
        self._result_id = result_id
        self._messages: list[Message] = []
        self._paths: list[str] = []  # in the request, of each message
        self._pieces: list[tuple[list[str], list[str]]] = []  # of text and reasoning, of each message

    def add(self, path: str, **fields: Any) -> None:
        self._messages.append(Message(**fields))
        self._paths.append(path)
        self._pieces.append(([], []))

    def assistant(
        self, path: str, *, text: str = "", reasoning: str = "", call: Call | None = None, begins: bool = False
    ) -> None:
        """Adds a piece of an answer to the last message if that is an assistant message, unless a new one `begins`."""
        if begins or not self._messages or self._messages[-1].role != "assistant":
            self.add(path, role="assistant", content=None)
        texts, reasonings = self._pieces[-1]
        if text:
            texts.append(text)
        if reasoning:
            reasonings.append(reasoning)
        if call is not None:
            message = self._messages[-1]
            message.tool_calls = message.tool_calls or []
            message.tool_calls.append(call)

    def to_template(self) -> list[dict[str, Any]]:
        """Returns the messages as `template_messages`."""
        for message, (texts, reasonings) in zip(self._messages, self._pieces, strict=True):
            if texts:
                message.content = "".join(texts)
            if reasonings:
                message.reasoning_content = "".join(reasonings)
        return template_messages(self._messages, self._paths, self._result_id)


def template_messages(
    messages: Sequence[Message], paths: Sequence[str] | None = None, result_id: str = "tool_call_id"
) -> list[dict[str, Any]]:
    """Returns messages for a chat template. Raises RequestError for messages that are invalid for their role.

    `paths`: path of each message in the request, for errors; by default those of ``messages``.
    """
    where = [f"messages[{i}]" for i in range(len(messages))] if paths is None else paths
    texts = [call.called.arguments for m in messages for call in m.calls() if isinstance(call.called.arguments, str)]
    if texts:
        check_shape(*(text.encode() for text in texts))  # before any of it is parsed
    _check_results(messages, where, result_id)
    return [_template_message(message, path) for message, path in zip(messages, where, strict=True)]


def _check_results(messages: Sequence[Message], paths: Sequence[str], result_id: str) -> None:
    """Raises RequestError for a tool result without its call before it. A result without an id matches any call."""
    known: set[str] = set()  # ids of calls, "" for one without
    for path, message in zip(paths, messages, strict=True):
        known.update(call.id or "" for call in message.calls())
        if message.role not in ("tool", "function"):
            continue
        if not known:
            raise refuse(path, "is a tool result without an assistant message that calls a tool before it")
        if message.tool_call_id is not None and message.tool_call_id not in known and "" not in known:
            raise refuse(f"{path}.{result_id}", f"{preview(message.tool_call_id)} is not the id of an earlier call")


def _template_message(message: Message, path: str) -> dict[str, Any]:
    text, calls = message.text(), message.calls()
    if text is None and message.role not in ("assistant", "tool", "function"):
        raise refuse(f"{path}.content", "is missing; give a text")
    if calls and message.role != "assistant":
        raise refuse(f"{path}.tool_calls", "is allowed in assistant messages only; leave it out")
    optional_fields = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_text(),
        "tool_calls": [_template_call(call) for call in calls] or None,
    }
    converted = {"role": _ROLES.get(message.role, message.role), "content": text or ""}
    return converted | {name: value for name, value in optional_fields.items() if value is not None}


def _template_call(call: Call) -> dict[str, Any]:
    function = {"name": call.called.name, "arguments": _arguments(call.called.arguments)}
    return {"type": "function", "function": function, **({} if call.id is None else {"id": call.id})}


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


class ChatFields(RequestModel):
    """Fields of routes that accept the messages of a chat."""

    messages: Messages | None = optional("messages of a chat, instead of `prompt`", EXAMPLE_CHAT)
    chat_template_kwargs: TemplateArguments = None
    add_generation_prompt: bool | None = optional(
        "end the prompt with the start of an assistant message; default true", True
    )
    continue_final_message: bool | None = optional(
        "continue the last message, which must be an assistant message; default false", False
    )

    # only with `messages`
    chat_fields: ClassVar[tuple[str, ...]] = ("chat_template_kwargs", "add_generation_prompt", "continue_final_message")

    def to_chat(self, **variables: Any) -> ChatPrompt:
        """Returns the chat. Raises RequestError for messages that are invalid, or cannot be continued.

        `variables`: further variables of the template; those that are None are left out.
        """
        messages = template_messages(self.messages or ())
        known = template_variables(
            self.chat_template_kwargs, add_generation_prompt=self.add_generation_prompt, **variables
        )
        return ChatPrompt(messages, known, self._continues(messages))

    def _continues(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the answer continues the last of the messages. Raises RequestError if it cannot."""
        if not self.continue_final_message:
            return False
        name = "continue_final_message"
        if self.add_generation_prompt:
            raise refuse(name, "cannot be combined with add_generation_prompt true; leave one of them out")
        if not messages or messages[-1]["role"] != "assistant":
            raise refuse(name, "needs a last message of the role assistant; add one, or leave it out")
        check_continued(messages[-1], f"messages[{len(messages) - 1}]")
        return True

    def check_input(self, prompt: object) -> None:
        """Raises RequestError unless there is either a prompt or messages, and for fields that only a chat has."""
        if (prompt is None) == (self.messages is None):
            raise refuse("prompt", "give either prompt or messages")
        if self.messages is None:
            check_unset(self, self.chat_fields, "only with messages; leave it out")
        else:
            check_unset(self, ["parse_special"], "only with prompt; leave it out")
