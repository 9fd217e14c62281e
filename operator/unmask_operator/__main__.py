"""The operator as a process: ``python -m unmask_operator``."""

import asyncio
import contextlib
import logging
import signal
import sys
import time
import uuid

from unmask_operator.client.client import Client
from unmask_operator.client.login import LoginError, login
from unmask_operator.client.store import Store
from unmask_operator.controller.leader import Leader
from unmask_operator.controller.queue import WorkQueue
from unmask_operator.objects import Key
from unmask_operator.process import health, logs
from unmask_operator.process.lease import Elector, Lease, exit_at_once, lead
from unmask_operator.process.metrics import Metrics
from unmask_operator.settings import Settings, read_settings

log = logging.getLogger("unmask_operator")


class Operator:
    """One pod of the operator: waits for the Lease, then watches and reconciles. Until then it asks for nothing else,
    so that a standby costs next to nothing."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = Client(login, f"unmask-operator/{settings.version}")
        self._store = Store()
        self._queue: WorkQueue[Key] = WorkQueue()
        self._metrics = Metrics(self._store, lambda: len(self._queue))
        identity = f"{settings.pod_name}_{uuid.uuid4().hex[:8]}"  # a restarted container is another one
        lease = Lease(identity)
        self._elector = Elector(self._client, settings.namespace, settings.lease_name, lease, settings.deployment)
        self._client.may_write = self._elector.in_time
        self._leader: Leader | None = None

    async def run(self) -> None:
        """Until SIGTERM or SIGINT; any task's failure is the process's."""
        stop, client = asyncio.Event(), self._client
        app = health.application(self._metrics.registry, lambda: time.monotonic() - client.last_answer, self._is_up)
        server = await health.serve(app, self._settings.port)
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            stopped = asyncio.create_task(stop.wait())
            leading = asyncio.create_task(lead(self._elector, self._lead))
            await asyncio.wait((stopped, leading), return_when=asyncio.FIRST_COMPLETED)
            await self._end(leading)
        finally:
            await server.cleanup()
            await self._client.close()

    async def _end(self, leading: asyncio.Task[None]) -> None:
        """The Lease is given back whatever happened: the next leader waits for it."""
        failed = leading.exception() if leading.done() else None
        leading.cancel()
        await asyncio.wait((leading,), timeout=1.0)
        await self._elector.release()
        if failed is not None:
            log.error("the operator ends: %s", failed, exc_info=failed)
            exit_at_once()

    async def _lead(self) -> None:
        self._metrics.leader.set(1)
        self._leader = Leader(self._client, self._store, self._queue, self._settings, self._metrics)
        await self._leader.run()

    def _is_up(self) -> bool:
        """Whether this pod does what it is for: it would lead, or it leads and knows what there is."""
        return self._elector.reads if self._leader is None else self._leader.known.is_set()


def main() -> int:
    try:
        settings = read_settings()
    except ValueError as error:
        print(f"unmask-operator: {error}", file=sys.stderr)
        return 2
    logs.configure(settings)

    async def run() -> None:
        await Operator(settings).run()

    try:
        asyncio.run(run())
    except LoginError as error:
        log.error("cannot log in to the API server: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
