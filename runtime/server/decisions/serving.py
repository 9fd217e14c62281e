"""``POST /v1/decisions`` and ``POST /v1/systemone``: typed questions about a state, answered with probabilities."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.decisions.prompts import PROMPT_FORMAT, DecisionPrompts, DecisionRead
from runtime.decisions.questions import Answer, Question
from runtime.request.output import CompletionState, TextBuilder
from runtime.request.resolve import RequestContext
from runtime.request.sampling_params import MAX_CACHE_SALT
from runtime.request.validation import refuse, text
from runtime.server.decisions import protocol
from runtime.server.serving.context import ServerContext
from runtime.server.serving.executors import api_key_id
from runtime.server.serving.handler import ResponseHandler
from runtime.server.serving.job import GenerationJob
from runtime.server.serving.preprocessor import MESSAGE_CHARS, count_characters
from runtime.server.serving.routes import RawBodyRoute, json_route

router = APIRouter(route_class=RawBodyRoute, tags=["Decisions"])
PROMPT_FORMAT_HEADER = "X-Unmask-Prompt-Format"

Body = protocol.DecisionsRequest | protocol.SystemOneRequest


class _Handler(ResponseHandler):
    """The answers to the questions of a request."""

    def __init__(self, job: GenerationJob, reads: Sequence[DecisionRead], body: Body, model: str) -> None:
        super().__init__(job)
        self._reads, self._body, self._model = reads, body, model

    async def respond(self, request: Request) -> Response:
        response = await super().respond(request)
        response.headers[PROMPT_FORMAT_HEADER] = str(PROMPT_FORMAT)
        counter = self.job.frontend.request_metrics.decision_questions
        for read in self._reads:
            for question in read.questions:
                counter.labels(question.type).inc()
        return response

    def answers(self) -> list[Answer]:
        found: list[Answer] = []
        for read, choice in zip(self._reads, self.job.choices, strict=True):
            assert choice.read is not None
            found += read.answers(choice.read)
        return found

    def map_response(self, ids: Sequence[str]) -> protocol.SystemOneAnswer:
        answers, usage = dict(zip(ids, self.answers(), strict=True)), self.job.usage()
        return {
            "id": self.job.id,
            "object": "systemone",
            "created": int(time.time()),
            "model": self._model,
            "answers": {id: _map_answer(answer) for id, answer in answers.items()},
            "diagnostics": {
                id: {"label_mass": answer.label_mass, "argmax_is_label": answer.argmax_is_label}
                for id, answer in answers.items()
            },
            "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": 0},
        }


class SystemOneHandler(_Handler):
    def full_response(self) -> protocol.SystemOneAnswer:
        return self.map_response(list(cast(Mapping[str, Any], self._body.questions)))


class DecisionsHandler(_Handler):
    def full_response(self) -> protocol.DecisionsAnswer:
        if isinstance(self._body.questions, dict):  # the other API's request gets its answer
            return cast(protocol.DecisionsAnswer, self.map_response(list(self._body.questions)))
        usage = self.job.usage()
        return {
            "id": self.job.id,
            "object": "decision",
            "model": self._model,
            "answers": [_listed_answer(answer) for answer in self.answers()],
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["prompt_tokens"],
            },
        }


def _listed_answer(answer: Answer) -> Any:
    question = answer.question
    head = {"type": question.type, "name": question.name, "label_mass": answer.label_mass}
    if question.type == "predicate":
        return {**head, "probability": answer.score}
    head["confidence"] = answer.confidence
    pairs = zip(question.options, answer.probabilities, strict=True)
    if question.type == "choice":
        each = [{"value": option.value, "probability": p} for option, p in pairs]
        return {**head, "choice": answer.value, "probabilities": each}
    each = [{"value": option.value, "label": option.label, "probability": p} for option, p in pairs]
    return {**head, "score": answer.score, "probabilities": each}


def _map_answer(answer: Answer) -> Any:
    question = answer.question
    if question.type == "predicate":
        return {"type": "noul", "noul": answer.score, "label_mass": answer.label_mass}
    each = {str(option.value): p for option, p in zip(question.options, answer.probabilities, strict=True)}
    head = {"type": question.type, "probabilities": each, "confidence": answer.confidence}
    head["label_mass"] = answer.label_mass
    if question.type == "choice":
        return {**head, "choice": answer.value}
    legend = {str(option.value): option.text for option in question.options}
    return {**head, "score": answer.score, "legend": legend}


async def _start(
    context: ServerContext, request: Request, body: Body, prefix: str
) -> tuple[GenerationJob, list[DecisionRead], Body, str]:
    """Submits the reads that answer the questions. Returns the arguments of a handler. Raises RequestError."""
    model = context.model_name(body.model)
    info, tokenizer = context.require()
    questions, chat = body.to_questions(), body.to_chat()
    salt = text("cache_salt", body.cache_salt or "", MAX_CACHE_SALT)
    limit = context.engine_client.max_choices()
    if len(questions) > limit:
        raise refuse("questions", f"has {len(questions)} questions; this server answers at most {limit} at once")
    size = count_characters(dict(chat.variables))
    size += sum(MESSAGE_CHARS + len(str(value)) for message in chat.messages for value in message.values())

    def work(is_needed: Callable[[], bool]) -> list[DecisionRead]:
        prompts = DecisionPrompts(tokenizer, info, chat.messages, chat.variables, is_needed)
        return prompts.reads(questions, joint=bool(body.joint))

    reads = await context.preprocessor.run(request, sum(size + _length(question) for question in questions), work)
    id = prefix + uuid.uuid4().hex
    adapter = "" if model in context.names else model
    choices = []
    for i, read in enumerate(reads):
        of_read = RequestContext(id=f"{id}-{i}", parent_id=id, tenant=api_key_id(request), adapter=adapter)
        choices.append(CompletionState(i, read.spec(info, of_read, salt), TextBuilder()))
    if adapter:
        context.model_name(model)  # it may have been unloaded meanwhile
    return GenerationJob(id, context.engine_client, choices, False, len(choices)), reads, body, model


def _length(question: Question) -> int:
    return len(question.instructions) + sum(len(option.text) for option in question.options)


@json_route(router, "/v1/decisions", "Answer typed questions", short="/decisions")
async def decisions(context: ServerContext, request: Request, body: protocol.DecisionsRequest) -> DecisionsHandler:
    """Answers a list of typed questions about an input with probabilities, without text."""
    return DecisionsHandler(*await _start(context, request, body, "dec_"))


@json_route(router, "/v1/systemone", "Answer a map of typed questions", short="/systemone")
async def systemone(context: ServerContext, request: Request, body: protocol.SystemOneRequest) -> SystemOneHandler:
    """Answers a map of typed questions about a state with probabilities, without text."""
    return SystemOneHandler(*await _start(context, request, body, "s1_"))
