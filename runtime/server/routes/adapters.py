"""``POST /v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, with --lora-routes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.server.adapter_bodies import LoadAdapterRequest, UnloadAdapterRequest
from runtime.server.answers.status import AdapterLoaded, AdapterUnloaded
from runtime.server.responses import json_response
from runtime.server.routes.documented import json_route
from runtime.server.service import ServerContext

router = APIRouter()


def _context(request: Request) -> ServerContext:
    context: ServerContext = request.app.state.context
    if not context.config.lora_routes:
        raise RequestError(
            f"POST {request.url.path}: clients may not load adapters here; start the server with --lora-routes",
            status=403,
            code="lora_routes_off",
        )
    return context


@router.post("/v1/load_lora_adapter", **json_route(LoadAdapterRequest, AdapterLoaded))
async def load_lora_adapter(request: Request) -> Response:
    """Serve an adapter under a name of its own; again with the same content changes nothing."""
    context = _context(request)
    body = await context.body(request, LoadAdapterRequest)
    context.require()
    await context.adapters.load(body.lora_name, body.lora_path, "route")
    return json_response({"status": "loaded", "lora_name": body.lora_name})


@router.post("/v1/unload_lora_adapter", **json_route(UnloadAdapterRequest, AdapterUnloaded))
async def unload_lora_adapter(request: Request) -> Response:
    """Serve it no more: answered when the last request that has it has ended. One that is not there is gone already."""
    context = _context(request)
    body = await context.body(request, UnloadAdapterRequest)
    context.require()
    await context.adapters.unload(body.lora_name)
    return json_response({"status": "unloaded", "lora_name": body.lora_name})
