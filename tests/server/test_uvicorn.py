"""The attributes and calls of uvicorn's protocol that `GuardedProtocol` relies on beyond those of asyncio.

uvicorn documents none of them. This test runs with each uvicorn that the requirements allow.
"""

from __future__ import annotations

import inspect

import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

METHODS = ["data_received", "on_response_complete", "send_400_response", "shutdown"]
PARSER_CALLBACKS = ["on_header", "on_headers_complete", "on_body", "on_message_complete"]
ATTRIBUTES = ["access_log", "app", "client", "cycle", "expect_100_continue", "headers", "loop", "parser", "server"]
ATTRIBUTES += ["flow", "server_state", "timeout_keep_alive_task", "transport"]
OF_A_CYCLE = ["disconnected", "keep_alive", "message_event", "more_body", "response_complete", "response_started"]
HINT = f"uvicorn {uvicorn.__version__} changed what GuardedProtocol relies on"


async def app(scope: object, receive: object, send: object) -> None: ...


def test_the_protocol_has_what_the_guard_uses() -> None:
    assert [name for name in METHODS + PARSER_CALLBACKS if not hasattr(HttpToolsProtocol, name)] == [], HINT
    source = inspect.getsource(HttpToolsProtocol.__init__)
    assert [name for name in ATTRIBUTES if f"self.{name}" not in source] == [], HINT
    assert list(inspect.signature(HttpToolsProtocol.send_400_response).parameters) == ["self", "msg"], HINT
    assert "self.read_paused" in inspect.getsource(FlowControl.__init__), HINT
    assert isinstance(ServerState().default_headers, list), HINT
    config = Config(app, http=HttpToolsProtocol, ws="none", lifespan="off")
    config.load()
    assert config.http_protocol_class is HttpToolsProtocol, HINT


def test_a_cycle_has_what_the_guard_uses() -> None:
    source = inspect.getsource(RequestResponseCycle.__init__)
    assert [name for name in OF_A_CYCLE if f"self.{name}" not in source] == [], HINT
