"""Serves ``/healthz``, ``/readyz`` and ``/metrics`` on the operator's port."""

import errno
import socket
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

API_SILENCE_SECONDS = 20.0  # the leader and a standby both send a request every 4 seconds


def application(registry: CollectorRegistry, silence: Callable[[], float], up: Callable[[], bool]) -> web.Application:
    """Returns the application of the probes and metrics.

    `/healthz` needs only the event loop. A blocked loop does not answer, and nothing else justifies a restart.
    `/readyz` is 200 while `up` is true and the API server answers, for the leader and for a standby.

    Args:
        registry: The metrics of `/metrics`.
        silence: Returns the seconds since the last answer of the API server.
        up: Whether a standby can read the Lease, or a leader has a synced cache.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if not up():
            return web.Response(status=503, text="starting\n")
        if (seconds := silence()) > API_SILENCE_SECONDS:
            return web.Response(status=503, text=f"the API server has not answered for {seconds:.0f} s\n")
        return web.Response(text="ok\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app


async def serve(app: web.Application, port: int) -> web.AppRunner:
    """Serves the application at all IPv6 and IPv4 addresses.

    Args:
        app: The application.
        port: The port to listen on; 0 selects a free one.

    Returns:
        The runner. Its `cleanup()` stops the server.
    """
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, open_listener(port)).start()
    return runner


def open_listener(port: int) -> socket.socket:
    """Returns a socket that accepts IPv6 and IPv4, or IPv4 alone on a host without IPv6.

    Raises:
        OSError: The port is in use.
    """
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
    return socket.create_server(("0.0.0.0", port))
