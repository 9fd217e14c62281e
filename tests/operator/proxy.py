"""A proxy between a client and an API server that records every request and fails those that a test selects."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from e2e.cluster import ApiServer, kubeconfig
from tests.wait import TIMEOUT

_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}
WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class Seen:
    """A request whose response has begun. Status 0 means that the proxy dropped the connection."""

    method: str
    path: str  # with the query
    status: int


@dataclass
class Fault:
    """Answers `times` requests with `status`, after `after` matching requests have passed.

    Attributes:
        status: HTTP status; 0 drops the connection without an answer.
        path: expression that is searched in path and query.
        in_stream: the answer is 200 and a stream with one event, an error of that status, as in a watch.
        headers_only: the body does not follow the headers until `release`.
    """

    status: int
    path: str = ""
    times: int = 1
    after: int = 0
    in_stream: bool = False
    headers_only: bool = False
    hits: int = field(default=0, init=False)

    def takes(self, path: str) -> bool:
        if not re.search(self.path, path):
            return False
        self.hits += 1
        return self.after < self.hits <= self.after + self.times


class FaultProxy:
    """Listens on http://127.0.0.1 in its own thread, while its `with` block runs.

    Attributes:
        url: its address, for `ApiServer.kubeconfig_through(url)` and `service_account_kubeconfig(..., server=url)`.
        seen: the requests so far, oldest first.
        faults: requests to fail; tests append.
        hold: called in the proxy's thread with each request's method, path with query, and body. A request for which it
            returns True waits until `release`.
    """

    def __init__(self, server: ApiServer) -> None:
        self._access = kubeconfig.read(server.kubeconfig)
        self.url = ""
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []
        self.hold: Callable[[str, str, bytes], bool] = lambda method, path, body: False
        self._released = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._transports: dict[web.StreamResponse, asyncio.Transport] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def fail(self, status: int, path: str = "", **how: Any) -> Fault:
        """Adds a fault and returns it. Its `hits` counts the matching requests."""
        fault = Fault(status, path, **how)
        self.faults.append(fault)
        return fault

    def writes(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.method in WRITES]

    def watching(self) -> int:
        """Returns the number of open watches."""
        return len(self._transports)

    def drop_watches(self) -> int:
        """Breaks the connection of every open watch in the middle of its stream, and returns their number."""
        return int(self._call(self._drop()))

    def release(self) -> None:
        """Lets all held requests pass. From now on `hold` has no effect."""
        self._loop.call_soon_threadsafe(self._released.set)

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=TIMEOUT)

    async def _start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        self._upstream = aiohttp.ClientSession(timeout=timeout, auto_decompress=False, trust_env=False)
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        await self._drop()
        await self._runner.cleanup()
        await self._upstream.close()
        held = asyncio.all_tasks() - {asyncio.current_task()}  # their clients may have disconnected without notice
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    async def _drop(self) -> int:
        open_watches = list(self._transports.values())
        self._transports.clear()
        for transport in open_watches:
            transport.abort()
        return len(open_watches)

    def _record(self, request: web.Request, status: int) -> None:
        self.seen.append(Seen(request.method, request.path_qs, status))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        for fault in self.faults:
            if fault.takes(request.path_qs):
                return await self._fail(request, fault)
        body = await request.read()
        if self.hold(request.method, request.path_qs, body):
            await self._released.wait()
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP_BY_HOP}
        url = self._access.server + request.raw_path
        async with self._upstream.request(
            request.method,
            URL(url, encoded=True),
            headers=headers,
            data=body or None,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            ssl=self._access.tls,
        ) as answer:
            return await self._pass_on(request, answer)

    async def _pass_on(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        headers = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP_BY_HOP}
        if request.query.get("watch", "") not in ("1", "true"):
            body = await answer.read()
            self._record(request, answer.status)
            return web.Response(status=answer.status, headers=headers, body=body)
        response = web.StreamResponse(status=answer.status, headers=headers)
        self._record(request, answer.status)
        await response.prepare(request)
        assert isinstance(request.transport, asyncio.Transport)
        self._transports[response] = request.transport
        try:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
        except ConnectionError:
            pass  # the client has disconnected, or its watch was dropped
        finally:
            self._transports.pop(response, None)
        return response

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        self._record(request, fault.status)
        if fault.status == 0:
            assert isinstance(request.transport, asyncio.Transport)
            request.transport.abort()
            raise ConnectionResetError("dropped on demand")
        status = {"apiVersion": "v1", "kind": "Status", "code": fault.status, "message": "the test's proxy answers"}
        if fault.headers_only:
            response = web.StreamResponse(status=fault.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await self._released.wait()
            return response
        if fault.in_stream:
            return web.Response(text=json.dumps({"type": "ERROR", "object": status}) + "\n")
        return web.json_response(status, status=fault.status)
