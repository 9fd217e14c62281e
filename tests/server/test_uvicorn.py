"""What `runtime/server/wire/exchange.py` relies on in uvicorn and no interface of its promises."""

from __future__ import annotations

import asyncio
import inspect
import logging
from types import SimpleNamespace
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

GIVEN = ["scope", "transport", "flow", "logger", "access_logger", "access_log", "default_headers", "message_event"]
GIVEN += ["expect_100_continue", "keep_alive", "on_response"]
USED = ["body", "more_body", "disconnected", "keep_alive", "response_started", "response_complete", "message_event"]
METHODS = ["run_asgi", "send", "receive"]
OF_TRANSPORT = ["write", "close", "is_closing"]
OF_FLOW = ["write_paused", "drain", "resume_reading"]


def test_uvicorns_cycle_is_the_one_that_exchanges_were_written_for() -> None:
    hint = f"uvicorn {uvicorn.__version__} changed what Exchange relies on: mend it, then the bounds in pyproject.toml"
    assert list(inspect.signature(RequestResponseCycle).parameters) == GIVEN, hint
    cycle = RequestResponseCycle(
        scope=cast(Any, {}),
        transport=cast(Any, None),
        flow=cast(Any, None),
        logger=logging.getLogger(),
        access_logger=logging.getLogger(),
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )
    assert [name for name in USED + METHODS if not hasattr(cycle, name)] == [], hint


def test_an_answer_goes_through_what_connections_offer_in_the_place_of_transport_and_flow() -> None:
    """Over objects that have nothing else: anything more that uvicorn asks of them is an AttributeError."""

    async def answer() -> bytes:
        sent = bytearray()
        complete: list[bool] = []

        async def drain() -> None: ...

        transport = SimpleNamespace(write=sent.extend, close=lambda: None, is_closing=lambda: False)
        flow = SimpleNamespace(write_paused=True, drain=drain, resume_reading=lambda: None)
        assert sorted(vars(transport)) == sorted(OF_TRANSPORT)
        assert sorted(vars(flow)) == sorted(OF_FLOW)
        cycle = RequestResponseCycle(
            scope=cast(Any, {"method": "POST", "path": "/"}),
            transport=cast(Any, transport),
            flow=cast(Any, flow),
            logger=logging.getLogger("uvicorn.error"),
            access_logger=logging.getLogger("uvicorn.error"),
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=True,
            keep_alive=False,
            on_response=lambda: complete.append(True),
        )
        cycle.body += b"abc"
        cycle.more_body = False
        cycle.message_event.set()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert (await receive())["body"] == b"abc"
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"answer"})

        await cycle.run_asgi(cast(Any, app))
        assert complete == [True]
        return bytes(sent)

    sent = asyncio.run(answer())
    assert sent.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert b"answer" in sent
