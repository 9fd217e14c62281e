"""Profiles of the steps of all replicas, started and stopped by clients if --profiler allows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.server.engine_client.ipc_protocol import CallResult, StartProfile, StopProfile

if TYPE_CHECKING:
    from runtime.server.engine_client.supervisor import Supervisor


class Profiler(Protocol):
    """What routes ask for."""

    async def start(self) -> list[int]:
        """In every replica that serves, or in none; which those are. Raises RequestError: 409 with the reason, 503."""

    async def stop(self) -> list[str]:
        """Files with the steps since the start, one a replica. Raises RequestError: 409, or 500 with the reason."""


class LocalProfiler:
    """Profiles of the backends that this process supervises."""

    def __init__(self, config: ServerConfig, supervisor: Supervisor) -> None:
        self.config = config
        self.supervisor = supervisor
        self.running: set[int] = set()  # replicas with a profile under way
        self._changing = False

    async def start(self) -> list[int]:
        directory = self._directory("start_profile")
        if self.running or self._changing:
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
        self._directory("stop_profile")
        if not self.running or self._changing:
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
        """What each answers; no other change comes between."""
        self._changing = True
        try:
            results = await asyncio.gather(*(self.supervisor.call(replica, message) for replica in replicas))
        finally:
            self._changing = False
        return {replica: result or _lost(replica) for replica, result in zip(replicas, results, strict=True)}

    def on_down(self, replica: int) -> None:
        """Its profile is lost with it."""
        self.running.discard(replica)


def _lost(replica: int) -> CallResult:
    return CallResult(0, error=f"backend {replica} exited during the profile; start a new one")


def _check(route: str, results: dict[int, CallResult]) -> None:
    for result in results.values():
        if result.error is not None:
            raise RequestError(f"POST /{route}: {result.error}", status=500, code="profile_failed")


def _conflict(route: str, why: str, code: str = "profiler_state") -> RequestError:
    return RequestError(f"POST /{route}: {why}", status=409, code=code)
