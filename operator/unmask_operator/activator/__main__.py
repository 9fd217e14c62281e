"""The entry point of the activator: ``python -m unmask_operator.activator``. Its settings are those of the operator."""

import asyncio
import contextlib
import logging
import resource
import signal
import sys

from unmask_operator import health
from unmask_operator.activator.metrics import Metrics
from unmask_operator.activator.server import Server
from unmask_operator.activator.targets import Targets
from unmask_operator.kube.client import Client
from unmask_operator.kube.credentials import Credentials
from unmask_operator.program import run_program
from unmask_operator.settings import Settings

DRAIN_DELAY_SECONDS = 20.0  # after SIGTERM, until the operator and proxies no longer use this pod's address

log = logging.getLogger("unmask_operator.activator")


async def run(settings: Settings, drain_delay: float = DRAIN_DELAY_SECONDS) -> None:
    """Runs until SIGTERM or SIGINT, and then until the connections have ended."""
    credentials, stop = Credentials(), asyncio.Event()
    await credentials.load()
    client, metrics = Client(credentials, f"unmask-activator/{settings.version}"), Metrics()
    server = Server(client, metrics)
    targets = Targets(client, settings, server.update)
    app = health.application(metrics.registry, lambda: 0.0, lambda: targets.synced and not stop.is_set())
    probes = await health.serve(app, settings.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    watching, stopped = asyncio.create_task(targets.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((watching, stopped), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching  # raises its error
        await asyncio.sleep(drain_delay)
        await server.drain()
    finally:
        watching.cancel()
        await asyncio.wait((watching,))
        await probes.cleanup()
        await client.close()


def main() -> int:
    """Runs the activator and returns its exit status."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a connection takes two descriptors
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return run_program("unmask-activator", log, run)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
