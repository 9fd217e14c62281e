"""The OpenAPI document: schemas of declared fields, `decoding` and API keys, and docs of routes that parse bodies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar, get_type_hints

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from runtime.request.decoding import engine_fields
from runtime.request.engine_messages import EngineInfo
from runtime.request.field_spec import Field, Limits
from runtime.server.serving.handler import ErrorResponse, RouteHandler, ServingHandler, json_endpoint

_TYPES = {"number": "number", "integer": "integer", "flag": "boolean", "choice": "string", "text": "string"}

DECODING = "#/components/schemas/Decoding"


def decoding_schema(info: EngineInfo | None) -> dict[str, Any]:
    """JSON schema of a request's ``decoding``; any object until an engine is known."""
    schema: dict[str, Any] = {"type": "object", "title": "Decoding", "description": "How blocks are denoised."}
    if info is None:
        return schema
    defaults = info.defaults().values
    properties = {
        field.name: _nullable(values_schema(field), field.help)
        | ({} if field.default == "" else {"default": field.default})
        for field in engine_fields(info)
    }
    for name, (field, rules) in _declared(info).items():
        outer, _, inner = name.rpartition(".")
        target = properties
        if outer:
            nested_object = {"type": "object", "properties": {}, "additionalProperties": False}
            nested = properties.setdefault(outer, _nullable(nested_object, f"numbers of the {rules[0]} rule"))
            target = nested["anyOf"][0]["properties"]
        target[inner] = _nullable(values_schema(field), field.help + (f" ({', '.join(rules)})" if rules else ""))
        target[inner] |= {"default": defaults.get(name, field.default), "x-unmask-rules": rules}
    return schema | {"properties": properties, "additionalProperties": False}


def set_sampling_defaults(schemas: dict[str, Any], info: EngineInfo) -> None:
    """Sets the defaults of sampling in the schemas of requests, whose fields have one, unlike those of responses."""
    for schema in schemas.values():
        for name, value in info.sampling.items():
            field = schema.get("properties", {}).get(name, {})
            if "default" in field:
                field["default"] = value


def request_defaults(info: EngineInfo) -> dict[str, Any]:
    """Returns the model's length, and the values of requests that set none: sampling, `decoding`, and per algorithm its
    fields and modes."""
    declared = (*engine_fields(info), *info.strategy_fields)
    return {
        "max_model_len": info.max_model_len,
        "max_tokens": info.default_max_tokens,
        **info.sampling,
        "decoding": {field.name: field.default for field in declared if field.default != ""},
        "algorithms": {
            algorithm.key: {
                "fields": {field.name: field.default for field in algorithm.fields},
                "modes": algorithm.modes,
            }
            for algorithm in info.algorithms
        },
    }


def secure(schema: dict[str, Any], open_paths: Collection[str]) -> None:
    """Adds the required keys to all routes but those of `open_paths`."""
    schema["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "one of the server's keys"},
        "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "the same, as Anthropic's"},
    }
    schema["security"] = [{"bearer": []}, {"header": []}]
    for path, methods in schema["paths"].items():
        if path in open_paths:
            for operation in methods.values():
                operation["security"] = []


def _declared(info: EngineInfo) -> dict[str, tuple[Field, list[str]]]:
    """Returns fields by name, each with the algorithms that read it; fields of the strategy have none."""
    found: dict[str, tuple[Field, list[str]]] = {field.name: (field, []) for field in info.strategy_fields}
    for rule in info.algorithms:
        for field in rule.fields:
            found.setdefault(field.name, (field, []))[1].append(rule.key)
    return found


def _nullable(kind: dict[str, Any], description: str) -> dict[str, Any]:
    return {"anyOf": [kind, {"type": "null"}], "description": description}


def values_schema(limits: Limits) -> dict[str, Any]:
    """Returns the JSON schema of the valid values of a declared field, except ids and objects."""
    schema: dict[str, Any] = {"type": _TYPES[limits.kind]}
    if limits.kind == "choice":
        schema["enum"] = list(limits.choices)
    elif limits.kind == "text":
        schema["maxLength"] = limits.high
    elif limits.kind != "flag":
        schema["exclusiveMinimum" if limits.above_low else "minimum"] = limits.low
        if limits.high is not None:
            schema["maximum"] = limits.high
    return schema


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


def type_schemas() -> dict[str, Any]:
    """Returns the schemas of the bodies, responses and events of all routes, and of what they consist of.

    Fields with a constant value get a generated description.
    """
    kinds: list[Any] = [(name, "validation", TypeAdapter(kind)) for name, kind in sorted(REFERENCED.items())]
    _, found = TypeAdapter.json_schemas(kinds, ref_template="#/components/schemas/{model}")
    schemas: dict[str, Any] = found["$defs"]
    for schema in schemas.values():
        properties = schema.get("properties", {})
        for field in properties.values():
            if "const" in field or field.get("type") == "null":
                field.setdefault("description", f"always `{field['const']}`" if "const" in field else "always null")
        if "decoding" in properties:
            properties["decoding"]["anyOf"] = [{"$ref": DECODING}, {"type": "null"}]
    return schemas


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


def json_route(router: APIRouter, path: str, summary: str, *, error: type = ErrorResponse) -> Callable[[F], F]:
    """Returns a decorator that registers a function as a route with a JSON body.

    Args:
        router: gets the route. OpenAI's routes are also served without /v1, for clients with such a base URL.
        path: path of the route.
        summary: title in the API docs, whose text is the docstring of the function.
        error: type of errors.

    The function gets `ServerContext`, request and parsed body. Its annotations have the types of the body, and of the
    response that it returns. A route for generation returns a `ServingHandler`, whose `full_response` has that type.
    """

    def register(function: F) -> F:
        hints = get_type_hints(function)
        body, answer = hints["body"], hints["return"]
        generates = issubclass(answer, ServingHandler)
        kind = get_type_hints(answer.full_response)["return"] if generates else answer
        statuses = (400, 401, 403, 404, 408, 413, 415, 429, *((500, 503, 504) if generates else (503,)))
        docs = response_doc(kind, *statuses, error=error)
        if generates:
            docs["responses"][200]["content"]["text/event-stream"] = _stream_doc(answer)
        required = {"required": True, "content": {"application/json": {"schema": schema_ref(body)}}}
        docs["openapi_extra"] = {"requestBody": required}
        endpoint = json_endpoint(body, function, generates=generates)
        endpoint.__doc__ = function.__doc__
        add = functools.partial(router.add_api_route, endpoint=endpoint, methods=["POST"], name=function.__name__)
        if "OpenAI" in router.tags:
            add(path.removeprefix("/v1"), include_in_schema=False, response_model=None)
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
