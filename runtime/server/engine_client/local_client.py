"""Client of the engine processes that this process supervises."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.config import ServerConfig
from runtime.request.engine_messages import EngineInfo, EngineStats
from runtime.server.engine_client.adapter_registry import LocalAdapterRegistry
from runtime.server.engine_client.client import Defer, EngineClient
from runtime.server.engine_client.profiler import LocalProfiler
from runtime.server.metrics import Metrics, RequestMetrics

if TYPE_CHECKING:
    from runtime.server.engine_client.supervisor import Supervisor


class LocalEngineClient(EngineClient):
    """State of the engines, and the live requests of a server with a single frontend process.

    `supervisor` is set once it exists.
    """

    adapters: LocalAdapterRegistry
    profiler: LocalProfiler

    def __init__(
        self, config: ServerConfig, request_metrics: RequestMetrics, metrics: Metrics, defer: Defer | None = None
    ) -> None:
        super().__init__(config, request_metrics, LocalAdapterRegistry(config), LocalProfiler(config), defer)
        self.metrics = metrics
        self.supervisor: Supervisor | None = None
        self.on_change: Callable[[], None] = lambda: None  # called when an engine becomes ready or exits
        engine_metrics = metrics.engine_metrics
        engine_metrics.live_by_replica = self.live_by_replica
        engine_metrics.work_by_replica = self.router.work
        engine_metrics.live_by_adapter, engine_metrics.adapters = self.live_by_adapter, self.adapters.entries

    def supervise(self, supervisor: Supervisor) -> None:
        """Uses these backends, as do adapters and profiler."""
        self.backends = self.supervisor = self.adapters.supervisor = self.profiler.supervisor = supervisor
        supervisor.engine_config = self.adapters.engine_config

    @property
    def complete(self) -> bool:
        return True

    def progress(self) -> tuple[str, int, int]:
        assert self.supervisor is not None
        loading = max((r.loading for r in self.supervisor.replicas), key=lambda phase: phase.done_bytes)
        return loading.phase, loading.done_bytes, loading.total_bytes

    async def metrics_text(self) -> bytes:
        return self.metrics.text()

    # -- calls of the supervisor

    def on_ready(self, replica: int, info: EngineInfo, load_seconds: float) -> None:
        self.info = info
        self.metrics.on_loaded(info, load_seconds)
        self.adapters.on_ready(replica)
        self.on_change()

    def on_stats(self, replica: int, stats: EngineStats) -> None:
        self.metrics.record_stats(replica, stats)

    def on_down(self, replica: int, reason: str) -> None:
        self.metrics.retire_engine(replica)
        self.profiler.on_down(replica)
        self.fail_replica(replica, reason)
        self.on_change()
