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
from runtime.server.engine_client.adapter_registry import AdapterRegistry
from runtime.server.engine_client.client import EngineClient, Method, OutputQueue, RequestState
from runtime.server.engine_client.ipc_protocol import Outputs, decode_event, encode
from runtime.server.engine_client.ipc_sockets import Endpoint, connect
from runtime.server.frontend_processes.metrics import LiveRequests
from runtime.server.frontend_processes.protocol import EngineState, RpcRequest, RpcResponse
from runtime.server.metrics import RequestMetrics

PUBLISH_SECONDS = 0.05  # delay until a change of the live requests is written to the metrics


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
        self,
        config: ServerConfig,
        request_metrics: RequestMetrics,
        send_to_parent: Callable[[RpcRequest], None],
        name: str,
        frontend_index: int,
    ) -> None:
        """Creates a client without connections.

        Args:
            config: configuration of the server, with the limits of this process.
            request_metrics: metrics of the requests of this process.
            send_to_parent: sends a message to the parent process.
            name: name of this process, the identity of its sockets.
            frontend_index: index of this process.
        """
        adapters = AdapterRegistry(config.lora_config is None)
        self.connections = BackendConnections(name, config.data_parallel_size, self.on_outputs)
        super().__init__(config, request_metrics, self.connections, adapters, frontend_index=frontend_index)
        self.send_to_parent = send_to_parent
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}  # calls of the parent that have no response yet, by number
        self.live_requests = LiveRequests()
        self.publishing = False
        self.complete = False
        self._progress = ("start", 0, 0)

    def progress(self) -> tuple[str, int, int]:
        return self._progress

    async def call(self, method: Method, *arguments: str) -> Any:
        self._publish()  # the metrics have the live requests
        number = next(self._numbers)
        pending = self._calls[number] = asyncio.get_running_loop().create_future()
        self.send_to_parent(RpcRequest(number, method, list(arguments)))
        try:
            return await pending
        finally:
            del self._calls[number]
            del pending  # an exception's traceback and the future would form a reference cycle

    def on_response(self, response: RpcResponse) -> None:
        """Completes the call with the number of the response."""
        pending = self._calls.get(response.number)
        if pending is None or pending.done():
            return  # the call was cancelled because its client has disconnected
        if response.error is not None:
            pending.set_exception(RequestError(**response.error))
        else:
            pending.set_result(response.value)

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
