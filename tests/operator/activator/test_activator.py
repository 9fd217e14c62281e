"""Tests of the activator over real connections: held, released and refused requests."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from e2e.cluster.process import free_ports
from tests.operator.activator.world import HOST, World, post, read_response, world
from tests.wait import wait_until_async
from unmask_operator.activator import head, holder
from unmask_operator.kube.errors import ApiError

Scene = Callable[[World], Awaitable[None]]
FIRST = 30  # simultaneous first requests


def run(scene: Scene, **zero: int) -> None:
    async def inner() -> None:
        (port,) = free_ports(1)
        async with world(port, **zero) as made:
            await scene(made)

    asyncio.run(inner())


def test_first_requests_wake_the_service_once_and_none_fails() -> None:
    """Bodies arrive unchanged, also those that are larger than what the activator reads ahead."""

    async def scene(made: World) -> None:
        bodies = [f"{n}-" + "x" * (n * 9973) for n in range(FIRST)]
        answers = await asyncio.gather(*(made.ask(post(body)) for body in bodies))
        assert [(status, body) for status, _, body in answers] == [(200, body) for body in bodies]
        assert made.wakes == ["7"]
        assert (made.sample("wakes_total"), made.sample("hold_seconds_count"), made.sample("held_requests")) == (
            *(1, FIRST, 0),
        )

    run(scene)


def test_a_connection_serves_further_requests_after_the_first_one() -> None:
    async def scene(made: World) -> None:
        reader, writer = await made.open()
        for body in ("a", "b", "c"):
            writer.write(post(body))
            assert (await read_response(reader))[2] == body
        assert made.sample("hold_seconds_count") == 1
        writer.close()

    run(scene)


ASLEEP = "the service has no replicas"
REFUSED = [
    (b"GET /ready HTTP/1.1\r\n\r\n", 503, ASLEEP), (b"GET /metrics HTTP/1.1\r\n\r\n", 503, ASLEEP),
    (b"OPTIONS / HTTP/1.1\r\n\r\n", 503, ASLEEP), (b"\x16\x03\x01 TLS\r\n\r\n", 400, "not HTTP/1.1"),
    (b"PRI * HTTP/2.0\r\n\r\n", 400, "not HTTP/1.1"),
    (b"POST / HTTP/1.1\r\n" + b"A: b\r\n" * 9000, 431, "larger than 32 KiB"),
]  # fmt: skip


def test_what_is_no_request_for_a_pod_wakes_nothing() -> None:
    async def scene(made: World) -> None:
        for request, status, message in REFUSED:
            found = await made.error_of(request)
            assert (found[0], message in found[2]) == (status, True), found
            assert found[1] == ("15" if status == 503 else "")
        assert (await made.ask(b"GET /health HTTP/1.1\r\n\r\n"))[0] == 200
        status, _, body = await made.ask(b"GET /v1//models?a HTTP/1.1\r\n\r\n")
        assert (status, [one["id"] for one in json.loads(body)["data"]]) == (200, ["demo", "roman"])
        _, writer = await made.open()  # a client that leaves without a request
        writer.close()
        assert made.wakes == []

    run(scene)


def test_a_request_without_a_needed_key_is_refused() -> None:
    async def scene(made: World) -> None:
        await made.change(needs_key=True)
        assert (await made.error_of(post()))[0] == (await made.error_of(b"GET /v1/models HTTP/1.1\r\n\r\n"))[0] == 401
        assert made.wakes == []
        for header in ("Authorization: Bearer k", "x-api-key: k"):
            assert (await made.ask(post("{}", header)))[0] == 200
        assert made.sample("refused_total", reason="no_key") == 2
        leave = "OPTIONS /v1/completions HTTP/1.1\r\nAccess-Control-Request-Method: POST\r\nContent-Length: 0\r\n\r\n"
        assert (await made.ask(leave.encode()))[0] == 200  # the pod's answer

    run(scene)


def test_a_slow_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "HEAD_SECONDS", 0.05)

    async def scene(made: World) -> None:
        assert (await made.error_of(b"POST / HTTP/1.1\r\nA:"))[0] == 408

    run(scene)


def test_limits_of_held_requests() -> None:
    async def scene(made: World) -> None:
        made.starts = False
        held = [asyncio.create_task(made.error_of(post())) for _ in range(2)]
        await made.wait_held(2)
        assert (await made.error_of(post()))[:2] == (429, "15")
        for found in await asyncio.gather(*held):
            assert found == (503, "15", "no pod was Ready within 1 s")
        assert {reason: made.sample("refused_total", reason=reason) for reason in ("full", "timeout")} == {
            "full": 1, "timeout": 2,
        }  # fmt: skip

    run(scene, maxHeldRequests=2, holdSeconds=1)


def test_a_client_that_leaves_is_forgotten() -> None:
    async def scene(made: World) -> None:
        made.starts = False
        _, writer = await made.open()
        writer.write(post("{}"))
        await made.wait_held(1)
        writer.close()
        await made.wait_held(0)
        made.start_engine()
        assert (await made.ask(post("next")))[2] == "next"
        assert made.engine.bodies == ["next"]

    run(scene)


@pytest.mark.parametrize("stop", [lambda made: made.server.update({}), lambda made: made.change(port=free_ports(1)[0])])
def test_a_service_that_is_stopped_or_moved(stop: Callable[[World], Awaitable[None]]) -> None:
    """Requests of a stopped service are refused; those of a service with another port are still answered."""

    async def scene(made: World) -> None:
        made.starts = False
        asked, old = asyncio.create_task(made.ask(post())), made.port
        await made.wait_held(1)
        await stop(made)
        made.start_engine()
        assert (await asked)[0] == (503 if made.target.port == old else 200)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, old)

    run(scene)


def test_a_pod_that_starts_gets_no_more_requests_than_it_runs() -> None:
    async def scene(made: World) -> None:
        await made.change(requests_per_pod=2)
        made.engine.open.clear()
        asked = [asyncio.create_task(made.ask(post(str(n)))) for n in range(7)]
        await wait_until_async(lambda: made.engine.unanswered == 2, "two requests in the engine")
        assert made.sample("held_requests") == 5
        made.engine.open.set()
        assert sorted(body for _, _, body in await asyncio.gather(*asked)) == list("0123456")
        assert made.engine.most == 2

    run(scene)


def test_a_long_answer_does_not_delay_other_requests_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask_operator.activator.connection.LONGEST_ANSWER_SECONDS", 0.05)

    async def scene(made: World) -> None:
        await made.change(requests_per_pod=1)
        made.engine.open.clear()
        asked = [asyncio.create_task(made.ask(post())) for _ in range(3)]
        await wait_until_async(lambda: made.engine.unanswered == 3, "all requests in the engine")
        made.engine.open.set()
        assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}

    run(scene)


@pytest.mark.parametrize("error", [ApiError(0, "Unreachable", "no answer"), ApiError(409, "Conflict", "changed")])
def test_an_api_server_that_fails_delays_a_request_only(error: ApiError) -> None:
    async def scene(made: World) -> None:
        made.error = error
        asked = asyncio.create_task(made.ask(post()))
        await made.wait_held(1)
        await asyncio.sleep(holder.POLL_SECONDS)
        made.error = None
        assert (await asked)[0] == 200

    run(scene)


def test_a_pod_that_has_gone_delays_a_request_only() -> None:
    """It may be listed as Ready for a moment, also beside others."""

    async def scene(made: World) -> None:
        made.ready = [(HOST, free_ports(1)[0])]
        asked = asyncio.create_task(made.ask(post("x")))
        await asyncio.sleep(holder.POLL_SECONDS)
        assert not asked.done()
        made.start_engine()
        assert (await asked)[2] == "x"

    run(scene)


def test_requests_go_to_the_pod_with_the_fewest_connections() -> None:
    async def scene(made: World) -> None:
        other = type(made.engine)()
        listener = await asyncio.start_server(other.handle, HOST, 0)
        made.ready = [(HOST, made.engine_port), (HOST, listener.sockets[0].getsockname()[1])]
        streams = [await made.open() for _ in range(4)]
        for reader, writer in streams:
            writer.write(post())
            await read_response(reader)
        assert (len(made.engine.bodies), len(other.bodies)) == (2, 2)
        for _, writer in streams:
            writer.close()
        listener.close()

    run(scene)


def test_a_pod_that_ends_in_its_answer_ends_the_connection_too() -> None:
    """A truncated answer must not look like a complete one."""

    async def scene(made: World) -> None:
        async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1234")
            await writer.drain()
            writer.close()

        listener = await asyncio.start_server(half, HOST, 0)
        made.ready = [(HOST, listener.sockets[0].getsockname()[1])]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await made.ask(post())
        listener.close()

    run(scene)


def test_a_pod_of_the_activator_that_ends_serves_its_connections_to_the_end() -> None:
    async def scene(made: World) -> None:
        made.starts = False
        asked = asyncio.create_task(made.ask(post("late")))
        await made.wait_held(1)
        drained = asyncio.create_task(made.server.drain())
        await asyncio.sleep(0)
        made.start_engine()
        assert (await asked)[2] == "late"
        await drained
        with pytest.raises(ConnectionRefusedError):
            await made.open()

    run(scene)
