"""What the server says of itself: health, readiness, start-up, metrics, models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from runtime.server.answers.status import Health, Model, ModelList, Readiness, Started, Starting
from runtime.server.responses import json_response
from runtime.server.routes.documented import errors, gives
from runtime.server.service import Service

router = APIRouter()


@router.get("/health", **gives(Health, refusals=errors(403)))
async def health() -> Response:
    """200: the process is alive."""
    return json_response({"status": "ok"})


@router.get("/ready", **gives(Readiness, refusals=errors(403) | errors(503, kind=Readiness)))
async def ready(request: Request) -> Response:
    """200: the model is loaded and the server is not draining; 503 otherwise."""
    service: Service = request.app.state.service
    if service.ready:
        return json_response({"status": "ready"})
    return json_response({"status": "draining" if service.draining else "not ready"}, 503)


@router.get("/startup", **gives(Started, refusals=errors(403) | errors(503, kind=Starting)))
async def startup(request: Request) -> Response:
    """200 once the model has been loaded, with the hub's commit and how each adapter stands; until then 503 with the
    phase and how far it is."""
    service: Service = request.app.state.service
    if service.tokenizer is not None and (info := service.frontend.info) is not None:
        revision = {"model_revision": info.model_revision} if info.model_revision else {}
        told = service.adapters.told()
        return json_response({"status": "started", **revision, **({"adapters": told} if told else {})})
    phase, done, total = service.frontend.progress()
    percent = round(100 * done / total, 1) if total else 0.0
    return json_response(
        {"status": "loading", "phase": phase, "bytes": done, "total_bytes": total, "percent": percent}, 503
    )


@router.get("/metrics", response_class=PlainTextResponse, response_model=None, responses=errors(403))
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    service: Service = request.app.state.service
    return Response(await service.frontend.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/models", include_in_schema=False, response_model=None)  # a base URL without /v1
@router.get("/v1/models", **gives(ModelList, refusals=errors(401, 403, 503)))
async def models(request: Request) -> Response:
    """The names under which the model is served, and the adapters."""
    service: Service = request.app.state.service
    names = [*service.names, *service.adapters.offered]
    return json_response({"object": "list", "data": [_model(service, name) for name in names]})


@router.get("/models/{name:path}", include_in_schema=False, response_model=None)
@router.get("/v1/models/{name:path}", **gives(Model, refusals=errors(401, 403, 404, 503)))
async def model(request: Request, name: str) -> Response:
    """One of them."""
    service: Service = request.app.state.service
    return json_response(_model(service, service.model_name(name)))


def _model(service: Service, name: str) -> dict[str, Any]:
    info = service.frontend.require()
    adapter = {} if name in service.names else {"parent": service.names[0], "root": service.adapters.table[name].uri}
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "unmask",
        "max_model_len": info.max_model_len,
        **adapter,
    }
