"""Parts of the messages of a chat: text, reasoning of an assistant, and images and files in results of tools."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from runtime.server.serving.request_body import RequestModel, api_field, ignored_field, optional

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
