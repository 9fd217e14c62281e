"""Client of the engine processes in a frontend process.

It sends requests directly to the backends, and all other calls to the parent process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import RequestSpec
from runtime.server.engine_client.adapter_registry import AdapterRegistry
from runtime.server.engine_client.client import EngineClient, Method, OutputQueue, RequestState
from runtime.server.engine_client.ipc_protocol import Outputs, decode_event, encode
from runtime.server.engine_client.ipc_sockets import Endpoint, connect
from runtime.server.frontend_processes.metrics import LiveRequests
from runtime.server.frontend_processes.protocol import EngineState, RpcRequest, RpcResponse
from runtime.server.metrics import RequestMetrics

PUBLISH_SECONDS = 0.05  # delay until a change of the live requests is written to the metrics


class FrontendEngineClient(EngineClient):
    """Client of backends that the parent process supervises.

    Attributes:
        name: name of this process, the identity of its sockets.
        connections: address and socket of each loaded backend, by the index of its replica.
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
        super().__init__(config, request_metrics, AdapterRegistry(config.lora_config is None), frontend_index)
        self.send_to_parent = send_to_parent
        self.name = name
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.connections: dict[int, tuple[str, Endpoint]] = {}
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}  # calls to the parent without a response, by number
        self.live_requests = LiveRequests()
        self.publishing = False
        self.complete = False
        self._ready: list[int] = []
        self._progress = ("start", 0, 0)

    @property
    def ready(self) -> list[int]:
        return self._ready

    def send(self, replica: int, message: Any) -> None:
        if replica in self.connections:
            _, endpoint = self.connections[replica]
            endpoint.send(encode(message))

    def progress(self) -> tuple[str, int, int]:
        return self._progress

    async def call(self, method: Method, *arguments: str) -> Any:
        if method == "metrics":
            self._publish()  # so that they have the live requests of this process
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
        self._ready = state.ready
        for replica, backend in enumerate(state.replicas):
            addr, endpoint = self.connections.get(replica, ("", None))
            if addr == backend.addr:
                continue
            if endpoint is not None:
                endpoint.read()  # the outputs that have arrived
                endpoint.close()
                del self.connections[replica]
                self.fail_replica(replica, backend.exit_reason)
                self._schedule_publishing()
            if backend.addr:
                socket = connect(self.context, self.name, backend.addr)
                self.connections[replica] = backend.addr, Endpoint(socket, partial(self._on_message, replica))

    def _on_message(self, replica: int, frames: list[bytes]) -> None:
        event = decode_event(frames[0])
        assert isinstance(event, Outputs)
        self.on_outputs(replica, event.outputs)

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
