"""``GET /`` and ``/docs``: the playground, and the interface's description, for browsers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.server.pages import Page, pages

router = APIRouter(include_in_schema=False)


def _serve(page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        # the mark stands in quotes: alone, in a list, or marked as weak by a proxy that packs what passes
        if page.headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=page.headers)
        return Response(page.content, headers=page.headers)

    return serve


for _path, _page in pages().items():
    router.add_api_route(_path, _serve(_page), methods=["GET"], response_model=None)
