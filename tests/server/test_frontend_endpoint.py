"""Tests of the sockets between frontend processes, their parent and the backends, on the event loop."""

import asyncio
import tempfile

import zmq

from runtime.server.engine_client.ipc_sockets import Endpoint, connect


def test_messages_after_one_whose_handler_raised_are_handled():
    received, errors = [], []

    async def scene(addr: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.bind(addr)
        sender = connect(context, "a", addr)
        for message in (b"1", b"raises", b"2", b"3"):
            sender.send(message)
        assert router.poll(60_000)
        done = asyncio.Event()

        def on_message(frames: list[bytes]) -> None:
            received.append(frames[-1])
            if frames[-1] == b"raises":
                raise ValueError("of the handler")
            if frames[-1] == b"3":
                done.set()

        asyncio.get_running_loop().set_exception_handler(lambda _, of: errors.append(of["exception"]))
        endpoint = Endpoint(router, on_message)
        try:
            async with asyncio.timeout(60):
                await done.wait()
        finally:
            endpoint.close()
            sender.close()
            context.term()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(scene(f"ipc://{directory}/socket"))
    assert received == [b"1", b"raises", b"2", b"3"]
    assert [str(error) for error in errors] == ["of the handler"]
