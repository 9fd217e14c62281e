"""How routes that read their body themselves appear in the OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from runtime.server.answers.common import ErrorResponse

_MEANINGS = {
    400: "a value or combination that cannot be served, named",
    401: "no key, or a wrong one",
    403: "not allowed to clients of this server, to pages of other origins, or by this host name",
    404: "no such model or route",
    408: "the body did not arrive in time",
    409: "not possible in the server's present state",
    413: "the body is too large",
    415: "a Content-Encoding that is not supported; see Accept-Encoding",
    429: "the queue is full; see Retry-After",
    500: "the engine failed on this request",
    501: "not built in this version",
    503: "no backend serves at the moment; see Retry-After",
    504: "the request took too long",
}
_SECONDS = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
_BEARER = {"WWW-Authenticate": {"description": "which keys there are", "schema": {"type": "string"}}}
_CODINGS = {"Accept-Encoding": {"description": "supported codings", "schema": {"type": "string"}}}
_HEADERS = {
    401: {"headers": _BEARER},
    415: {"headers": _CODINGS},
    429: {"headers": _SECONDS},
    503: {"headers": _SECONDS},
}

RouteHandler = Callable[[Request], Coroutine[Any, Any, Response]]


class RawBodyRoute(APIRoute):
    """A route whose function takes the request and gives the response. FastAPI knows it for the OpenAPI; the gate finds
    it by its path (``at_once``)."""

    def get_route_handler(self) -> RouteHandler:
        handler: RouteHandler = self.endpoint
        return handler


def fast_routes(routers: Iterable[APIRouter]) -> dict[tuple[str, str], RouteHandler]:
    """The functions of such routes by method and path."""
    routes = [route for router in routers for route in router.routes if isinstance(route, RawBodyRoute)]
    return {(method, route.path): route.endpoint for route in routes for method in route.methods or ()}


def schema_ref(kind: type) -> dict[str, str]:
    """What stands for a type of ``App.openapi``'s."""
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def error_docs(*statuses: int, kind: type = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for error objects."""
    return {status: {**_json(_MEANINGS[status], kind), **_HEADERS.get(status, {})} for status in statuses}


def response_doc(kind: type, refusals: dict[int | str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """Keyword arguments of a route whose answer is a `kind`."""
    return {"responses": {200: _json("the answer", kind), **(refusals or {})}, "response_model": None}


def json_route(
    body: type[BaseModel], answer: type, events: Sequence[type] = (), *, done: bool = True,
    error: type = ErrorResponse,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of a route whose JSON body is `body`.

    Args:
        answer: what it gives in one piece. events: what the data of its stream's events are, if it streams. done: and
            the last is ``[DONE]``. error: what its refusals are.
    """
    statuses = (400, 401, 403, 404, 408, 413, 415, 429, *((500,) if events else ()), 503, *((504,) if events else ()))
    found = response_doc(answer, refusals=error_docs(*statuses, kind=error))
    if events:
        found["responses"][200]["content"]["text/event-stream"] = _stream(events, done=done)
    required = {"required": True, "content": {"application/json": {"schema": schema_ref(body)}}}
    return {**found, "openapi_extra": {"requestBody": required}}


def _json(text: str, kind: type) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema_ref(kind)}}}


def _stream(events: Sequence[type], *, done: bool) -> dict[str, Any]:
    """Of server-sent events. `itemSchema` is OpenAPI 3.2's, which has the type of an event's data; readers of 3.1, who
    skip it, see a text."""
    names = ", ".join(kind.__name__ for kind in events)
    end = " The last says [DONE]." if done else ""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [schema_ref(kind) for kind in events]},
    }
    item = {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}
    text = f"Server-sent events, with `stream` true: the data of each is JSON, one of {names}.{end}"
    return {"schema": {"type": "string", "description": text}, "itemSchema": item}
