"""``POST /v1/responses``, compatible with OpenAI clients. No state is kept between requests."""

from __future__ import annotations

import copy
import time
from typing import Any, Literal

from fastapi import APIRouter
from starlette.requests import Request

from runtime.errors import RequestError
from runtime.parsers.formats import Arguments, CallStart, Delta, Reasoning
from runtime.request.validation import refuse
from runtime.server.openai import responses_protocol as protocol
from runtime.server.serving.context import ServerContext
from runtime.server.serving.handler import ServingHandler, format_warning, named_event
from runtime.server.serving.job import GenerationJob, OutputDelta
from runtime.server.serving.routes import RawBodyRoute, json_route
from runtime.server.serving.specs import Generation
from runtime.server.serving.tools import ToolConfig

router = APIRouter(route_class=RawBodyRoute, tags=["OpenAI"])


# By the type of an item: the prefix of its id, the events of its text, and the fields with which it begins.
_ITEMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "message": ("msg", "output_text", {"role": "assistant", "content": []}),
    "reasoning": ("rs", "reasoning_text", {"summary": [], "content": []}),
    "function_call": ("fc", "function_call_arguments", {"arguments": ""}),
}


class ResponsesHandler(ServingHandler):
    """OpenAI's response object and its events. Methods that change an item return the events of the changes."""

    event_types = protocol.RESPONSE_EVENTS
    last_event = b""

    def __init__(self, job: GenerationJob, body: protocol.ResponsesRequest, model: str, tools: ToolConfig) -> None:
        super().__init__(job)
        self._sequence_number = 0
        self._items: list[Any] = []  # OutputItem, finished ones
        self._open: dict[str, Any] = {}  # the open item; empty if none
        self._pieces: list[str] = []
        self._origins = tools.origins
        spec = job.choices[0].spec
        reasoning = body.reasoning
        self._created, self._model = int(time.time()), model
        self._settings: protocol.ResponseSettings = {
            "instructions": body.instructions,
            "metadata": body.metadata or {},
            "max_output_tokens": body.set_fields().get("max_tokens"),
            "temperature": spec.temperature,
            "top_p": spec.top_p,
            "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tools": [tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "background": False,
            "store": False,
            "truncation": body.truncation or "disabled",
            "user": body.user,
        }

    def full_response(self) -> protocol.ResponsesAnswer:
        self._close(self._status())
        return self._final_object()

    def accumulate(self, update: OutputDelta) -> None:
        self.on_output(update)

    def on_start(self) -> bytes:
        begun = self._object("in_progress")
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def on_output(self, update: OutputDelta) -> bytes:
        return b"".join(map(self._append, update.deltas))

    def on_finish(self) -> bytes:
        data = self._close(self._status())
        ended = self._final_object()
        return data + self._event(f"response.{ended['status']}", response=ended)

    def on_error(self, error: RequestError) -> bytes:
        code = "invalid_prompt" if error.status == 400 else "server_error"
        failed = self._object("failed", error={"code": code, "message": error.message})
        return self._event("response.failed", response=failed)

    def _status(self) -> Literal["completed", "incomplete"]:
        return "completed" if self.job.choices[0].finish_reason == "stop" else "incomplete"

    def _final_object(self) -> protocol.ResponsesAnswer:
        usage, final = self.job.usage(), self._object(self._status())
        final["incomplete_details"] = None if final["status"] == "completed" else {"reason": "max_output_tokens"}
        final["output"] = self._items
        final["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }
        return final

    def _object(
        self, status: protocol.ResponseStatus, error: protocol.ResponseError | None = None
    ) -> protocol.ResponsesAnswer:
        return {
            "id": self.job.id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            **self._settings,
            "status": status,
            "error": error,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **format_warning(self.job.choices),
        }

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        data = named_event(kind, sequence_number=self._sequence_number, **fields)
        self._sequence_number += 1
        return data

    def _append(self, delta: Delta) -> bytes:
        """Extends the open item, or begins another one."""
        if isinstance(delta, CallStart):
            name, namespace = self._origins.get(delta.name, (delta.name, ""))
            scope = {"namespace": namespace} if namespace else {}
            return self._begin("function_call", call_id=delta.id, name=name, **scope)
        data = b""
        if not isinstance(delta, Arguments):
            kind = "reasoning" if isinstance(delta, Reasoning) else "message"
            data = b"" if self._is(kind) else self._begin(kind)
        self._pieces.append(delta.text)
        return data + self._text_event("delta", delta=delta.text)

    def _close(self, status: str) -> bytes:
        """Closes the last item with `status`. A response without text has an empty message."""
        data = self._end(status)
        if all(item["type"] == "reasoning" for item in self._items):
            data += self._begin("message") + self._end(status)
        return data

    def _is(self, kind: str) -> bool:
        return self._open.get("type") == kind

    def _begin(self, kind: str, **fields: Any) -> bytes:
        data = self._end("completed")
        prefix, _, begun = _ITEMS[kind]
        name = f"{prefix}_{self.job.id.removeprefix('resp_')}{len(self._items)}"
        self._open = {"id": name, "type": kind, "status": "in_progress", **fields, **copy.deepcopy(begun)}
        self._pieces = []
        data += self._event("response.output_item.added", output_index=len(self._items), item=self._open)
        return data if kind == "function_call" else data + self._part_event("added", self._part(""))

    def _end(self, status: str) -> bytes:
        if not self._open:
            return b""
        text, item = "".join(self._pieces), {**self._open, "status": status}
        if self._is("function_call"):
            item["arguments"] = text
            data = self._text_event("done", arguments=text, name=item["name"])
        else:
            item["content"] = [self._part(text)]
            data = self._text_event("done", text=text) + self._part_event("done", self._part(text))
        data += self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = {}
        return data

    def _text_event(self, change: str, **fields: Any) -> bytes:
        empty: dict[str, Any] = {"logprobs": []} if self._is("message") else {}
        return self._event(f"response.{_ITEMS[self._open['type']][1]}.{change}", **self._position(), **fields, **empty)

    def _part_event(self, change: str, part: dict[str, Any]) -> bytes:
        return self._event(f"response.content_part.{change}", **self._position(), part=part)

    def _position(self) -> dict[str, Any]:
        within = {} if self._is("function_call") else {"content_index": 0}
        return {"item_id": self._open["id"], "output_index": len(self._items), **within}

    def _part(self, text: str) -> dict[str, Any]:
        if self._is("reasoning"):
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


@json_route(router, "/v1/responses", "Create a response", short="/responses")
async def responses(context: ServerContext, request: Request, body: protocol.ResponsesRequest) -> ResponsesHandler:
    """Creates a response to a conversation of items."""
    generation = Generation(context, request, body, "resp_")
    if body.max_output_tokens is not None and body.max_tokens is not None:
        raise refuse("max_tokens", "is max_output_tokens here; give that alone")
    tools = body.tool_config()
    try:
        chat = body.to_chat(tools.origins)
        await generation.encode_chat(tools, chat)
    except RequestError as error:
        raise error.renamed("messages", "input") from None
    return ResponsesHandler(await generation.submit(), body, generation.model, tools)
