"""Listens on the port of each service."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Mapping

from unmask_operator.activator import connection
from unmask_operator.activator.head import LARGEST_HEAD
from unmask_operator.activator.holder import Address, Holder
from unmask_operator.activator.metrics import Metrics
from unmask_operator.activator.targets import Target
from unmask_operator.health import open_listener
from unmask_operator.kinds import ENDPOINT_SLICES
from unmask_operator.kube.client import Client
from unmask_operator.objects import FIELD_MANAGER, Key, Obj, section
from unmask_operator.render.autoscaling import MANAGED_BY, SERVICE_OF_SLICE
from unmask_operator.render.labels import PORT_NAME

BACKLOG = 1024  # connections that the kernel accepts before this process does
MAX_CONNECTIONS = 2000  # per service, including those that are copied to pods

log = logging.getLogger(__name__)


class Server:
    """The listeners of all services, and their connections.

    Args:
        client: Requests to the API server.
        metrics: The metrics.
    """

    def __init__(self, client: Client, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics
        self._holders: dict[Key, Holder] = {}
        self._listeners: dict[Key, tuple[int, asyncio.Server]] = {}
        self._connections: dict[Key, set[asyncio.Task[None]]] = {}

    async def update(self, targets: Mapping[Key, Target]) -> None:
        """Listens for exactly these services. A port that is in use is tried again at the next change."""
        for key, (port, _) in list(self._listeners.items()):
            if key not in targets or targets[key].port != port:
                self._listeners.pop(key)[1].close()
        for key in self._holders.keys() - targets.keys():
            self._holders.pop(key).stop()
            self._metrics.held.remove(*key)
        for key, target in targets.items():
            if key in self._holders:
                self._holders[key].target = target
            else:
                holder = Holder(target, self._wake, self._pods, self._metrics.woken.labels(*key).inc)
                self._holders[key] = holder
                self._metrics.held.labels(*key).set_function(holder.held)
            if key not in self._listeners:
                await self._listen(key, target.port)
        self._metrics.services.set(len(self._listeners))

    async def drain(self) -> None:
        """Closes all ports, and waits until the connections have ended."""
        for _, listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        while tasks := [task for tasks in self._connections.values() for task in tasks]:
            await asyncio.wait(tasks)

    async def _listen(self, key: Key, port: int) -> None:
        try:
            listener = open_listener(port)
        except OSError as error:
            log.error("cannot listen on port %d: %s", port, error, extra={"service": key})
            return
        accept = functools.partial(self._accept, key)
        server = await asyncio.start_server(accept, sock=listener, backlog=BACKLOG, limit=LARGEST_HEAD)
        self._listeners[key] = port, server

    async def _accept(self, key: Key, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        holder, tasks = self._holders.get(key), self._connections.setdefault(key, set())
        task = asyncio.current_task()
        if holder is None or task is None or len(tasks) >= MAX_CONNECTIONS:
            self._metrics.refused.labels(*key, "busy").inc()
            writer.transport.abort()
            return
        tasks.add(task)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a client may vanish
        try:
            await connection.serve(holder, self._metrics, (reader, writer))
        except Exception:  # a bug that one connection triggers
            log.exception("a connection failed", extra={"service": key})
        finally:
            tasks.discard(task)

    async def _wake(self, target: Target) -> None:
        await self._client.patch_scale(*target.key, 1, target.version)
        log.info("woken by a request", extra={"service": target.key})

    async def _pods(self, target: Target) -> list[Address]:
        selector = f"{SERVICE_OF_SLICE}={target.key.name}"
        slices, _ = await self._client.list(ENDPOINT_SLICES, target.key.namespace, selector)
        return [address for one in slices for address in ready_addresses(one)]


def ready_addresses(endpoint_slice: Obj) -> list[Address]:
    """Returns the addresses of Ready pods in an EndpointSlice of Kubernetes; none of one with the activator's."""
    if section(endpoint_slice, "metadata", "labels").get(MANAGED_BY) == FIELD_MANAGER:
        return []
    ports = [port["port"] for port in endpoint_slice.get("ports") or () if port.get("name") == PORT_NAME]
    return [
        (endpoint["addresses"][0], port)
        for endpoint in endpoint_slice.get("endpoints") or ()
        if section(endpoint, "conditions").get("ready") is not False
        for port in ports
    ]
