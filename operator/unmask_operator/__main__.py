"""The entry point of the operator: ``python -m unmask_operator``."""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast

import aiohttp
import kopf

from unmask_operator import health
from unmask_operator.controller.manager import Manager
from unmask_operator.controller.resync import EventHandler, Resync
from unmask_operator.controller.workqueue import WorkQueue
from unmask_operator.handlers import make_registry
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.client import Client
from unmask_operator.kube.credentials import Credentials
from unmask_operator.kube.watch_login import WatchLogin
from unmask_operator.leaderelection import LeaderElector, Lease, exit_at_once, run_leader_election
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Key
from unmask_operator.program import run_program
from unmask_operator.settings import PREFIX, Settings

KOPF_END_SECONDS = 5.0  # limit for the end of kopf's tasks; the Lease is released afterwards

log = logging.getLogger("unmask_operator")


class Operator:
    """One pod of the operator: acquires the Lease, then watches and reconciles.

    A standby reads only the Lease, so that it needs little memory and CPU.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._agent = f"unmask-operator/{settings.version}"
        self._credentials = Credentials()
        self._client = Client(self._credentials, self._agent)
        self._cache = Cache()
        self._queue: WorkQueue[Key] = WorkQueue()
        self._metrics = Metrics(self._cache, lambda: len(self._queue))
        self._identity = f"{settings.pod_name}_{uuid.uuid4().hex[:8]}"  # differs after a restart of the container
        lease = Lease(self._identity)
        self._elector = LeaderElector(self._client, settings.namespace, settings.lease_name, lease, settings.deployment)
        self._client.may_write = self._elector.in_time
        self._manager: Manager | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT. The failure of any task ends the process."""
        client = self._client
        await self._credentials.load()
        app = health.application(self._metrics.registry, lambda: time.monotonic() - client.last_answer, self._is_up)
        server = await health.serve(app, self._settings.port)
        try:
            self._handle_signals()
            stopped = asyncio.create_task(self._stop.wait())
            election = asyncio.create_task(run_leader_election(self._elector, self._lead))
            await asyncio.wait((stopped, election), return_when=asyncio.FIRST_COMPLETED)
            await self._end(election)
        finally:
            await server.cleanup()
            await self._client.close()

    async def _end(self, election: asyncio.Task[None]) -> None:
        """Releases the Lease in any case, so that the next leader does not wait until it expires."""
        failed = election.exception() if election.done() else None
        election.cancel()
        await asyncio.wait((election,), timeout=1.0)
        await self._elector.release()
        if failed is not None:
            log.error("operator exiting: %s", _first(failed), exc_info=failed)
            exit_at_once()
        await asyncio.wait((election,))

    async def _lead(self) -> None:
        self._metrics.leader.set(1)
        self._manager = Manager(self._client, self._cache, self._queue, self._settings, self._metrics, self._watch)
        await self._manager.run()

    async def _watch(self, events: EventHandler, resync: Resync) -> None:
        """Runs kopf, as `kopf.operator` does. Raises when kopf ends, because a leader needs its watches.

        `kopf.run_tasks` is not used: before it returns it waits for every task that began after kopf, and cancels it.
        """
        settings, errors = self._settings, self._metrics.api_errors
        credentials = WatchLogin(
            self._credentials, self._agent, resync.kopf_has_listed, lambda status: errors.labels(str(status)).inc()
        )
        tasks = await kopf.spawn_tasks(
            registry=make_registry(events, credentials, settings),
            identity=cast(Any, self._identity),  # by default kopf resolves the host's name, which may block
            clusterwide=not settings.watch_namespaces,
            namespaces=settings.watch_namespaces,
        )
        self._handle_signals()  # kopf has replaced the handlers
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
            raise RuntimeError("kopf has ended")
        finally:
            # kopf does not cancel the requests of its API discovery. They fail when it closes the session.
            logging.getLogger("kopf").setLevel(logging.CRITICAL)
            asyncio.get_running_loop().set_exception_handler(_log_unless_disconnected)
            # Each task ends those that it started. `asyncio.run` would cancel these as well, and a watch whose helper
            # ends at the same time could miss the cancellation.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=KOPF_END_SECONDS)

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    def _is_up(self) -> bool:
        """Whether a standby can read the Lease, or a leader has a synced cache."""
        return self._elector.reads if self._manager is None else self._manager.synced.is_set()


def _first(error: BaseException) -> BaseException:
    """Returns the first error of a task group's exception group."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _log_unless_disconnected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an error that no task handles, unless a closed connection is its cause."""
    if not isinstance(context.get("exception"), aiohttp.ClientConnectionError):
        loop.default_exception_handler(context)


def _usage() -> argparse.ArgumentParser:
    variables = "\n".join(f"  {PREFIX}{setting.name.upper()}" for setting in fields(Settings))
    return argparse.ArgumentParser(
        prog="python -m unmask_operator",
        description="Reconciles DiffusionLMServices. The program has no flags. The chart unmask-operator sets its "
        "settings as environment variables;\noperator/unmask_operator/settings.py describes them:\n\n" + variables,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main(arguments: Sequence[str] = ()) -> int:
    """Runs the operator and returns its exit status.

    Args:
        arguments: of the command line, without the program. There are no flags but ``--help``.

    Raises:
        SystemExit: the help was printed (status 0), or an argument is unknown (status 2).
    """
    _usage().parse_args(arguments)
    return run_program("unmask-operator", log, _run)


async def _run(settings: Settings) -> None:
    await Operator(settings).run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
