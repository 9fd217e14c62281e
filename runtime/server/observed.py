"""What a process that speaks HTTP observes of its requests and connections, for /metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# why a connection is ended by the server; each is there from the start, so that the first one is an increase
CLOSE_REASONS = (
    "slow_head",
    "slow_body",
    "stalled",
    "invalid",
    "head_too_large",
    "discarded",
    "gave_way",
    "no_room",
    "memory",
)


class RequestMetrics(Collector):
    """One process's."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"unmask_{name}", text, buckets=buckets, registry=self.registry)

        self.requests = Counter(
            "unmask_requests",
            "HTTP requests for generation by outcome: stop, length, max_nfe, repetition, refused, timeout, aborted, "
            "error.",
            ["outcome"],
            registry=self.registry,
        )
        self.first_token = histogram("time_to_first_token_seconds", "Streams: until the first text.", SECONDS)
        self.first_block = histogram("time_to_first_block_seconds", "Streams: until a whole block is stable.", SECONDS)
        self.per_token = histogram(
            "time_per_output_token_seconds",
            "Duration over tokens of an answer, after the queue.",
            (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
        )
        self.end_to_end = histogram("request_seconds", "From the request's arrival to its answer's end.", SECONDS)
        self.queue = histogram("queue_seconds", "Until the engine admitted the request.", SECONDS)
        self.tokens_per_forward = histogram(
            "tokens_per_forward", "Tokens of an answer, its end included, over its steps.", POWERS
        )
        self.connections = Gauge("unmask_connections", "Connections of clients, open now.", registry=self.registry)
        self.max_connections = Gauge(
            "unmask_connections_most", "Connections that there may be (--max-connections).", registry=self.registry
        )
        self.closed_by_server = Counter(
            "unmask_connections_given_up",
            "Connections that the server ended for want of something, by reason (docs/server.md).",
            ["reason"],
            registry=self.registry,
        )
        for reason in CLOSE_REASONS:
            self.closed_by_server.labels(reason)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self.registry.collect()
