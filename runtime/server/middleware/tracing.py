"""OpenTelemetry traces, enabled by OTEL_* variables: one span per request, created after its end.

So a running request has no overhead, and nothing is imported without traces. The provider belongs to the server: other
libraries of this process do not use it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import runtime
from runtime.server.env import traces_endpoint, traces_protocol
from runtime.server.serving.job import GenerationJob

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider


log = logging.getLogger("unmask.tracing")

CLOSING_SECONDS = 5.0  # to export the last spans when the server exits
MAX_TRACED_CHOICES = 8  # completions of a request that have spans for their phases
_PARENT = (b"traceparent", b"tracestate")
# routes with the operation "chat" of the semantic conventions; other routes have no roles
_CHAT_PATHS = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/messages"})


def start() -> Tracing | None:
    """Returns None if traces are off, or if they are impossible, which is logged with the reason."""
    variable = traces_endpoint()
    if variable is None:
        return None
    protocol = traces_protocol()
    if protocol not in ("", "http/protobuf"):
        log.warning("%s is set, but tracing is disabled: protocol %s is not supported; use http/protobuf",
                    variable, protocol)  # fmt: skip
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning("%s is set, but tracing is disabled: install the extra unmask[otel] (%s)", variable, error)
        return None
    ours = Resource({"service.name": "unmask", "service.version": runtime.__version__})
    resource = Resource.create().merge(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    log.info("tracing enabled by %s", variable)
    return Tracing(provider)


class Tracing:
    """Creates the spans of finished requests. The provider has sampler, limits and exporter."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("unmask", runtime.__version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, scope: Mapping[str, Any], request_id: str, model: str, status: int, arrived: float) -> None:
        """Records a request that has just ended.

        Args:
            scope: ASGI scope; its state has the job and the rejection, if any.
            request_id: id in the response.
            model: the served name.
            status: of the response; 0 if none has begun.
            arrived: monotonic time of arrival, seconds.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        ended = time.time_ns()
        clock = ended - time.monotonic_ns()  # between the two clocks
        job: GenerationJob | None = scope["state"].get("job")
        path = scope["path"]
        operation = "chat" if path in _CHAT_PATHS else "text_completion"
        if job is not None:
            model = job.choices[0].spec.adapter or model
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=self._parent(scope["headers"]),
            kind=SpanKind.SERVER,
            start_time=int(arrived * 1e9) + clock,
            attributes={  # that a sampler may read
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "unmask",
                "gen_ai.request.model": model,
                "http.request.method": scope["method"],
                "http.route": path,
                "url.path": path,
            },
        )
        if not span.is_recording():
            return
        span.set_attribute("unmask.request_id", request_id)
        if status:
            span.set_attribute("http.response.status_code", status)
        outcome = "" if job is None else job.outcome
        broken = outcome in ("error", "timeout")  # in the middle of a stream, too
        if status >= 400 or broken:
            span.set_attribute("error.type", str(status) if status >= 400 else outcome)
        if status >= 500 or broken:
            span.set_status(Status(StatusCode.ERROR, scope["state"].get("refusal")))
        if job is not None:
            for name, value in _attributes(job, model):
                span.set_attribute(name, value)
            inside = set_span_in_context(span)
            for name, first, last, index in _phases(job, int(job.started * 1e9) + clock, ended):
                attributes = {"unmask.choice": index}
                self._tracer.start_span(name, context=inside, start_time=first, attributes=attributes).end(last)
        span.end(ended)

    def _parent(self, headers: list[tuple[bytes, bytes]]) -> Context:
        from opentelemetry.context import Context

        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in _PARENT}
        return self._propagator.extract(carrier, Context())

    def close(self) -> None:
        """Exports the remaining spans, for at most `CLOSING_SECONDS`: the collector may be down."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSING_SECONDS)


def _attributes(job: GenerationJob, model: str) -> Iterator[tuple[str, Any]]:
    usage, spec = job.usage(), job.choices[0].spec
    yield "gen_ai.response.id", job.id
    yield "gen_ai.response.model", model
    yield "gen_ai.response.finish_reasons", [choice.finish_reason or "unfinished" for choice in job.choices]
    yield "gen_ai.usage.input_tokens", usage["prompt_tokens"]
    yield "gen_ai.usage.output_tokens", usage["completion_tokens"]
    yield "gen_ai.usage.cache_read.input_tokens", usage["prompt_tokens_details"]["cached_tokens"]
    yield "gen_ai.request.stream", job.streamed
    yield "gen_ai.request.max_tokens", spec.max_tokens
    yield "gen_ai.request.temperature", spec.temperature
    yield "gen_ai.request.top_p", spec.top_p
    if spec.top_k:
        yield "gen_ai.request.top_k", spec.top_k
    if len(job.choices) > 1:
        yield "gen_ai.request.choice.count", len(job.choices)
    if job.first_text is not None:
        yield "gen_ai.response.time_to_first_chunk", job.first_text
    yield "unmask.forwards", sum(choice.nfe for choice in job.choices)
    yield "unmask.algorithm", spec.decoding.algorithm
    yield "unmask.queue_seconds", max(choice.queue_seconds for choice in job.choices)


def _phases(job: GenerationJob, submitted: int, ended: int) -> Iterator[tuple[str, int, int, int]]:
    """Yields name, start and end in nanoseconds, and choice of each phase that began."""
    for choice in job.choices[:MAX_TRACED_CHOICES]:
        if not choice.nfe:
            continue  # no output of the engine
        admitted = min(submitted + int(choice.queue_seconds * 1e9), ended)
        filled = min(admitted + int(choice.prefill_seconds * 1e9), ended)
        yield "queue", submitted, admitted, choice.index
        yield "prefill", admitted, filled, choice.index
        yield "denoise", filled, ended, choice.index
