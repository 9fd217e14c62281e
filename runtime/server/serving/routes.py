"""Routes with a JSON body: how they are called, and their part of the OpenAPI document."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar, get_type_hints

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.server.http_protocol.error_responses import ErrorResponse
from runtime.server.serving.context import ServerContext
from runtime.server.serving.handler import ResponseHandler, ServingHandler, json_response

_MEANINGS = {
    400: "invalid value or combination; the message names the field",
    401: "missing or invalid API key",
    403: "not allowed for clients of this server, for pages of other origins, or with this host name",
    404: "no such model or route",
    408: "the body did not arrive in time",
    409: "not possible in the current state of the server",
    413: "the body is too large",
    415: "a Content-Encoding that is not supported; see Accept-Encoding",
    429: "the queue is full; see Retry-After",
    500: "internal error",
    503: "no engine process is ready; see Retry-After",
    504: "timeout",
}


def _header(name: str, description: str, kind: str = "string") -> dict[str, Any]:
    return {"headers": {name: {"description": description, "schema": {"type": kind}}}}


_HEADERS = {
    401: _header("WWW-Authenticate", "which keys there are"),
    415: _header("Accept-Encoding", "supported codings"),
    **dict.fromkeys((429, 503), _header("Retry-After", "seconds", "integer")),
}


RouteHandler = Callable[[Request], Coroutine[Any, Any, Response]]


class RawBodyRoute(APIRoute):
    """A route whose function takes the request and returns the response.

    FastAPI has it for the OpenAPI document. `RequestMiddleware` calls it directly, found by its path (`fast_routes`).
    """

    def get_route_handler(self) -> RouteHandler:
        handler: RouteHandler = self.endpoint
        return handler


def fast_routes(routers: Iterable[APIRouter]) -> dict[tuple[str, str], RouteHandler]:
    """Returns the functions of raw-body routes by method and path."""
    routes = [route for router in routers for route in router.routes if isinstance(route, RawBodyRoute)]
    return {(method, route.path): route.endpoint for route in routes for method in route.methods or ()}


REFERENCED: dict[str, type] = {}  # by their names, the types that routes refer to


def schema_ref(kind: type) -> dict[str, str]:
    """Returns a reference to a schema of the document. `type_schemas` adds the schema."""
    assert REFERENCED.setdefault(kind.__name__, kind) is kind, kind  # a reference has the name alone
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def error_docs(*statuses: int, kind: type = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for error objects."""
    return {status: {**_json(_MEANINGS[status], kind), **_HEADERS.get(status, {})} for status in statuses}


def response_doc(
    kind: type, *statuses: int, error: type = ErrorResponse, unready: type | None = None
) -> dict[str, Any]:
    """Returns keyword arguments of a route with responses of type `kind`.

    Args:
        kind: type of the response with status 200.
        statuses: further statuses, with responses of type `error`.
        error: type of errors.
        unready: type of the response with status 503, if it is no error.
    """
    responses = {200: _json("the answer", kind), **error_docs(*statuses, kind=error)}
    if unready is not None:
        responses |= error_docs(503, kind=unready)
    return {"responses": responses, "response_model": None}


F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def json_route(
    router: APIRouter, path: str, summary: str, *, short: str = "", error: type = ErrorResponse
) -> Callable[[F], F]:
    """Returns a decorator that registers a function as a route with a JSON body.

    Args:
        router: gets the route.
        path: path of the route.
        summary: title in the API docs, whose text is the docstring of the function.
        short: path under which it is also served, for clients whose base URL lacks the version; "" for none.
        error: type of errors.

    The function gets `ServerContext`, request and parsed body, which is not referenced afterwards. Its annotations have
    the types of the body, and of the response that it returns. A route that uses the engine returns a
    `ResponseHandler`, whose `full_response` has that type.
    """

    def register(function: F) -> F:
        hints = get_type_hints(function)
        body, returned = hints["body"], hints["return"]
        generates = issubclass(returned, ResponseHandler)
        kind = get_type_hints(returned.full_response)["return"] if generates else returned
        statuses = (400, 401, 403, 404, 408, 413, 415, 429, *((500, 503, 504) if generates else (503,)))
        docs = response_doc(kind, *statuses, error=error)
        if issubclass(returned, ServingHandler):
            docs["responses"][200]["content"]["text/event-stream"] = _stream_doc(returned)
        required = {"required": True, "content": {"application/json": {"schema": schema_ref(body)}}}
        docs["openapi_extra"] = {"requestBody": required}

        async def endpoint(request: Request) -> Response:
            context: ServerContext = request.app.state.context
            try:
                answer = await function(context, request, await context.body(request, body))
            except RequestError as error:
                if generates:  # rejected before it reached an engine
                    outcome = "aborted" if error.status == 499 else "refused"
                    context.engine_client.request_metrics.requests.labels(outcome).inc()
                raise
            return await answer.respond(request) if generates else json_response(answer)

        endpoint.__doc__ = function.__doc__
        add = functools.partial(router.add_api_route, endpoint=endpoint, methods=["POST"], name=function.__name__)
        if short:
            add(short, include_in_schema=False, response_model=None)
        add(path, summary=summary, **docs)
        return function

    return register


def _json(text: str, kind: type) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema_ref(kind)}}}


def _stream_doc(handler: type[ServingHandler]) -> dict[str, Any]:
    """Returns the content of server-sent events.

    `itemSchema` (OpenAPI 3.2) has the type of the data of an event. Readers of OpenAPI 3.1 ignore it and see a text.
    """
    names = ", ".join(kind.__name__ for kind in handler.event_types)
    end = " The last says [DONE]." if handler.last_event else ""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [schema_ref(kind) for kind in handler.event_types]},
    }
    item = {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}
    text = f"Server-sent events, with `stream` true: the data of each is JSON, one of {names}.{end}"
    return {"schema": {"type": "string", "description": text}, "itemSchema": item}
