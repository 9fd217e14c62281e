"""Profiles of the steps of all replicas. Clients start and stop them if --profiler is set."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.server.engine_client.ipc_protocol import CallResult, StartProfile, StopProfile

if TYPE_CHECKING:
    from runtime.server.engine_client.supervisor import Supervisor


class Profiler:
    """Starts and stops profiles of the backends that this process supervises."""

    def __init__(self, config: ServerConfig, supervisor: Supervisor) -> None:
        self.config = config
        self.supervisor = supervisor
        self.running: set[int] = set()  # indices of the replicas that record a profile
        self._changing = asyncio.Lock()

    async def start(self) -> list[int]:
        """Starts a profile in all ready replicas, or in none.

        Returns:
            Indices of the replicas.

        Raises:
            RequestError: 409 if profiling is disabled or a profile runs, 500 if a replica failed to start it, 503 if no
                replica is ready.
        """
        directory = self._directory("start_profile")
        if self.running or self._changing.locked():
            raise _conflict("start_profile", "a profile is already running; stop it with POST /stop_profile")
        replicas = self.supervisor.require_ready()
        found = await self._broadcast(replicas, StartProfile(directory))
        self.running = {replica for replica, result in found.items() if result.error is None}
        if len(self.running) < len(found):
            await self._broadcast(sorted(self.running), StopProfile(keep=False))
            self.running = set()
        _check("start_profile", found)
        return replicas

    async def stop(self) -> list[str]:
        """Stops the profile and returns the paths of its files, one per replica.

        Raises:
            RequestError: 409 if no profile runs, 500 if a replica failed to write its file.
        """
        self._directory("stop_profile")
        if not self.running or self._changing.locked():
            raise _conflict("stop_profile", "no profile is running; start one with POST /start_profile")
        found = await self._broadcast(sorted(self.running), StopProfile())
        self.running = set()
        _check("stop_profile", found)
        return [result.value for _, result in sorted(found.items())]

    def _directory(self, route: str) -> str:
        directory = self.config.torch_profiler_dir
        if self.config.profiler is None or directory is None:
            advice = "start the server with --profiler torch --torch-profiler-dir DIR"
            raise _conflict(route, f"profiling is disabled; {advice}", "profiler_off")
        return directory

    async def _broadcast(self, replicas: list[int], message: StartProfile | StopProfile) -> dict[int, CallResult]:
        """Sends a message and returns the result per replica. Other starts and stops are refused meanwhile."""
        async with self._changing:
            results = await asyncio.gather(*(self.supervisor.call(replica, message) for replica in replicas))
        return {replica: result or _lost(replica) for replica, result in zip(replicas, results, strict=True)}

    def on_down(self, replica: int) -> None:
        """Removes a replica that exited, whose profile is lost."""
        self.running.discard(replica)


def _lost(replica: int) -> CallResult:
    return CallResult(0, error=f"backend {replica} exited during the profile; start a new one")


def _check(route: str, results: dict[int, CallResult]) -> None:
    for result in results.values():
        if result.error is not None:
            raise RequestError(f"POST /{route}: {result.error}", status=500, code="profile_failed")


def _conflict(route: str, why: str, code: str = "profiler_state") -> RequestError:
    return RequestError(f"POST /{route}: {why}", status=409, code=code)
