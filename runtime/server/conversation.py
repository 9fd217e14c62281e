"""A chat's messages, as the OpenAI SDKs write them, with their own answers among them, and as templates know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError, from_json

from runtime.errors import RequestError
from runtime.server.fields import Body
from runtime.server.shape import check_shape

MAX_MESSAGES = 2048
MAX_PARTS = 2048

_TEXTS = frozenset({"text", "input_text", "output_text", "refusal"})  # kinds of parts that are text
_ROLES = {"developer": "system", "function": "tool"}  # OpenAI's newer and older names


class Part(Body):
    """A piece of a message: its text is in the field that is named like its kind, or in `text`."""

    type: str
    text: str | None = None
    refusal: str | None = None
    cache_control: Any = None  # other servers' caches; here every prefix is cached
    annotations: Any = None

    @model_validator(mode="after")
    def _is_text(self) -> Part:
        if self.type not in _TEXTS:
            kind = self.type[:40]
            raise PydanticCustomError("not_built", "{kind} parts are not built, only text", {"kind": kind})
        if self.text is None and self.refusal is None:
            raise PydanticCustomError("no_text", "this part has no text")
        return self


class Function(Body):
    name: str
    arguments: Any = None  # JSON as text, as the SDKs have it, or an object


class Call(Body):
    id: str | None = None
    type: str | None = None
    function: Function


def _arm(content: Any) -> str:
    return "list" if isinstance(content, list) else "str"


_Parts = Annotated[list[Part], Field(max_length=MAX_PARTS, fail_fast=True)]
Content = Annotated[Annotated[str, Tag("str")] | Annotated[_Parts, Tag("list")], Discriminator(_arm)]


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[Call], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    function_call: Function | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: Any = None
    annotations: Any = None

    def text(self) -> str | None:
        if isinstance(self.content, list):
            return "".join(part.text or part.refusal or "" for part in self.content)
        return self.content if self.content is not None else self.refusal

    def calls(self) -> list[Call]:
        legacy = [Call(function=self.function_call)] if self.function_call else []
        return (self.tool_calls or []) + legacy


Messages = Annotated[list[Message], Field(max_length=MAX_MESSAGES, fail_fast=True)]


def plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates know them. Raises RequestError for what a message of its role may not be or lack."""
    texts = [
        call.function.arguments for m in messages for call in m.calls() if isinstance(call.function.arguments, str)
    ]
    check_shape("\n".join(texts).encode())  # before any of it is parsed
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: Message, path: str) -> dict[str, Any]:
    text, calls = message.text(), message.calls()
    if text is None and message.role not in ("assistant", "tool", "function"):
        raise RequestError(f"{path}.content: is missing; give a text", param=f"{path}.content")
    if calls and message.role != "assistant":
        raise RequestError(
            f"{path}.tool_calls: only an assistant's message has calls; leave it out", param=f"{path}.tool_calls"
        )
    made: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": text or ""}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    if calls:
        made["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
                **({} if call.id is None else {"id": call.id}),
            }
            for call in calls
        ]
    return made


def _arguments(given: Any) -> Any:
    """Arguments as an object, which templates write as JSON again; what is none (a model wrote it) as it is."""
    if not isinstance(given, str):
        return {} if given is None else given
    try:
        value = from_json(given)
    except ValueError:
        return given
    return value if isinstance(value, dict) else given
