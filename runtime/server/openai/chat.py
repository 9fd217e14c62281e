"""``POST /v1/chat/completions``, compatible with OpenAI clients; and the chunks that completions have in common."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from fastapi import APIRouter
from starlette.requests import Request

from runtime.errors import RequestError
from runtime.parsers.chat_output import ChatOutputParser
from runtime.parsers.formats import Arguments, CallStart, Delta, Reasoning
from runtime.request.output import CompletionState, denoise_fields
from runtime.server.http_protocol.error_responses import ErrorResponse, error_object
from runtime.server.openai import protocol
from runtime.server.openai.logprobs import ChatLogprobStreamer
from runtime.server.serving.context import ServerContext
from runtime.server.serving.handler import ServingHandler, events, format_warning, prompt_warning
from runtime.server.serving.job import GenerationJob, OutputDelta
from runtime.server.serving.logprobs import LogprobStreamer
from runtime.server.serving.routes import RawBodyRoute, json_route
from runtime.server.serving.specs import Generation


class OpenAIHandler(ServingHandler):
    """Chunks with choices, and the usage if requested."""

    chunk_object: ClassVar[str]
    logprob_streamer: ClassVar[type[LogprobStreamer]]

    def __init__(self, job: GenerationJob, body: protocol.OpenAIRequest, generation: Generation) -> None:
        """The body is not kept."""
        super().__init__(job)
        self._warning = partial(prompt_warning, *generation.loaded, generation.special_text)
        self._echo = generation.echo
        options = body.stream_options or protocol.StreamOptions()
        self._include_usage = bool(options.include_usage)
        self._continuous_usage = self._include_usage and bool(options.continuous_usage_stats)
        self._denoise = generation.stream_mode == "denoise"  # a chunk per step
        self._returns_ids = bool(body.return_token_ids)
        self._head: protocol.ResponseHead = {"id": job.id, "created": int(time.time()), "model": generation.model}
        self._base: dict[str, Any] = {**self._head, "object": self.chunk_object}
        if self._include_usage:
            self._base["usage"] = None  # all chunks but the last, as OpenAI has it
        self._streamers: Sequence[LogprobStreamer] = ()  # of all completions, if log-probabilities are requested
        if any(choice.spec.logprobs is not None for choice in job.choices):
            pieces = generation.loaded[1].byte_decoder
            self._streamers = [self.logprob_streamer(choice, pieces, generation.echo) for choice in job.choices]
        self._full_logprobs: list[Any] = [None] * len(job.choices)

    async def finalize(self) -> None:
        if self._streamers and not self.job.streamed:
            self._full_logprobs = [await streamer.full() for streamer in self._streamers]

    def chunk(
        self, index: int, reason: protocol.Reason | None, logprobs: Any, fields: Mapping[str, object],
        **choice_fields: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Returns a chunk of a completion: `choice_fields` belong to its choice, `fields` to the chunk."""
        choice = {"index": index, **choice_fields, "logprobs": logprobs, "finish_reason": reason}
        usage = {"usage": self.job.usage()} if self._continuous_usage else {}
        return {**self._base, "choices": [choice], **fields, **usage}

    def take_logprobs(self, update: OutputDelta) -> Any:
        """Returns the log-probabilities of the tokens of an output, None if they are not requested."""
        return self._streamers[update.choice.index].delta(update) if self._streamers else None

    def token_fields(self, choice: CompletionState) -> protocol.TokenFields:
        """Returns the tokens of a finished completion and their steps, if requested."""
        ids: protocol.TokenFields = {"token_ids": choice.token_ids} if self._returns_ids else {}
        return {**ids, **choice.step_map_fields()}

    def prompt_ids(self, choice: CompletionState) -> protocol.PromptIds:
        return {"prompt_token_ids": choice.spec.prompt} if self._returns_ids else {}

    def step(self, update: OutputDelta) -> dict[str, object]:
        """Returns the fields of a chunk that describe the step of an output."""
        return {"denoise": denoise_fields(update.output)} if self._denoise else {}

    def on_finish(self) -> bytes:
        return events({**self._base, "choices": [], "usage": self.job.usage()}) if self._include_usage else b""

    def on_error(self, error: RequestError) -> bytes:
        return events(error_object(error))


def assistant_message(choice: CompletionState) -> protocol.AnswerMessage:
    """Returns the full message. Its content is null with tool calls and no text."""
    output = choice.parts
    assert isinstance(output, ChatOutputParser)
    message: protocol.AnswerMessage = {
        "role": "assistant",
        "content": output.content if output.content or not output.calls else None,
        "refusal": None,
    }
    if output.reasoning:
        message["reasoning_content"] = output.reasoning
    if output.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in output.calls
        ]
    return message


def chat_delta(delta: Delta) -> protocol.ChatDelta:
    """Returns the delta of a chunk."""
    if isinstance(delta, Reasoning):
        return {"reasoning_content": delta.text}
    if isinstance(delta, CallStart):
        function: protocol.FunctionDelta = {"name": delta.name, "arguments": ""}
        return {"tool_calls": [{"index": delta.index, "id": delta.id, "type": "function", "function": function}]}
    if isinstance(delta, Arguments):
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    return {"content": delta.text}


class ChatHandler(OpenAIHandler):
    """OpenAI's chat.completion objects."""

    chunk_object = "chat.completion.chunk"
    logprob_streamer = ChatLogprobStreamer
    event_types = (protocol.ChatChunk, ErrorResponse)

    def full_response(self) -> protocol.ChatAnswer:
        choices: list[protocol.ChatChoice] = [
            {
                "index": choice.index,
                "message": assistant_message(choice),
                "logprobs": self._full_logprobs[choice.index],
                "finish_reason": choice.openai_reason,
                **self.token_fields(choice),
            }
            for choice in self.job.choices
        ]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": self.job.usage(),
            **self.prompt_ids(self.job.choices[0]),
            **format_warning(self.job.choices),
        }

    def on_start(self) -> bytes:
        role: protocol.ChatDelta = {"role": "assistant", "content": "", "refusal": None}
        return events(*[self.chunk(choice.index, None, None, {}, delta=role) for choice in self.job.choices])

    def on_output(self, update: OutputDelta) -> bytes:
        index = update.choice.index
        deltas: list[protocol.ChatDelta] = [chat_delta(delta) for delta in update.deltas]
        logprobs, chunk_fields = self.take_logprobs(update), self.step(update)
        if not deltas and (self._denoise or (logprobs is not None and logprobs["content"])):
            deltas.append({"content": ""})  # a step or tokens without text
        chunks = []
        for delta in deltas:
            chunks.append(self.chunk(index, None, logprobs, chunk_fields, delta=delta))
            logprobs, chunk_fields = None, {}  # with the first chunk only
        if update.ended:
            choice = update.choice
            fields = {**self.prompt_ids(choice), **format_warning([choice])}
            tokens = self.token_fields(choice)
            chunks.append(self.chunk(index, choice.openai_reason, None, fields, delta={}, **tokens))
        return events(*chunks)


router = APIRouter(route_class=RawBodyRoute, tags=["OpenAI"])


@json_route(router, "/v1/chat/completions", "Create a chat completion", short="/chat/completions")
async def chat_completions(context: ServerContext, request: Request, body: protocol.ChatRequest) -> ChatHandler:
    """Creates a chat completion."""
    generation = Generation(context, request, body, "chatcmpl-")
    await generation.encode_chat(body.tool_config(), body.to_chat())
    return ChatHandler(await generation.submit(), body, generation)
