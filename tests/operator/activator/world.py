"""A service that sleeps, as the activator sees it: its API server in memory, and an engine on a socket of its own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from tests.wait import wait_until_async
from unmask_operator.activator.metrics import Metrics
from unmask_operator.activator.server import Server
from unmask_operator.activator.targets import Target
from unmask_operator.api.autoscaling import Zero
from unmask_operator.kinds import ENDPOINT_SLICES
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key, Obj
from unmask_operator.render.autoscaling import MANAGED_BY

KEY = Key("ns", "demo")
HOST = "127.0.0.1"


def post(body: str = "{}", *headers: str, path: str = "/v1/completions") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: demo", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", body]).encode()


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], str]:
    """Returns the status, the headers by lower-case name, and the body of one response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    return int(head[0].split()[1]), headers, (await reader.readexactly(int(headers["content-length"]))).decode()


class Engine:
    """A server that answers each request with its body, once `open` is set."""

    def __init__(self) -> None:
        self.open, self.bodies, self.unanswered, self.most = asyncio.Event(), [], 0, 0
        self.open.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
                body = await reader.readexactly(length)
                self.unanswered += 1
                self.most = max(self.most, self.unanswered)
                await self.open.wait()
                self.unanswered -= 1
                self.bodies.append(body.decode())
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (length, body))
                await writer.drain()
        writer.close()


class World:
    """The activator's server for one service.

    Attributes:
        ready: addresses and ports of the Ready pods.
        wakes: resource versions of the written scales.
        starts: whether the engine is Ready after a wake-up.
        error: raised by the next requests to the API server.
    """

    def __init__(self, engine: Engine, engine_port: int, port: int, **zero: int) -> None:
        self.engine, self.engine_port, self.port = engine, engine_port, port
        self.ready, self.wakes, self.starts = list[tuple[str, int]](), list[str](), True
        self.error: ApiError | None = None
        self.metrics = Metrics()
        client: Any = self
        self.server = Server(client, self.metrics)
        self.target = Target(KEY, "7", port, 0, Zero(**zero), ("demo", "roman"), False, 64)

    async def list(self, kind: Any, namespace: str, selector: str) -> tuple[list[Obj], int]:
        assert (kind, namespace, selector) == (ENDPOINT_SLICES, "ns", "kubernetes.io/service-name=demo")
        if self.error:
            raise self.error
        away = {"addresses": ["192.0.2.1"], "conditions": {"ready": False}}
        ours = {"metadata": {"labels": {MANAGED_BY: "unmask-operator"}}, "endpoints": [{"addresses": ["192.0.2.2"]}]}
        found = [
            {
                "metadata": {},
                "ports": [{"name": "other", "port": 1}, {"name": "http", "port": port}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}}, away],
            }
            for address, port in self.ready
        ]
        return [{**ours, "ports": [{"name": "http", "port": 9}]}, *found], 9

    async def patch_scale(self, namespace: str, name: str, replicas: int, version: str) -> None:
        if self.error:
            raise self.error
        assert (namespace, name, replicas) == ("ns", "demo", 1)
        self.wakes.append(version)
        await self.change(replicas=1, version="8")
        if self.starts:
            self.start_engine()

    def start_engine(self) -> None:
        self.ready.append((HOST, self.engine_port))

    async def change(self, **members: Any) -> None:
        self.target = replace(self.target, **members)
        await self.server.update({KEY: self.target})

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port)

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], str]:
        """Sends a request over a connection of its own, and returns the response."""
        reader, writer = await self.open()
        writer.write(request)
        try:
            return await read_response(reader)
        finally:
            writer.close()

    async def error_of(self, request: bytes) -> tuple[int, str, str]:
        """Sends a request that is refused. Returns the status, Retry-After and the message."""
        status, headers, body = await self.ask(request)
        assert headers["connection"] == "close"
        return status, headers.get("retry-after", ""), json.loads(body)["error"]["message"]

    async def wait_held(self, count: int) -> None:
        await wait_until_async(lambda: self.sample("held_requests") == count, f"{count} held requests")

    def sample(self, name: str, **labels: str) -> float:
        labels = {"namespace": "ns", "name": "demo", **labels}
        return self.metrics.registry.get_sample_value(f"unmask_activator_{name}", labels) or 0.0


@contextlib.asynccontextmanager
async def world(port: int, **zero: int) -> AsyncIterator[World]:
    """Yields a service that sleeps. The activator listens on `port`."""
    engine = Engine()
    listener = await asyncio.start_server(engine.handle, HOST, 0)
    made = World(engine, listener.sockets[0].getsockname()[1], port, **zero)
    await made.server.update({KEY: made.target})
    try:
        yield made
    finally:
        await made.server.update({})
        listener.close()
