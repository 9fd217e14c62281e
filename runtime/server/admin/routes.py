"""Routes for operation: health, readiness, startup, metrics, models, adapters, profiles, tokenization."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from runtime.errors import RequestError
from runtime.server.admin.protocol import (
    AdapterLoaded,
    AdapterUnloaded,
    Detokenized,
    DetokenizeRequest,
    Health,
    LoadAdapterRequest,
    Model,
    ModelList,
    ProfileStarted,
    ProfileStopped,
    Readiness,
    Started,
    Starting,
    Tokenized,
    TokenizeRequest,
    TokenizerInfo,
    UnloadAdapterRequest,
)
from runtime.server.context import ServerContext
from runtime.server.engine_client.profiler import Profiler
from runtime.server.http_responses import json_response
from runtime.server.openai.chat_messages import (
    check_no_chat_fields,
    continues_last_message,
    ending_variables,
    template_messages,
)
from runtime.server.openai.tools import ChatContext, parse_tools
from runtime.server.openapi import error_docs, json_route, response_doc

router = APIRouter()


@router.get("/health", **response_doc(Health, refusals=error_docs(403)))
async def health() -> Response:
    """Liveness: 200 while the process runs."""
    return json_response(Health(status="ok"))


@router.get("/ready", **response_doc(Readiness, refusals=error_docs(403) | error_docs(503, kind=Readiness)))
async def ready(request: Request) -> Response:
    """Readiness: 200 if the model is loaded and the server is not draining, otherwise 503."""
    context: ServerContext = request.app.state.context
    if context.ready:
        return json_response(Readiness(status="ready"))
    return json_response(Readiness(status="draining" if context.draining else "not ready"), 503)


@router.get("/startup", **response_doc(Started, refusals=error_docs(403) | error_docs(503, kind=Starting)))
async def startup(request: Request) -> Response:
    """Progress of the start: 503 with phase and bytes until the model is loaded, then 200 with commit and adapters."""
    context: ServerContext = request.app.state.context
    if context.tokenizer is not None and (info := context.engine_client.info) is not None:
        revision = {"model_revision": info.model_revision} if info.model_revision else {}
        adapters = context.adapters.status()
        return json_response({"status": "started", **revision, **({"adapters": adapters} if adapters else {})})
    phase, done, total = context.engine_client.progress()
    percent = round(100 * done / total, 1) if total else 0.0
    return json_response(Starting(status="loading", phase=phase, bytes=done, total_bytes=total, percent=percent), 503)


@router.get("/metrics", response_class=PlainTextResponse, response_model=None, responses=error_docs(403))
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    context: ServerContext = request.app.state.context
    return Response(await context.engine_client.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/models", include_in_schema=False, response_model=None)  # a base URL without /v1
@router.get("/v1/models", **response_doc(ModelList, refusals=error_docs(401, 403, 503)))
async def models(request: Request) -> Response:
    """Lists the names of the model, and the adapters."""
    context: ServerContext = request.app.state.context
    names = [*context.names, *context.adapters.available]
    return json_response(ModelList(object="list", data=[_model(context, name) for name in names]))


@router.get("/models/{name:path}", include_in_schema=False, response_model=None)
@router.get("/v1/models/{name:path}", **response_doc(Model, refusals=error_docs(401, 403, 404, 503)))
async def model(request: Request, name: str) -> Response:
    """Returns one model or adapter."""
    context: ServerContext = request.app.state.context
    return json_response(_model(context, context.model_name(name)))


def _model(context: ServerContext, name: str) -> Model:
    found: Model = {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "unmask",
        "max_model_len": context.engine_client.require().max_model_len,
    }
    if name not in context.names:
        found["parent"], found["root"] = context.names[0], context.adapters.entries[name].uri
    return found


def _context(request: Request) -> ServerContext:
    context: ServerContext = request.app.state.context
    if not context.config.lora_routes:
        raise RequestError(
            f"POST {request.url.path}: loading adapters is disabled; start the server with --lora-routes",
            status=403,
            code="lora_routes_off",
        )
    return context


@router.post("/v1/load_lora_adapter", **json_route(LoadAdapterRequest, AdapterLoaded))
async def load_lora_adapter(request: Request) -> Response:
    """Loads an adapter under a name. Loading the same content again has no effect."""
    context = _context(request)
    body = await context.body(request, LoadAdapterRequest)
    context.require()
    await context.adapters.load(body.lora_name, body.lora_path, "route")
    return json_response(AdapterLoaded(status="loaded", lora_name=body.lora_name))


@router.post("/v1/unload_lora_adapter", **json_route(UnloadAdapterRequest, AdapterUnloaded))
async def unload_lora_adapter(request: Request) -> Response:
    """Unloads an adapter; responds after its last request. Succeeds if the adapter is not loaded."""
    context = _context(request)
    body = await context.body(request, UnloadAdapterRequest)
    context.require()
    await context.adapters.unload(body.lora_name)
    return json_response(AdapterUnloaded(status="unloaded", lora_name=body.lora_name))


def _profiler(request: Request) -> Profiler:
    profiler: Profiler = request.app.state.context.engine_client.profiler
    return profiler


@router.post("/start_profile", **response_doc(ProfileStarted, refusals=error_docs(401, 403, 409, 500, 503)))
async def start_profile(request: Request) -> Response:
    """Starts a profile of the steps of all ready backends."""
    return json_response(ProfileStarted(status="started", backends=await _profiler(request).start()))


@router.post("/stop_profile", **response_doc(ProfileStopped, refusals=error_docs(401, 403, 409, 500)))
async def stop_profile(request: Request) -> Response:
    """Stops the profile and returns the paths of the written files."""
    return json_response(ProfileStopped(status="stopped", files=await _profiler(request).stop()))


MAX_EACH = 4096  # tokens with `return_bytes`


@router.post("/tokenize", **json_route(TokenizeRequest, Tokenized))
async def tokenize(request: Request) -> Response:
    """Returns the token ids of a prompt, or of messages with the chat template."""
    context: ServerContext = request.app.state.context
    body = await context.body(request, TokenizeRequest)
    context.model_name(body.model)
    info, _ = context.require()
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt: give either prompt or messages", param="prompt")
    if body.messages is not None:
        chat = ChatContext(context.config, *context.require(), parse_tools(body.tools, None, None))
        messages = template_messages(body.messages)
        variables = ending_variables(body, body.chat_template_kwargs)
        continued = continues_last_message(body, messages)
        ids = await chat.prompt(request, context.preprocessor, messages, variables, continued=continued)
    else:
        check_no_chat_fields(body)
        if body.chat_template_kwargs is not None:
            raise RequestError("chat_template_kwargs: only with messages", param="chat_template_kwargs")
        ids = await context.preprocessor.encode(
            request, body.prompt or "", add_bos=body.add_special_tokens is not False
        )
    return json_response(Tokenized(tokens=ids, count=len(ids), max_model_len=info.max_model_len))


@router.get("/tokenizer_info", **response_doc(TokenizerInfo, refusals=error_docs(401, 403, 503)))
async def tokenizer_info(request: Request) -> Response:
    """Returns the texts of special tokens, null for missing ones, and the chat template.

    Text in requests is never encoded as a special token, even if it has the text of one.
    """
    context: ServerContext = request.app.state.context
    info, tokenizer = context.require()
    named: dict[str, str | None] = dict.fromkeys(("bos_token", "eos_token", "pad_token", "mask_token"))
    known = {"mask_token": info.mask_token_id, "bos_token": info.bos_token_id, "eos_token": info.eos_token_ids[0]}
    named |= {name: tokenizer.byte_decoder.decode([id]) for name, id in known.items() if id is not None}
    return json_response(
        {**named, **tokenizer.named_tokens, "chat_template": tokenizer.chat_template, "max_token_id": info.max_token_id}
    )


@router.post("/detokenize", **json_route(DetokenizeRequest, Detokenized))
async def detokenize(request: Request) -> Response:
    """Returns the text of token ids, including special tokens; with `return_bytes` also the bytes of each."""
    context: ServerContext = request.app.state.context
    body = await context.body(request, DetokenizeRequest)
    context.model_name(body.model)
    _, tokenizer = context.require()
    each: dict[str, Any] = {}
    if body.return_bytes:  # before `decode`, which may empty the list
        if len(body.tokens) > MAX_EACH:
            raise RequestError(
                f"tokens: has {len(body.tokens)} ids; at most {MAX_EACH} with return_bytes", param="tokens"
            )
        each["bytes"] = [None if t in tokenizer.special else list(tokenizer.byte_decoder(t)) for t in body.tokens]
    return json_response({"prompt": await context.preprocessor.decode(request, body.tokens), **each})
