"""Routes of the interface that this version has not: each answers with a sentence that names it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.server.errors import not_built

router = APIRouter(include_in_schema=False)

_ROUTES = {
    ("POST", "/v1/load_lora_adapter"): not_built("POST /v1/load_lora_adapter (adapters)"),
    ("POST", "/v1/unload_lora_adapter"): not_built("POST /v1/unload_lora_adapter (adapters)"),
    # the profiler cannot be switched on yet, so these answer what they always do while it is off
    ("POST", "/start_profile"): RequestError(
        "POST /start_profile: profiling is off, and --profiler is not built in this version", status=409
    ),
    ("POST", "/stop_profile"): RequestError(
        "POST /stop_profile: profiling is off, and --profiler is not built in this version", status=409
    ),
}


async def _refuse(request: Request) -> Response:
    error = _ROUTES[request.method, request.url.path]
    raise RequestError(error.message, status=error.status, code=error.code)


for _method, _path in _ROUTES:
    router.add_api_route(_path, _refuse, methods=[_method], response_model=None)
