"""The HTTP application: routes, error objects for every failure, OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

import runtime
from runtime.config.suggestions import did_you_mean
from runtime.errors import RequestError
from runtime.server.admin import docs, routes, tokenize
from runtime.server.anthropic import messages
from runtime.server.decisions import serving as decisions
from runtime.server.generate import serving
from runtime.server.http_protocol.limits import OPEN_PATHS
from runtime.server.llama_cpp import infill
from runtime.server.middleware.auth import ApiKeys
from runtime.server.middleware.request_middleware import RequestMiddleware, error_response_for
from runtime.server.middleware.tracing import Tracing
from runtime.server.mistral import fim
from runtime.server.openai import chat, completions, responses
from runtime.server.openapi import decoding_schema, request_defaults, secure, set_sampling_defaults, type_schemas
from runtime.server.serving.context import ServerContext
from runtime.server.serving.routes import RouteHandler, fast_routes

TAGS = {  # groups of the API docs, in order
    "OpenAI": "Routes of OpenAI's API.",
    "Anthropic": "Routes of Anthropic's API.",
    "Editors": "Routes that complete a text at a cursor.",
    "Decisions": "Typed questions, answered with probabilities.",
    "Denoising": "Routes whose streams show each denoising step.",
    "Tokens": "Token ids as generation routes use them.",
    "Models": "Names for the field `model`.",
    "Adapters": "LoRA adapters.",
    "State": "Probes and metrics.",
    "Profiles": "Profiles of the engine processes.",
}
MAX_SUGGESTED_FOR = 64  # characters of a path that similar routes are searched for; bounds the CPU time of a 404


class App(FastAPI):
    """FastAPI with an OpenAPI document of routes that parse their bodies themselves, and of the keys that they need.

    Attributes:
        fast_routes: handlers by method and path that are called without the framework, whose middleware would take as
            long as a short answer.
        without_framework: middleware of these routes.
    """

    fast_routes: Mapping[tuple[str, str], RouteHandler]
    without_framework: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (scope["method"], scope["path"]) in self.fast_routes:
            scope["app"] = self
            await self.without_framework(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        context: ServerContext = self.state.context
        if self.openapi_schema is None:
            schema = super().openapi()  # which also keeps it
            schema.setdefault("components", {})["schemas"] = type_schemas()
            for operation in (one for methods in schema["paths"].values() for one in methods.values()):
                operation["responses"].pop("422", None)  # the framework's: a wrong value is 400 here
            if context.config.requires_key:
                secure(schema, OPEN_PATHS)
            self.openapi_schema = schema
        info = context.engine_client.info
        self.openapi_schema["components"]["schemas"]["Decoding"] = decoding_schema(info)
        if info is not None:
            self.openapi_schema["x-unmask-defaults"] = request_defaults(info)
            set_sampling_defaults(self.openapi_schema["components"]["schemas"], info)
        return self.openapi_schema


def make_app(context: ServerContext, keys: ApiKeys, tracer: Tracing | None) -> App:
    app = App(
        title="Unmask",
        version=runtime.__version__,
        description="A server of diffusion language models.",
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        redirect_slashes=False,
        docs_url=None,  # FastAPI's page loads files of another host
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,  # the name in generated clients
        # RequestMiddleware handles RequestError and all other exceptions
        exception_handlers={HTTPException: _http_error},
    )
    app.state.context = context
    modules = (serving, chat, completions, responses, messages, decisions, fim, infill, tokenize, routes, docs)
    routers = [*(module.router for module in modules), routes.adapter_router]
    for router in routers:
        app.include_router(router)
    app.fast_routes = {**fast_routes(routers), ("GET", "/metrics"): routes.metrics}  # pickers scrape every 50 ms

    def with_middleware(inner: ASGIApp) -> ASGIApp:
        outer: ASGIApp = RequestMiddleware(inner, context, keys, tracer, app.fast_routes)
        if context.config.cors_allow_origins:
            outer = CORSMiddleware(  # outermost: a preflight request carries no key
                outer,
                allow_origins=list(context.config.cors_allow_origins),
                allow_methods=["GET", "HEAD", "POST"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "X-Unmask-Ignored", "X-Unmask-Prompt-Format", "Retry-After"],
            )
        return outer

    app.add_middleware(with_middleware)
    app.without_framework = with_middleware(app)
    app.openapi()  # now: it takes some tenths of a second, which would delay requests
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """Returns errors of the framework: no such route, no such method."""
    assert isinstance(error, HTTPException)
    target = f"{request.method} {request.url.path[:200]}"
    missing = f"there is no route {target}"
    if len(request.url.path) <= MAX_SUGGESTED_FOR:
        missing += did_you_mean(request.url.path, request.app.openapi_schema["paths"], cutoff=0.75)
    allowed = (error.headers or {}).get("Allow", "another one")
    message = {404: missing, 405: f"{target} is not possible with this method; use {allowed}"}.get(
        error.status_code, str(error.detail)
    )
    return error_response_for(request.url.path, RequestError(message, status=error.status_code), error.headers)
