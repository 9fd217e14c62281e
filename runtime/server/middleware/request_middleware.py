"""Middleware of all HTTP requests: request id, origin, API key, count of requests in flight, errors, access log."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.errors import RequestError
from runtime.server.admin.docs import STATE_PATH, pages
from runtime.server.anthropic.protocol import error_object as messages_error
from runtime.server.http_protocol.error_responses import error_object, error_response
from runtime.server.http_protocol.limits import OPEN_PATHS
from runtime.server.logs import redacted
from runtime.server.middleware.auth import ApiKeys, OriginPolicy
from runtime.server.middleware.tracing import Tracing
from runtime.server.serving.context import ServerContext
from runtime.server.serving.job import GenerationJob
from runtime.server.serving.request_body import ClientGone
from runtime.server.serving.routes import RouteHandler

log = logging.getLogger("unmask.http")
access_log = logging.getLogger("unmask.access")
rejected_log = logging.getLogger("unmask.refused")  # limited, as any client can cause these lines

MAX_REASON = 300  # characters of a refusal

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestMiddleware:
    """ASGI middleware; adds ``X-Request-Id`` to every response, and ``Connection: close`` while the server drains.

    `fast_routes`: handlers by method and path that are called without the framework, which would take as long as a
    short response.
    """

    def __init__(
        self, app: ASGIApp, context: ServerContext, keys: ApiKeys, tracer: Tracing | None,
        fast_routes: Mapping[tuple[str, str], RouteHandler],
    ) -> None:  # fmt: skip
        self.app, self.context, self.keys, self.tracer = app, context, keys, tracer
        self.fast_routes = fast_routes
        self.open = OPEN_PATHS | pages().keys() | {STATE_PATH}
        config = context.config
        self.requires_key = config.requires_key
        self.origins = OriginPolicy(config.host, config.cors_allow_origins, config.allowed_hosts, pages().keys())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self.context  # the scope is always "http": `HttpServer` has no lifespan events and no websockets
        headers: dict[bytes, bytes] = dict(scope["headers"])
        sent_id = headers.get(b"x-request-id", b"")
        request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else uuid.uuid4().hex.encode()

        state = scope.setdefault("state", {})
        if "//" in scope["path"]:  # of clients that append a path to a base URL that ends with a slash
            scope = {**scope, "path": re.sub("/{2,}", "/", scope["path"])}
        if scope["method"] == "HEAD":  # as GET; the connection sends no body
            scope = {**scope, "method": "GET"}

        status = 0  # of the answer, once it has begun
        arrived = time.monotonic()

        def begin(code: int, added: list[tuple[bytes, bytes]]) -> None:
            """Adds the headers of all responses to those of a response that begins."""
            nonlocal status
            status = code
            added.append((b"x-request-id", request_id))
            if code < 400 and (ignored := state.get("ignored")):
                added.append((b"x-unmask-ignored", ", ".join(ignored).encode()))
                context.log_unsupported(state.get("unsupported", ()))
            if context.draining:
                added.append((b"connection", b"close"))

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ())]
                begin(message["status"], message["headers"])
            await send(message)

        context.in_flight += 1
        try:
            self._admit(scope, headers)
            route = self.fast_routes.get((scope["method"], scope["path"]))
            if route is None:
                await self.app(_without_parameters(scope), receive, send_marked)
            else:
                response = await route(Request(scope, receive, send))
                begin(response.status_code, response.raw_headers)
                await response(scope, receive, send)
        except RequestError as error:
            if isinstance(error, ClientGone):
                state["client_gone"] = True
            else:
                state["refusal"] = redacted(error)
            await error_response_for(scope["path"], error)(scope, receive, send_marked)
        except Exception:
            shown_id = request_id.decode()
            log.exception("request %s failed with an internal error; report it with this traceback", shown_id)
            if status:
                raise  # the connection is closed in the middle of the answer
            message = f"internal server error; the server log has details under request id {shown_id}"
            failure = RequestError(message, status=500, code="internal_error")
            await error_response_for(scope["path"], failure)(scope, receive, send_marked)
        finally:
            context.in_flight -= 1
            seconds = time.monotonic() - arrived
            try:
                if (job := state.get("job")) is not None:
                    await job.receive_aborted()
            finally:  # also if the server cancels this task meanwhile
                log_request(scope["method"], scope["path"], status, seconds, state, scope["path"] in self.open)
            traced = (scope["method"], scope["path"]) in self.fast_routes and scope["path"] not in self.open
            if self.tracer is not None and traced and status != 401:
                self.tracer.record(scope, request_id.decode(), context.names[0], status, arrived)

    def _admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Raises RequestError for an invalid id, a page of another origin, or a missing or invalid key."""
        if not _REQUEST_ID.fullmatch(headers.get(b"x-request-id", b"-")):
            message = "X-Request-Id: must be 1 to 128 printable ASCII characters without spaces"
            raise RequestError(message, param="X-Request-Id")
        if not self.requires_key:
            self.origins.check(scope)
        elif scope["path"] not in self.open:
            key_id = self.keys.check(headers.get(b"authorization"), headers.get(b"x-api-key"))
            scope["state"]["api_key_id"] = key_id


_MESSAGES = "/v1/messages"  # the route, and those below it


def error_response_for(path: str, error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    """Returns an error response in the form of the API that `path` belongs to."""
    is_messages = path == _MESSAGES or path.startswith(_MESSAGES + "/")
    return error_response(error, headers, messages_error if is_messages else error_object)


def _without_parameters(scope: Scope) -> Scope:
    """Returns the scope without query string and cookies, which no route has.

    The framework parses both before it calls a route, also for clients without a key: 64 KiB of them take 20 ms.
    """
    headers = [header for header in scope["headers"] if header[0] != b"cookie"]
    return {**scope, "query_string": b"", "headers": headers}


def log_request(
    method: str, path: str, status: int, seconds: float, state: dict[str, Any], quiet: bool = False
) -> None:
    """Logs one request.

    Args:
        state: state of the ASGI scope, with the job, the rejection, and whether the client disconnected, if any.
        quiet: log at level DEBUG, for probes, scrapers and the page, which are requested every few seconds.
    """
    level = logging.DEBUG if quiet else logging.INFO
    if not access_log.isEnabledFor(level):
        return
    shown_path = _printable(path[:80])
    fields: dict[str, Any] = {"method": method, "path": shown_path, "status": status, "seconds": round(seconds, 4)}
    parts = [f"{seconds:.3f} s"]
    job: GenerationJob | None = state.get("job")
    if job is not None:
        prompt_tokens = job.prompt_tokens
        tokens = sum(choice.generated for choice in job.submitted)
        forwards = sum(choice.forwards for choice in job.submitted)
        ends = sorted({choice.finish_reason or job.outcome for choice in job.choices})
        fields |= {"id": job.id, "prompt_tokens": prompt_tokens, "tokens": tokens}
        fields |= {"forwards": forwards, "ended_by": ends}
        parts = [job.id, f"{prompt_tokens}+{tokens} tokens", f"{forwards} forwards", *parts, " ".join(ends)]
    reason = state.get("refusal")
    if reason:
        fields["reason"] = _printable(reason[:MAX_REASON])
        parts.append(fields["reason"])
    line = f"{method} {shown_path} {status} {', '.join(parts)}"
    gone = state.get("client_gone", False)
    rejected = 400 <= status < 500 or status == 503
    form = "aborted by the client: %s" if gone else f"rejected with {status}: %s" if rejected else "%s"
    log_of = rejected_log if rejected and not (gone and job is not None) else access_log
    log_of.log(level, form, line, extra={"fields": fields})


def _printable(text: str) -> str:
    """Returns a text of a client on one line."""
    return text.encode("unicode_escape").decode()
