"""Middleware of all HTTP requests: request id, origin, API key, count of requests in flight, errors."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.errors import RequestError
from runtime.server.admin.docs import STATE_PATH, pages
from runtime.server.context import ServerContext
from runtime.server.http_responses import error_response
from runtime.server.middleware import access_log
from runtime.server.middleware.access_log import redacted
from runtime.server.middleware.auth import OPEN_PATHS
from runtime.server.middleware.origins import OriginPolicy
from runtime.server.openapi import RouteHandler

log = logging.getLogger("unmask.http")

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestMiddleware:
    """ASGI middleware; adds ``X-Request-Id`` to every answer, and ``Connection: close`` while the server drains.

    `at_once`: by method and path the routes that give their answers by themselves: the framework's layers have nothing
    to do for them, and a short answer is as much their work as its own.
    """

    def __init__(
        self, app: ASGIApp, context: ServerContext, fast_routes: Mapping[tuple[str, str], RouteHandler]
    ) -> None:
        self.app = app
        self.context = context
        self.fast_routes = fast_routes
        self.open = OPEN_PATHS | pages().keys() | {STATE_PATH}
        config = context.config
        self.origins = OriginPolicy(config.host, config.cors_allow_origins, config.allowed_hosts, pages().keys())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        context = self.context
        sent_id: bytes | None = None
        authorization: bytes | None = None
        api_key: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                sent_id = value
            elif name == b"authorization":
                authorization = value
            elif name == b"x-api-key":
                api_key = value
        valid = sent_id is not None and _REQUEST_ID.fullmatch(sent_id) is not None
        request_id = sent_id if sent_id is not None and valid else uuid.uuid4().hex.encode()

        state = scope.setdefault("state", {})
        if scope["method"] == "HEAD":  # wherever GET is; the connection sends no body
            scope = {**scope, "method": "GET"}

        status = 0  # of the answer, once it has begun
        arrived = time.monotonic()

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
                if unknown := state.get("ignored"):
                    headers.append((b"x-unmask-ignored", ", ".join(unknown).encode()))
                if context.draining:
                    headers.append((b"connection", b"close"))
            await send(message)

        context.in_flight += 1
        try:
            if sent_id is not None and not valid:
                raise RequestError(
                    "X-Request-Id: must be 1 to 128 printable ASCII characters without spaces", param="X-Request-Id"
                )
            if not context.keys.required:
                self.origins.check(scope)
            elif scope["path"] not in self.open:
                state["owner"] = context.keys.check(authorization, api_key)
            route = self.fast_routes.get((scope["method"], scope["path"]))
            if route is None:
                await self.app(scope, receive, send_marked)
            else:
                response = await route(Request(scope, receive, send_marked))
                await response(scope, receive, send_marked)
        except RequestError as error:  # the framework answers those of its routes
            state["refusal"] = redacted(error)
            await error_response(error, scope["path"])(scope, receive, send_marked)
        except Exception:
            log.exception("request %s failed with an internal error", request_id.decode())
            if status:
                raise  # the connection is closed in the middle of the answer
            message = f"internal server error; the server log has details under request id {request_id.decode()}"
            failure = RequestError(message, status=500, code="internal_error")
            await error_response(failure, scope["path"])(scope, receive, send_marked)
        finally:
            context.in_flight -= 1
            seconds = time.monotonic() - arrived
            access_log.log_request(scope["method"], scope["path"], status, seconds, state, scope["path"] in self.open)
            if context.tracing is not None and (scope["method"], scope["path"]) in self.fast_routes and status != 401:
                context.tracing.record(scope, request_id.decode(), context.names[0], status, arrived)
