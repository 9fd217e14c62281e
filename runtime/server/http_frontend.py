"""The HTTP side of a process: serves routes, loads the tokenizer, and drains."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import socket
import threading
import time
from collections.abc import Callable

from runtime.config import ServerConfig
from runtime.errors import ConfigError, RequestError
from runtime.plugins import load_plugins
from runtime.server.engine_client.client import EngineClient
from runtime.server.http_server import make_http
from runtime.server.middleware import tracing
from runtime.tokenizer import Tokenizer
from runtime.weights.checkpoint import resolve_text_files

log = logging.getLogger("unmask.server")

IDLE_GRACE = 0.5  # seconds in which kept-alive connections may still bring a request after the listener has closed
# Objects more than before, and younger collections, after which one of each age follows. Thousands of connections are
# many objects and no garbage: looking through them all holds the loop for a tenth of a second, so that is done seldom.
COLLECTED = (2000, 20, 20)
ERROR_WRITE_SECONDS = 1.0  # seconds to write the error that ends what did not finish in --drain-timeout


class HttpFrontend:
    """The HTTP side of a process."""

    def __init__(
        self,
        config: ServerConfig,
        frontend: EngineClient,
        listener: socket.socket,
        give_up: Callable[[str], None],
    ) -> None:
        """Creates a server that accepts no connections yet. `give_up` is called with the reason if it cannot serve."""
        load_plugins(config.engine.plugin)  # in a frontend process too
        self.config = config
        self.engine_client = frontend
        self.listener = listener
        self.give_up = give_up
        self.context, self.http = make_http(config, frontend)
        self.context.tracing = tracing.start()
        self.loaded = asyncio.Event()  # the tokenizer is there
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self, after_load: bool = False) -> None:
        """Accept connections, now or once requests can be served, and load the tokenizer."""
        self.tasks = [asyncio.create_task(self._load_tokenizer())]
        if after_load:
            await self.loaded.wait()
        self.tasks.append(asyncio.create_task(self.http.serve(sockets=[self.listener])))

    @property
    def in_flight(self) -> int:
        """HTTP requests being answered."""
        return self.context.in_flight

    def pids(self) -> dict[str, int]:
        """Returns pids of further processes by name."""
        return {}

    def kill(self) -> None:
        """End them at once."""

    def begin_drain(self) -> None:
        """From now on each answer ends its connection, and /ready answers 503."""
        self.context.draining = True

    async def drain(self) -> None:
        """Close the listener, and return when all requests have finished, or after --drain-timeout."""
        config, context, http = self.config, self.context, self.http
        closed = time.monotonic()
        await http.close_listener(self.listener)

        def unfinished() -> bool:
            seconds = time.monotonic() - closed
            if context.in_flight or http.num_answering():
                return seconds < config.drain_timeout
            # on an idle connection a request may be under way, so those get a moment before they are closed
            return bool(http.server_state.connections) and seconds < min(IDLE_GRACE, config.drain_timeout)

        while unfinished():
            await asyncio.sleep(0.02)
        http.close_idle()  # in the same iteration of the loop, so that no request slips in between
        if context.in_flight or http.num_answering():
            error = RequestError(
                "the server is shutting down and the request did not finish within --drain-timeout; retry", status=504
            )
            count = self.engine_client.fail_all(error)
            log.warning("aborted %d requests that did not finish within --drain-timeout; set a larger value", count)
            started = time.monotonic()
            while (context.in_flight or http.num_answering()) and time.monotonic() - started < ERROR_WRITE_SECONDS:
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Stops serving."""
        self.http.should_exit = True
        tokenizer, *http = self.tasks
        tokenizer.cancel()
        await asyncio.gather(*http, return_exceptions=True)

    def close(self) -> None:
        """Have the last traces sent."""
        if self.context.tracing is not None:
            self.context.tracing.close()

    async def _load_tokenizer(self) -> None:
        loaded: concurrent.futures.Future[Tokenizer] = concurrent.futures.Future()
        loaded.set_running_or_notify_cancel()

        def load() -> None:
            try:
                directory = resolve_text_files(self.config.engine.model)
                loaded.set_result(Tokenizer(directory, self.config.chat_template))
            except Exception as error:
                loaded.set_exception(error)

        # a daemon thread, unlike those of the loop: a download must not delay the exit
        threading.Thread(target=load, daemon=True).start()
        try:
            self.context.tokenizer = await asyncio.wrap_future(loaded)
            gc.freeze()  # what is there now stays; looking through all of it would hold the loop again and again
            gc.set_threshold(*COLLECTED)
            self.loaded.set()
        except ConfigError as error:
            self.give_up(str(error))
        except Exception as error:
            log.exception("failed to load the tokenizer; check the files of --model")
            self.give_up(f"failed to load the tokenizer: {type(error).__name__}: {error}")
