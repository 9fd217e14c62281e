"""Who gets a connection, and what becomes of those whom nobody can take."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable

import pytest

from runtime.server.frontends import dealer as dealers
from runtime.server.frontends.dealer import Dealer
from tests.wait import TIMEOUT, wait_until_async


class Taker:
    def __init__(self, room: int) -> None:
        self.handed = 0
        self.room = room

    def open(self) -> int:
        return self.handed

    def take(self, connection: socket.socket) -> bool:
        if self.handed >= self.room:
            return False
        self.handed += 1
        return True


def test_who_has_fewest_gets_the_next_and_who_waits_is_not_lost() -> None:
    async def deal() -> None:
        with socket.socket() as listener, contextlib.ExitStack() as stack:
            listener.bind(("127.0.0.1", 0))
            listener.listen(100)
            takers = [Taker(3), Taker(100)]
            takers[1].handed = 2
            dealer = Dealer(listener, lambda: takers)
            for _ in range(5):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            dealer.deal()
            assert [taker.handed for taker in takers] == [3, 4]
            takers[1].room = 4
            stack.enter_context(socket.create_connection(listener.getsockname()))
            await wait_until_async(lambda: dealer.kept is not None)
            takers[1].room = 5
            await wait_until_async(lambda: dealer.kept is None)
            assert takers[1].handed == 5
            stack.enter_context(socket.create_connection(listener.getsockname()))
            takers[0].room = 4
            await dealer.close()
            assert takers[0].handed == 4

    asyncio.run(deal())


def test_a_close_deals_no_more_than_the_kernel_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody new comes with every one who is dealt."""
    monkeypatch.setattr(dealers, "BACKLOG", 5)

    async def close() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:

            class Popular(Taker):
                def take(self, connection: socket.socket) -> bool:
                    if self.handed < 50:
                        stack.enter_context(socket.create_connection(listener.getsockname()))
                    return super().take(connection)

            taker = Popular(1000)
            stack.enter_context(socket.create_connection(listener.getsockname()))
            await Dealer(listener, lambda: [taker]).close()
            assert taker.handed == 5

    asyncio.run(close())


def test_a_close_does_not_wait_for_ever_for_processes_that_take_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealers, "LAST_TRIES", 3)

    async def close() -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as client,
        ):
            async with asyncio.timeout(TIMEOUT):
                await Dealer(listener, lambda: [Taker(0)]).close()
            assert client.recv(1) == b""  # it is told at once

    asyncio.run(close())


def test_a_want_of_descriptors_is_waited_out_without_work() -> None:
    class Short:
        tries = 0

        def __init__(self, listener: socket.socket) -> None:
            self.listener = listener

        def __getattr__(self, name: str) -> object:
            return getattr(self.listener, name)

        def accept(self) -> tuple[socket.socket, object]:
            self.tries += 1
            if self.tries < 4:
                raise OSError(errno.EMFILE, "Too many open files")
            return self.listener.accept()

    async def deal() -> None:
        loop, later = asyncio.get_running_loop(), list[tuple[float, Callable[[], None]]]()
        with (
            pytest.MonkeyPatch.context() as patch,
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()),
        ):
            patch.setattr(loop, "call_later", lambda seconds, call: later.append((seconds, call)))
            short, taker = Short(listener), Taker(9)
            dealer = Dealer(short, lambda: [taker])  # type: ignore[arg-type]
            dealer.deal()
            for tries in (1, 2, 3):
                for _ in range(100):  # the socket is readable all the time, and the loop does not call for that
                    await asyncio.sleep(0)
                assert (taker.handed, short.tries) == (0, tries)
                ((seconds, again),) = later
                assert seconds == dealers.AGAIN
                later.clear()
                again()
            assert (taker.handed, short.tries) == (1, 5)  # the last found nobody
            assert not later
            await dealer.close()

    asyncio.run(deal())
