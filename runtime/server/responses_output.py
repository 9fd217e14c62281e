"""The output items of a response as they come about, each told by the events that belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from runtime.parsers import Arguments, CallStart, Delta, Reasoning


class Event(Protocol):
    def __call__(self, kind: str, /, **fields: Any) -> bytes: ...


class ResponseItems:
    """Items so far, the last of which may be open. Every method returns the events of what it changes.

    Attributes:
        items: as the response object has them, once they have ended.
    """

    def __init__(self, name: str, event: Event, origins: Mapping[str, tuple[str, str]]) -> None:
        """`name`: what the items' ids are made of. `origins`: the functions of namespaces, as in `Tooling`."""
        self.items: list[dict[str, Any]] = []
        self._name = name
        self._event = event
        self._origins = origins
        self._open: dict[str, Any] = {}  # the item that grows; empty where none does
        self._pieces: list[str] = []

    def append(self, delta: Delta) -> bytes:
        """More of the item that grows, or the first of another."""
        if isinstance(delta, CallStart):
            name, namespace = self._origins.get(delta.name, (delta.name, ""))
            scope = {"namespace": namespace} if namespace else {}
            return self._begin("function_call", call_id=delta.id, name=name, **scope, arguments="")
        if isinstance(delta, Arguments):
            self._pieces.append(delta.text)
            position = {"item_id": self._open["id"], "output_index": len(self.items)}
            return self._event("response.function_call_arguments.delta", **position, delta=delta.text)
        if isinstance(delta, Reasoning):
            data = b"" if self._is("reasoning") else self._begin("reasoning", summary=[], content=[])
            delta_event = self._event("response.reasoning_text.delta", **self._position(), delta=delta.text)
        else:
            data = b"" if self._is("message") else self._begin("message", role="assistant", content=[])
            delta_event = self._event("response.output_text.delta", **self._position(), delta=delta.text, logprobs=[])
        self._pieces.append(delta.text)
        return data + delta_event

    def close(self, status: str) -> bytes:
        """The end of all, the last item with what became of it: an answer without a word is an empty message."""
        data = self._end(status)
        if all(item["type"] == "reasoning" for item in self.items):
            data += self._begin("message", role="assistant", content=[]) + self._end(status)
        return data

    def _is(self, kind: str) -> bool:
        return self._open.get("type") == kind

    def _begin(self, kind: str, **fields: Any) -> bytes:
        data = self._end("completed")
        prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}[kind]
        name = f"{prefix}_{self._name}{len(self.items)}"
        self._open = {"id": name, "type": kind, "status": "in_progress", **fields}
        self._pieces = []
        data += self._event("response.output_item.added", output_index=len(self.items), item=self._open)
        if kind != "function_call":
            data += self._event("response.content_part.added", **self._position(), part=self._part(""))
        return data

    def _end(self, status: str) -> bytes:
        if not self._open:
            return b""
        text, position = "".join(self._pieces), self._position()
        item = {**self._open, "status": status}
        if self._is("function_call"):
            item["arguments"] = text
            del position["content_index"]
            data = self._event("response.function_call_arguments.done", **position, arguments=text, name=item["name"])
        else:
            part = self._part(text)
            item["content"] = [part]
            if self._is("reasoning"):
                data = self._event("response.reasoning_text.done", **position, text=text)
            else:
                data = self._event("response.output_text.done", **position, text=text, logprobs=[])
            data += self._event("response.content_part.done", **position, part=part)
        data += self._event("response.output_item.done", output_index=len(self.items), item=item)
        self.items.append(item)
        self._open = {}
        return data

    def _position(self) -> dict[str, Any]:
        return {"item_id": self._open["id"], "output_index": len(self.items), "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        if self._is("reasoning"):
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
