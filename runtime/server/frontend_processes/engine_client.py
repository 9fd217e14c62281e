"""Client of the engine processes in a frontend process.

It sends requests directly to the backends, and all other calls to the parent process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import zmq

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineOutput, RequestSpec
from runtime.server.engine_client.adapter_registry import AdapterRegistry, Source
from runtime.server.engine_client.client import EngineClient, OutputQueue, RequestState
from runtime.server.engine_client.ipc_protocol import Outputs, decode_event, encode
from runtime.server.engine_client.ipc_sockets import Endpoint, connect
from runtime.server.frontend_processes.metrics import LiveRequests
from runtime.server.frontend_processes.protocol import EngineState, Method, RpcRequest, RpcResponse
from runtime.server.metrics import RequestMetrics

PUBLISH_SECONDS = 0.05  # delay until a change of the live requests is written to the metrics


class ParentRpc:
    """Remote procedure calls to the parent process. `send` sends a message to it."""

    def __init__(self, send: Callable[[RpcRequest], None]) -> None:
        self.send = send
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}

    async def call(self, method: Method, *arguments: str) -> Any:
        """Calls a method in the parent process and returns its result. Raises the RequestError of the method."""
        number = next(self._numbers)
        pending = self._pending[number] = asyncio.get_running_loop().create_future()
        self.send(RpcRequest(number, method, list(arguments)))
        try:
            return await pending
        finally:
            del self._pending[number]
            del pending  # an exception's traceback and the future would form a reference cycle

    def on_response(self, response: RpcResponse) -> None:
        """Completes the call with the number of the response."""
        pending = self._pending.get(response.number)
        if pending is None or pending.done():
            return  # the call was cancelled because its client has disconnected
        if response.error is not None:
            pending.set_exception(RequestError(**response.error))
        else:
            pending.set_result(response.value)


class RemoteAdapterRegistry(AdapterRegistry):
    """Adapters as last reported by the parent process, which loads and unloads them."""

    def __init__(self, config: ServerConfig, rpc: ParentRpc) -> None:
        super().__init__(config.lora_config is None)
        self.rpc = rpc

    async def load(self, name: str, uri: str, by: Source) -> None:
        await self.rpc.call("load_adapter", name, uri, by)

    async def unload(self, name: str) -> None:
        await self.rpc.call("unload_adapter", name)


class RemoteProfiler:
    """Starts and stops profiles through the parent process."""

    def __init__(self, rpc: ParentRpc) -> None:
        self.rpc = rpc

    async def start(self) -> list[int]:
        started: list[int] = await self.rpc.call("start_profile")
        return started

    async def stop(self) -> list[str]:
        files: list[str] = await self.rpc.call("stop_profile")
        return files


class BackendConnections:
    """Connections of this process to the loaded backends, one per replica.

    Attributes:
        name: name of this process, the identity of its sockets.
        ready: indices of the ready replicas, as last reported by the parent process.
        addresses: address of each replica's backend; "" if it is not connected.
    """

    def __init__(self, name: str, replicas: int, on_outputs: Callable[[int, list[EngineOutput]], None]) -> None:
        self.name = name
        self.on_outputs = on_outputs
        self.ready: list[int] = []
        self.addresses = [""] * replicas
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.endpoints: list[Endpoint | None] = [None] * replicas

    def send(self, replica: int, message: Any) -> None:
        """Sends a message to a replica's backend, and drops it if the backend is not connected."""
        endpoint = self.endpoints[replica]
        if endpoint is not None:
            endpoint.send(encode(message))

    def connect(self, replica: int, addr: str) -> None:
        """Connects to a replica's backend at `addr`."""

        def on_message(frames: list[bytes]) -> None:
            event = decode_event(frames[0])
            assert isinstance(event, Outputs)
            self.on_outputs(replica, event.outputs)

        self.addresses[replica] = addr
        self.endpoints[replica] = Endpoint(connect(self.context, self.name, addr), on_message)

    def disconnect(self, replica: int) -> None:
        """Processes the outputs that have arrived, and closes the connection."""
        endpoint = self.endpoints[replica]
        if endpoint is not None:
            endpoint.read()
            endpoint.close()
        self.addresses[replica], self.endpoints[replica] = "", None


class FrontendEngineClient(EngineClient):
    """Client of backends that the parent process supervises.

    Attributes:
        live_requests: publishes the live requests of this process to the parent process.
        publishing: publishing is scheduled.
    """

    def __init__(
        self, config: ServerConfig, request_metrics: RequestMetrics, rpc: ParentRpc, name: str, frontend_index: int
    ) -> None:
        """Creates a client without connections.

        Args:
            config: configuration of the server, with the limits of this process.
            request_metrics: metrics of the requests of this process.
            rpc: calls to the parent process.
            name: name of this process, the identity of its sockets.
            frontend_index: index of this process.
        """
        adapters, profiler = RemoteAdapterRegistry(config, rpc), RemoteProfiler(rpc)
        self.connections = BackendConnections(name, config.data_parallel_size, self.on_outputs)
        super().__init__(config, request_metrics, self.connections, adapters, profiler, frontend_index=frontend_index)
        self.rpc = rpc
        self.live_requests = LiveRequests()
        self.publishing = False
        self.complete = False
        self._progress = ("start", 0, 0)

    def progress(self) -> tuple[str, int, int]:
        return self._progress

    async def metrics_text(self) -> bytes:
        self._publish()
        text: bytes = await self.rpc.call("metrics")
        return text

    def on_state(self, state: EngineState) -> None:
        """Applies the state of backends and adapters."""
        self.flush()  # first: pending requests may name an adapter that is unloaded after the acknowledgment
        self.info, self._progress, self.complete = state.info, state.progress, state.complete
        self.adapters.entries, self.adapters.settled = state.adapters, state.adapters_settled
        self.connections.ready = state.ready
        for replica, connection in enumerate(state.replicas):
            before = self.connections.addresses[replica]
            if connection.addr == before:
                continue
            if before:
                self.connections.disconnect(replica)
                self.fail_replica(replica, connection.exit_reason)
                self._schedule_publishing()
            if connection.addr:
                self.connections.connect(replica, connection.addr)

    def submit(self, specs: list[RequestSpec]) -> OutputQueue:
        queue = super().submit(specs)
        self._schedule_publishing()
        return queue

    def _remove(self, request_id: str) -> RequestState | None:
        self._schedule_publishing()
        return super()._remove(request_id)

    def _schedule_publishing(self) -> None:
        if not self.publishing:
            self.publishing = True
            asyncio.get_running_loop().call_later(PUBLISH_SECONDS, self._publish)

    def _publish(self) -> None:
        self.publishing = False
        self.live_requests.publish(self.live_by_replica, self.router.work, self.live_by_adapter)
