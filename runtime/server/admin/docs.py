"""Serves the playground and the API docs to browsers.

The files are the same for all clients, so they need no key. `STATE_PATH` needs none either: it returns what
``/startup`` returns, and whether requests need a key.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.server.serving.context import Context
from runtime.server.serving.handler import json_response

# Only files of this server, no inline scripts, no frames: text that the page failed to escape would not be executed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{inline}; img-src 'self' data:; font-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}
STATE_PATH = "/playground/state"
_SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css")


class Page(NamedTuple):
    """The content of a file and its headers."""

    content: bytes
    headers: Mapping[str, str]


@functools.cache
def pages() -> Mapping[str, Page]:
    """Returns the files by path."""
    own = {file.name: file.read_bytes() for file in files("runtime.server.playground").iterdir() if file.is_file()}
    contents = {
        "/": own.pop("index.html"),
        "/docs": own.pop("docs.html"),
        **{f"/playground/{name}": content for name, content in own.items() if name.rpartition(".")[2] in _TYPES},
    }
    swagger = files("fastapi_swagger") / "resources"
    contents |= {f"/docs/{name}": (swagger / name).read_bytes() for name in _SWAGGER}
    return {path: Page(content, _headers(path, content)) for path, content in contents.items()}


def _headers(path: str, content: bytes) -> dict[str, str]:
    kind = path.rpartition(".")[2] if "." in path else "html"
    policy = _POLICY.format(inline=" 'unsafe-inline'" if path == "/docs" else "")  # Swagger UI styles its elements
    return {
        "content-type": _TYPES[kind],
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",  # revalidated each time
        "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }


router = APIRouter(include_in_schema=False)


async def _serve(request: Request) -> Response:
    page = pages()[request.scope["route"].path]  # "/docs%0A" matches the route of "/docs"
    # the ETag may be alone, in a list, or marked as weak by a compressing proxy
    if page.headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=page.headers)
    return Response(page.content, headers=page.headers)


for _path in pages():
    router.add_api_route(_path, _serve, methods=["GET"], response_model=None)


@router.get(STATE_PATH, response_model=None)
async def state(context: Context) -> Response:
    """Returns whether the model is loaded and whether requests need a key, always with status 200.

    The playground polls it instead of ``/startup``, because browsers log every other status as an error.
    """
    phase, done, total = context.engine_client.progress()
    loaded = context.tokenizer is not None and context.engine_client.info is not None
    percent = round(100 * done / total, 1) if total else 0.0
    return json_response(
        {"loaded": loaded, "phase": phase, "percent": percent, "api_key_required": context.config.requires_key}
    )
