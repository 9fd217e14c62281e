"""The operator as a process: ``python -m unmask_operator``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import uuid

import kopf

from unmask_operator.client.client import Client
from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import OPTIONAL, SERVICES, ApiKind, watched
from unmask_operator.client.login import login
from unmask_operator.client.store import Store
from unmask_operator.controller import handlers
from unmask_operator.controller.leader import Leader, settle_seconds
from unmask_operator.controller.queue import WorkQueue
from unmask_operator.objects import Key, Obj
from unmask_operator.process import health, logs
from unmask_operator.process.lease import Elector, exit_at_once, lead
from unmask_operator.process.metrics import Metrics
from unmask_operator.settings import Settings, read_settings

EXIT_SECONDS = 5.0  # for kopf to close its watches

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
        self._elector = Elector(self._client, settings.namespace, settings.lease_name, identity, settings.deployment)
        self._client.may_write = self._elector.in_time
        self._elected = asyncio.Event()
        self._leader: Leader | None = None
        self._watching = False

    async def run(self) -> None:
        """Until SIGTERM or SIGINT; any task's failure is the process's."""
        stop = asyncio.Event()
        app = health.application(self._metrics.registry, lambda: self._client.last_answer, self._is_up)
        server = await health.serve(app, self._settings.port)
        try:
            _on_signals(stop)
            stopped = asyncio.create_task(stop.wait())
            watching = asyncio.create_task(self._watch(stop))
            leading = asyncio.create_task(lead(self._elector, self._lead))
            await asyncio.wait((stopped, watching, leading), return_when=asyncio.FIRST_COMPLETED)
            await self._end(stop, watching, leading)
        finally:
            await server.cleanup()
            await self._client.close()

    async def _end(self, stop: asyncio.Event, watching: asyncio.Task[None], leading: asyncio.Task[None]) -> None:
        """The Lease first: the next leader waits for it. After a failure nothing else: what kopf has left over may
        never end."""
        failed = [error for task in (watching, leading) if task.done() and (error := task.exception())]
        leading.cancel()
        await asyncio.wait((leading,), timeout=1.0)
        await self._elector.release()
        if failed:
            log.error("the operator ends: %s", failed[0], exc_info=failed[0])
            exit_at_once()
        stop.set()
        if not self._watching:
            watching.cancel()
        await asyncio.wait((watching,), timeout=EXIT_SECONDS)

    async def _lead(self) -> None:
        self._metrics.leader.set(1)
        self._leader = Leader(self._client, self._store, self._queue, self._settings, self._metrics)
        self._elected.set()
        await self._leader.run()

    def _is_up(self) -> bool:
        """Whether this pod does what it is for: it would lead, or it leads and knows what there is."""
        return self._elector.reads if self._leader is None else self._leader.known.is_set() and self._watching

    async def _watch(self, stop: asyncio.Event) -> None:
        await self._elected.wait()
        kinds = await self._kinds()
        others = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=handlers.registry(kinds, self._store, self._news),
            settings=handlers.settings(kinds, ",".join(self._settings.watch_selector)),
            clusterwide=not self._settings.watch_namespaces,
            namespaces=self._settings.watch_namespaces,
            stop_flag=stop,
        )
        _on_signals(stop)  # kopf has taken the signals
        self._watching = True
        ends = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait({*tasks, ends}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():  # kopf would end its other tasks now, and may wait for a watch for ever
            raise next((error for task in done if (error := task.exception())), RuntimeError("a watch has ended"))
        await kopf.run_tasks(tasks, ignored=others)

    async def _kinds(self) -> list[ApiKind]:
        """What to watch. It waits for the resource's own definition, which may be installed with the operator."""
        while True:
            try:
                if await self._client.has_api(SERVICES):
                    return watched([kind for kind in OPTIONAL if await self._client.has_api(kind)])
                log.warning("the API server does not know %s yet: is the CustomResourceDefinition there?", SERVICES.api)
            except ApiError as error:
                log.warning("waiting for the API server: %s", error)
            await asyncio.sleep(2.0)

    def _news(self, kind: ApiKind, key: Key, obj: Obj) -> None:
        self._queue.add(key, settle_seconds(kind, obj))


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


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
    except kopf.LoginError as error:
        log.error("cannot log in to the API server: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
