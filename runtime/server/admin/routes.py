"""Routes for operating the server: health, readiness, startup, metrics, models, adapters, profiles."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from runtime.errors import RequestError
from runtime.request.field_spec import nested
from runtime.request.validation import refuse
from runtime.server.admin import protocol as api
from runtime.server.serving.context import Context, ServerContext
from runtime.server.serving.handler import json_response
from runtime.server.serving.routes import error_docs, json_route, response_doc

router = APIRouter()
_state = partial(router.get, tags=["State"])
_models = partial(router.get, tags=["Models"])
_profile = partial(router.post, tags=["Profiles"])


@_state("/health", summary="Check that the process is alive", **response_doc(api.Health, 403))
async def health() -> Response:
    """Liveness: 200 while the process runs."""
    return json_response(api.Health(status="ok"))


@_state("/ready", summary="Check that requests are accepted", **response_doc(api.Readiness, 403, unready=api.Readiness))
async def ready(context: Context) -> Response:
    """Readiness: 200 if the model is loaded and the server is not draining, otherwise 503."""
    if context.ready:
        return json_response(api.Readiness(status="ready"))
    return json_response(api.Readiness(status="draining" if context.draining else "not ready"), 503)


@_state("/startup", summary="Progress of the start", **response_doc(api.Started, 403, unready=api.Starting))
async def startup(context: Context) -> Response:
    """Progress of the start: 503 with phase and bytes until the model is loaded, then 200 with commit and adapters."""
    if context.tokenizer is not None and (info := context.engine_client.info) is not None:
        revision = {"model_revision": info.model_revision} if info.model_revision else {}
        adapters = context.engine_client.adapters.status()
        return json_response({"status": "started", **revision, **({"adapters": adapters} if adapters else {})})
    phase, done, total = context.engine_client.progress()
    percent = round(100 * done / total, 1) if total else 0.0
    return json_response(
        api.Starting(status="loading", phase=phase, bytes=done, total_bytes=total, percent=percent), 503
    )


@_state(
    "/metrics",
    summary="Prometheus metrics",
    response_class=PlainTextResponse,
    response_model=None,
    responses=error_docs(403),
)
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    context: ServerContext = request.app.state.context
    text = await context.engine_client.call("metrics")
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/models", include_in_schema=False, response_model=None)  # a base URL without /v1
@_models("/v1/models", summary="List models and adapters", **response_doc(api.ModelList, 401, 403, 503))
async def models(context: Context) -> Response:
    """Lists the names of the model, and the adapters."""
    names = [*context.names, *context.engine_client.adapters.available]
    data = [_model(context, name) for name in names]
    date = datetime.fromtimestamp(context.created, UTC).date().isoformat()
    models = [api.NamedModel(name=each["id"], description=each["family"], release_date=date) for each in data]
    return json_response(api.ModelList(object="list", data=data, models=models))


@router.get("/models/{name:path}", include_in_schema=False, response_model=None)
@_models("/v1/models/{name:path}", summary="Describe a model", **response_doc(api.Model, 401, 403, 404, 503))
async def model(context: Context, name: str) -> Response:
    """Returns one model or adapter."""
    return json_response(_model(context, context.model_name(name)))


def _model(context: ServerContext, name: str) -> api.Model:
    info = context.engine_client.require()
    decoding = info.defaults()
    defaults: Any = {
        **info.sampling,
        "decoding": {"algorithm": decoding.algorithm, **nested(decoding.values)},
    }
    found: api.Model = {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "unmask",
        "max_model_len": info.max_model_len,
        "family": info.family,
        "block_size": info.block_size,
        "mask_token_id": info.mask_token_id,
        "eos_token_ids": info.eos_token_ids,
        "defaults": defaults,
    }
    if name not in context.names:
        found["parent"], found["root"] = context.names[0], context.engine_client.adapters.entries[name].uri
    return found


async def _check_lora_routes(request: Request) -> None:
    if not request.app.state.context.config.lora_routes:
        raise RequestError(
            f"POST {request.url.path}: loading adapters is disabled; start the server with --lora-routes",
            status=403,
            code="lora_routes_off",
        )


# the dependency is called before a body is read
adapter_router = APIRouter(tags=["Adapters"], dependencies=[Depends(_check_lora_routes)])


@json_route(adapter_router, "/v1/load_lora_adapter", "Load an adapter")
async def load_lora_adapter(
    context: ServerContext, request: Request, body: api.LoadAdapterRequest
) -> api.AdapterLoaded:
    """Loads an adapter under a name. Loading the same content again has no effect."""
    context.require()
    await context.engine_client.call("load_adapter", body.lora_name, body.lora_path)
    return {"status": "loaded", "lora_name": body.lora_name}


@json_route(adapter_router, "/v1/unload_lora_adapter", "Unload an adapter")
async def unload_lora_adapter(
    context: ServerContext, request: Request, body: api.UnloadAdapterRequest
) -> api.AdapterUnloaded:
    """Unloads an adapter; responds after its last request. Succeeds if the adapter is not loaded."""
    context.require()
    if body.lora_name in context.names:
        raise refuse("lora_name", f"{body.lora_name!r} is the name of the model, which cannot be unloaded")
    await context.engine_client.call("unload_adapter", body.lora_name)
    return {"status": "unloaded", "lora_name": body.lora_name}


@_profile("/start_profile", summary="Start a profile", **response_doc(api.ProfileStarted, 401, 403, 409, 500, 503))
async def start_profile(context: Context) -> Response:
    """Starts a profile of the steps of all ready backends."""
    backends = await context.engine_client.call("start_profile")
    return json_response(api.ProfileStarted(status="started", backends=backends))


@_profile("/stop_profile", summary="Stop the profile", **response_doc(api.ProfileStopped, 401, 403, 409, 500))
async def stop_profile(context: Context) -> Response:
    """Stops the profile and returns the paths of the written files."""
    files = await context.engine_client.call("stop_profile")
    return json_response(api.ProfileStopped(status="stopped", files=files))
