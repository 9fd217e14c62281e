"""Tests of the scrape of pods' gauges, with a test server and with the runtime's own metrics."""

import asyncio
import re
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from runtime.request.engine_messages import EngineStats
from runtime.server.metrics import Metrics, RequestMetrics
from tests.operator.clients import Handler, answer, http_server
from tests.wait import TIMEOUT
from unmask_operator.api.autoscaling import DEFAULT_TARGETS, GAUGES
from unmask_operator.autoscaler.history import Reading
from unmask_operator.autoscaler.scrape import FINISHED, ScrapeError, parse, scrape
from unmask_operator.pod_http import PODS_AT_ONCE, PODS_PER_SERVICE

LOADS = {"queuedRequestsPerReplica": 3, "runningRequestsPerReplica": 12, "kvCacheUtilizationPercent": 25}
TEXT = """# HELP unmask_requests_waiting Requests that wait for room in an engine.
# TYPE unmask_requests_waiting gauge
unmask_requests_waiting 3.0
unmask_requests_running 12.0
unmask_kv_usage_ratio 0.25
unmask_requests_total{outcome="stop"} 9.0
"""
OTHERS = "x unmask_requests_waiting 9\nunmask_requests_waiting_total 9\n# unmask_requests_waiting 9\n"


def test_the_runtimes_own_metrics_are_read() -> None:
    requests = RequestMetrics()
    metrics = Metrics("m", requests)
    metrics.engine_metrics.live_by_replica, metrics.engine_metrics.max_running_requests = [12], 8
    metrics.load.set(90)
    metrics.record_stats(0, EngineStats(waiting=7, pages_total=8, pages_used=2))
    assert parse(metrics.text().decode(), GAUGES) == LOADS | {
        "queuedRequestsPerReplica": 7, "runningRequestsPerReplica": 5, "max_running": 8, "load_seconds": 90,
    }  # fmt: skip
    metrics.kept_until = 0.0
    metrics.engine_metrics.live_by_replica = [12, 3]  # engines of one pod
    assert parse(metrics.text().decode(), GAUGES)["max_running"] == 16
    assert parse(metrics.text().decode(), [FINISHED])[FINISHED] == 0
    for outcome in ("stop", "stop", "refused"):
        requests.requests.labels(outcome).inc()
    metrics.kept_until = 0.0
    assert parse(metrics.text().decode(), [FINISHED])[FINISHED] == 3
    assert parse('unmask_requests_total{a="b"} NaN\nunmask_requests_total{a="c"} x', [FINISHED])[FINISHED] == 0


@pytest.mark.parametrize(
    ("text", "targets", "reading"),
    [
        (TEXT, GAUGES, LOADS),
        (f"{TEXT}unmask_max_running_requests 16.0\n", GAUGES, LOADS | {"max_running": 16}),
        (f"{OTHERS}unmask_requests_waiting 3", DEFAULT_TARGETS, {"queuedRequestsPerReplica": 3}),
        ("unmask_requests_waiting 3.0\nunmask_kv_usage_ratio NaN", DEFAULT_TARGETS, {"queuedRequestsPerReplica": 3}),
    ],
)
def test_gauges_are_read_by_their_full_names(text: str, targets: Any, reading: Reading) -> None:
    assert parse(text, targets) == reading


RANGE = "must be a finite number from 0 to 1e+12, got"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "/metrics lacks unmask_requests_waiting"),
        (OTHERS, "/metrics lacks unmask_requests_waiting"),
        (TEXT.replace("unmask_requests_running 12.0\n", ""), "/metrics lacks unmask_requests_running"),
        (TEXT.replace("12.0", "many"), "unmask_requests_running has no value"),
        (TEXT.replace("0.25", "NaN"), f"unmask_kv_usage_ratio {RANGE} NaN"),
        (TEXT.replace("3.0", "-3"), f"unmask_requests_waiting {RANGE} -3"),
        (TEXT.replace("0.25", "1e308"), f"unmask_kv_usage_ratio {RANGE} 1e308"),
        (TEXT.replace("3.0", "NaN " + "x" * 2000), f"unmask_requests_waiting {RANGE} NaN x"),
    ],
)
def test_invalid_metrics_are_rejected_with_a_short_message_that_names_the_gauge(text: str, message: str) -> None:
    with pytest.raises(ScrapeError, match=re.escape(message)) as caught:
        parse(text, GAUGES)
    assert len(str(caught.value)) < 150


def scrape_pods(handlers: dict[str, Handler], addresses: dict[str, str], timeout: float = TIMEOUT, **known: Any) -> Any:
    """Scrapes pods at these addresses, some of which have a server. Returns the readings and the failures."""

    async def go() -> tuple[dict[str, Reading], dict[str, str]]:
        async with AsyncExitStack() as stack:
            port = 0
            for address, handler in handlers.items():
                server = http_server(handler, path="/metrics", host=address, port=port)
                port = await stack.enter_async_context(server)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            return await scrape(session, addresses, GAUGES, port, timeout, **known)

    return asyncio.run(go())


def test_pods_are_scraped_concurrently_and_each_failure_has_its_cause() -> None:
    """Two pods answer only after both have received a request."""
    both = asyncio.Barrier(2)

    async def together(request: web.Request) -> web.Response:
        await both.wait()
        return web.Response(text=TEXT)

    handlers = {"127.0.0.1": together, "127.0.0.2": together, "127.0.0.3": answer(TEXT, 503), "127.0.0.4": answer("x")}
    readings, failures = scrape_pods(handlers, {f"p{n}": f"127.0.0.{n}" for n in range(1, 6)})
    assert readings == {"p1": LOADS, "p2": LOADS}
    assert failures == {
        "p3": "/metrics answered 503",
        "p4": "/metrics lacks unmask_requests_waiting",
        "p5": "/metrics: ClientConnectorError",
    }


def test_the_timeout_is_per_pod_also_beyond_the_concurrency_limit() -> None:
    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    pods = {f"p{n}": "127.0.0.1" for n in range(2 * PODS_PER_SERVICE)}
    assert scrape_pods({"127.0.0.1": never}, pods, 0.2) == ({}, dict.fromkeys(pods, "/metrics took longer than 0.2 s"))


@pytest.mark.parametrize(
    ("slots", "peak"), [(PODS_AT_ONCE, PODS_PER_SERVICE), (3, 3)], ids=["of the service", "in all"]
)
def test_requests_at_once_are_limited(slots: int, peak: int) -> None:
    """Each request is held until as many as the limit allows have arrived."""
    held: list[int] = []
    full = asyncio.Event()

    async def hold(request: web.Request) -> web.Response:
        held.append(held[-1] + 1 if held else 1)
        if held[-1] == peak:
            full.set()
        await full.wait()
        await asyncio.sleep(0.01)  # another request would arrive
        held.append(held[-1] - 1)
        return web.Response(text=TEXT)

    pods = {f"p{n}": "127.0.0.1" for n in range(PODS_PER_SERVICE + 4)}
    readings, _ = scrape_pods({"127.0.0.1": hold}, pods, slots=asyncio.Semaphore(slots))
    assert (len(readings), max(held)) == (len(pods), peak)
