"""Prometheus metrics of the engines and of the frontends (docs/server.md#metrics)."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.registry import Collector

import runtime
from runtime.request.engine_messages import EngineInfo, EngineStats
from runtime.server.figures import EngineMetrics
from runtime.server.metric_labels import ModelNameLabels, ProcessMetrics
from runtime.server.observed import POWERS

_STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_HOST_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_RENDERING = 0.1  # of a processor, in the long run, goes into rendering /metrics
_RENDERING_AT_ONCE = 0.5  # seconds of a processor that may go into it at once


class Metrics:
    """Everything /metrics shows."""

    def __init__(
        self,
        model_name: str,
        observed: Collector,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Registers the metrics.

        Args:
            model_name: Value of the label `model_name`.
            observed: What frontends observe.
            clock: Seconds of time, during which credit for rendering grows.
            cpu_clock: Seconds of a processor that the calling thread has used; rendering is charged with them.
        """
        self.clock, self.cpu_clock = clock, cpu_clock
        self.last = b""
        self.rendered = 0.0
        self.credit = _RENDERING_AT_ONCE
        self.registry = CollectorRegistry()
        self.labelled = ModelNameLabels(self.registry, model_name)
        self.engine_metrics = EngineMetrics()
        self.registry.register(self.engine_metrics)
        self.registry.register(observed)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"unmask_{name}", text, buckets=buckets, registry=self.registry)

        self.step = histogram("step_seconds", "Duration of an engine step.", _STEP_SECONDS)
        self.device = histogram(
            "step_device_seconds", "The device's part of an engine step that sampled something.", _STEP_SECONDS
        )
        self.host = histogram("step_host_seconds", "The rest of such a step, the host's.", _HOST_SECONDS)
        self.batch = histogram("batch_size", "Requests in an engine step.", POWERS)
        self.block_steps = histogram("steps_per_block", "Steps that a block took to end.", POWERS)
        self.load = Gauge("unmask_model_load_seconds", "Duration of the last load of a model.", registry=self.registry)
        self.failures = Counter("unmask_backend_failures", "Backend processes that ended.", registry=self.registry)
        self.backends = Gauge("unmask_backends_ready", "Backend processes that serve.", registry=self.registry)
        self.build = Info("unmask_build", "Version, and the model's family and device.", registry=self.registry)
        self.build.info({"version": runtime.__version__, "python": platform.python_version()})

    def add_processes(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """Tell of this process, and of those that run beside it: their pids by name, asked for every time."""
        self.registry.register(ProcessMetrics(processes))

    def on_loaded(self, info: EngineInfo, seconds: float) -> None:
        self.engine_metrics.max_running_requests = info.max_num_reqs
        self.load.set(seconds)
        self.build.info(
            {
                "version": runtime.__version__,
                "python": platform.python_version(),
                "family": info.family,
                "strategy": info.strategy,
                "device": info.device,
                "dtype": info.dtype,
                "quantization": info.quantization or "none",
                "tensor_parallel": str(info.tensor_parallel_size),
                "expert_parallel": str(info.expert_parallel_size),
            }
        )

    def record_stats(self, replica: int, stats: EngineStats) -> None:
        """A backend's report: totals and gauges replace its last ones, observations are added."""
        self.engine_metrics.current[replica] = stats
        for histogram, values in (
            (self.step, stats.step_seconds),
            (self.device, stats.device_seconds),
            (self.host, stats.host_seconds),
            (self.batch, stats.batch_sizes),
            (self.block_steps, stats.block_steps),
        ):
            for value in values:
                histogram.observe(value)

    def retire_engine(self, replica: int) -> None:
        self.engine_metrics.retire(replica)
        self.failures.inc()

    def text(self) -> bytes:
        """Renders all metrics, or returns the last text again.

        /metrics needs no key, so rendering is limited to `_RENDERING` of a processor. It is charged with the thread's
        CPU time, so that a busy machine does not repeat old text. A quarter of the wall time is the least that it is
        charged with: the event loop waits meanwhile.
        """
        now = self.clock()
        due, self.credit, self.rendered = self.due(), self._saved(now), now
        if due:
            began = self.cpu_clock()
            self.last = generate_latest(self.labelled)
            self.credit -= max(self.cpu_clock() - began, (self.clock() - now) / 4)
        return self.last

    def due(self) -> bool:
        """Whether the next text is rendered anew."""
        return not self.last or self._saved(self.clock()) > 0

    def _saved(self, now: float) -> float:
        """Seconds of a processor that may go into rendering."""
        return min(self.credit + (now - self.rendered) * _RENDERING, _RENDERING_AT_ONCE)
