"""``POST /start_profile`` and ``/stop_profile``, with --profiler."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.server.answers.status import ProfileStarted, ProfileStopped
from runtime.server.profiling import Profiler
from runtime.server.responses import json_response
from runtime.server.routes.documented import error_docs, response_doc

router = APIRouter()


def _profiler(request: Request) -> Profiler:
    profiler: Profiler = request.app.state.context.frontend.profiler
    return profiler


@router.post("/start_profile", **response_doc(ProfileStarted, refusals=error_docs(401, 403, 409, 500, 503)))
async def start_profile(request: Request) -> Response:
    """Record the steps of every backend that serves."""
    return json_response({"status": "started", "backends": await _profiler(request).start()})


@router.post("/stop_profile", **response_doc(ProfileStopped, refusals=error_docs(401, 403, 409, 500)))
async def stop_profile(request: Request) -> Response:
    """Write what was recorded; answered with the files' names when they are there."""
    return json_response({"status": "stopped", "files": await _profiler(request).stop()})
