"""``GET /`` and ``/docs``: the playground, and the interface's description, for browsers."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.server.pages import pages

router = APIRouter(include_in_schema=False)


async def _page(request: Request) -> Response:
    page = pages()[request.url.path]
    if request.headers.get("if-none-match") == page.headers["etag"]:
        return Response(status_code=304, headers=page.headers)
    return Response(page.content, headers=page.headers)


for _path in pages():
    router.add_api_route(_path, _page, methods=["GET"], response_model=None)
