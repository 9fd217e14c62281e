"""How routes that read their body themselves appear in the OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

_ERROR = {"$ref": "#/components/schemas/ErrorResponse"}
_MEANINGS = {
    400: "a value or combination that cannot be served, named",
    401: "no key, or a wrong one",
    404: "no such model or route",
    408: "the body did not arrive in time",
    409: "not possible in the server's present state",
    413: "the body is too large",
    429: "the queue is full; see Retry-After",
    500: "the engine failed on this request",
    501: "not built in this version",
    503: "no backend serves at the moment; see Retry-After",
    504: "the request took too long",
}


Answers = Callable[[Request], Coroutine[Any, Any, Response]]


class OwnBody(APIRoute):
    """A route whose function takes the request and gives the response. FastAPI knows it for the OpenAPI; the gate finds
    it by its path (``at_once``)."""

    def get_route_handler(self) -> Answers:
        handler: Answers = self.endpoint
        return handler


def at_once(routers: Iterable[APIRouter]) -> dict[tuple[str, str], Answers]:
    """The functions of such routes by method and path."""
    routes = [route for router in routers for route in router.routes if isinstance(route, OwnBody)]
    return {(method, route.path): route.endpoint for route in routes for method in route.methods or ()}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for OpenAI error objects."""
    return {s: {"description": _MEANINGS[s], "content": {"application/json": {"schema": _ERROR}}} for s in statuses}


def takes(body: type[BaseModel], *, streams: bool = False) -> dict[str, Any]:
    """Keyword arguments of a route whose JSON body is `body`."""
    ok: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        ok["text/event-stream"] = {"schema": {"type": "string"}}
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    statuses = (400, 401, 404, 408, 413, 429, 500, 503, 504) if streams else (400, 401, 404, 408, 413, 429, 503)
    return {
        "responses": {**errors(*statuses), 200: {"description": "the answer", "content": ok}},
        "openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
        "response_model": None,
    }
