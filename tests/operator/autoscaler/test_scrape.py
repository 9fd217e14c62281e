"""Tests of the scrape of pods' gauges, with a test server and with the runtime's own metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web

from runtime.request.engine_messages import EngineStats
from runtime.server.metrics import Metrics, RequestMetrics
from tests.networks import needs_ipv6
from tests.wait import TIMEOUT
from unmask_operator.api.autoscaling import DEFAULT_TARGETS, GAUGES
from unmask_operator.autoscaler.decide import decide
from unmask_operator.autoscaler.history import History, Reading, Sample
from unmask_operator.autoscaler.rules import Rules
from unmask_operator.autoscaler.scrape import ScrapeError, parse, scrape
from unmask_operator.pod_http import PODS_PER_SERVICE, PodSlots

LOADS = {"queuedRequestsPerReplica": 3, "runningRequestsPerReplica": 12, "kvCacheUtilizationPercent": 25}
TEXT = """# HELP unmask_requests_waiting Requests that wait for room in an engine.
# TYPE unmask_requests_waiting gauge
unmask_requests_waiting 3.0
unmask_requests_running 12.0
unmask_kv_usage_ratio 0.25
unmask_requests_total{outcome="stop"} 9.0
"""

Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def _pod(address: str, port: int, handler: Handler) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, address, port)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _answer(text: str, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return handler


@pytest.mark.parametrize("gauge", ["unmask_max_running_requests", "unmask_requests_running_most"])
def test_the_limit_of_running_requests_is_read_under_its_new_and_old_name(gauge: str) -> None:
    assert parse(f"{TEXT}{gauge} 16.0\n", LOADS)["max_running"] == 16


def test_the_runtimes_own_metrics_are_read() -> None:
    metrics = Metrics("m", RequestMetrics())
    metrics.engine_metrics.live_by_replica, metrics.engine_metrics.max_running_requests = [12], 8
    metrics.load.set(90)
    metrics.record_stats(0, EngineStats(waiting=7, pages_total=8, pages_used=2))
    assert parse(metrics.text().decode(), GAUGES) == LOADS | {
        "queuedRequestsPerReplica": 7,
        "runningRequestsPerReplica": 5,
        "max_running": 8,
        "load_seconds": 90,
    }
    metrics.engine_metrics.live_by_replica = [12, 3]  # engines of one pod
    assert parse(metrics.text().decode(), GAUGES)["max_running"] == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("unmask_requests_running 12.0\n", ""), "/metrics lacks unmask_requests_running"),
        (TEXT.replace("12.0", "many"), "unmask_requests_running has no value"),
        (TEXT.replace("0.25", "NaN"), "unmask_kv_usage_ratio must be a finite number from 0 to 1e+12, got NaN"),
        (TEXT.replace("3.0", "-3"), "unmask_requests_waiting must be a finite number from 0 to 1e+12, got -3"),
        (TEXT.replace("0.25", "1e308"), "unmask_kv_usage_ratio must be a finite number from 0 to 1e+12, got 1e308"),
        ("", "/metrics lacks unmask_requests_waiting"),
    ],
)
def test_invalid_metrics_are_rejected_with_the_name_of_the_gauge(text: str, message: str) -> None:
    with pytest.raises(ScrapeError, match=re.escape(message)):
        parse(text, GAUGES)


@pytest.mark.parametrize("extra", ["unmask_max_running_requests 5e-324", "unmask_model_load_seconds 1e12"])
def test_extreme_gauges_of_a_hostile_pod_lead_to_a_decision(extra: str) -> None:
    text = f"unmask_requests_waiting 1e12\nunmask_requests_running 1e12\nunmask_kv_usage_ratio 1e12\n{extra}\n"
    reading = parse(text, GAUGES)
    readings = {f"pod-{i}": reading for i in range(1000)}
    rules = Rules(1, 5, dict.fromkeys(GAUGES, 1))
    decision, _ = decide(rules, Sample(datetime.now(UTC), 2, readings), History())
    assert decision.desired == 5


def test_only_the_gauges_of_the_targets_are_parsed() -> None:
    assert parse("unmask_requests_waiting 3.0\nunmask_kv_usage_ratio NaN\n", DEFAULT_TARGETS) == {
        "queuedRequestsPerReplica": 3
    }


def test_pods_are_scraped_concurrently_and_each_failure_has_its_cause() -> None:
    """Checks concurrency by two pods that answer only after both have received a request."""

    async def go() -> tuple[dict[str, Reading], dict[str, str]]:
        both = asyncio.Barrier(2)

        async def together(request: web.Request) -> web.Response:
            await both.wait()
            return web.Response(text=TEXT)

        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(_pod("127.0.0.1", 0, together))
            others = {"127.0.0.2": together, "127.0.0.3": _answer(TEXT, 503), "127.0.0.4": _answer("x")}
            for address, handler in others.items():
                await stack.enter_async_context(_pod(address, port, handler))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            addresses = {f"p{n}": f"127.0.0.{n}" for n in range(1, 6)}
            return await scrape(session, addresses, GAUGES, port, timeout=TIMEOUT)

    readings, failures = asyncio.run(go())
    assert readings == {"p1": LOADS, "p2": LOADS}
    assert failures == {
        "p3": "/metrics answered 503",
        "p4": "/metrics lacks unmask_requests_waiting",
        "p5": "/metrics: ClientConnectorError",
    }


@needs_ipv6
def test_a_pod_with_an_ipv6_address_is_read() -> None:
    async def go() -> tuple[dict[str, Reading], dict[str, str]]:
        async with _pod("::1", 0, _answer(TEXT)) as port, aiohttp.ClientSession() as session:
            return await scrape(session, {"p": "::1"}, GAUGES, port, timeout=TIMEOUT)

    assert asyncio.run(go()) == ({"p": LOADS}, {})


def test_a_pod_that_never_answers_fails_at_the_limit() -> None:
    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def go() -> tuple[dict[str, Reading], dict[str, str]]:
        async with _pod("127.0.0.1", 0, never) as port, aiohttp.ClientSession() as session:
            return await scrape(session, {"p": "127.0.0.1"}, GAUGES, port, timeout=0.05)

    assert asyncio.run(go()) == ({}, {"p": "/metrics took longer than 0.05 s"})


def test_unresponsive_pods_beyond_the_concurrency_limit_time_out_one_after_the_other() -> None:
    """Checks that the timeout applies per pod, so that each of many pods of a service is scraped."""

    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def go() -> tuple[dict[str, Reading], dict[str, str]]:
        async with _pod("127.0.0.1", 0, never) as port, aiohttp.ClientSession() as session:
            addresses = {f"p{n}": "127.0.0.1" for n in range(2 * PODS_PER_SERVICE)}
            return await scrape(session, addresses, GAUGES, port, timeout=0.2)

    readings, failures = asyncio.run(go())
    assert readings == {}
    assert len(failures) == 2 * PODS_PER_SERVICE
    assert set(failures.values()) == {"/metrics took longer than 0.2 s"}


def test_slow_pods_of_many_services_leave_slots_for_other_services() -> None:
    """Checks that services whose pods never answer do not occupy all slots."""

    async def go() -> tuple[dict[str, Reading], dict[str, str]]:
        held, enough = [0], asyncio.Event()

        async def never(request: web.Request) -> web.Response:
            held[0] += 1
            if held[0] == 6:
                enough.set()
            await asyncio.Event().wait()
            raise AssertionError

        slots = PodSlots(total=8, per_service=2)
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(_pod("127.0.0.1", 0, never))
            await stack.enter_async_context(_pod("127.0.0.2", port, _answer(TEXT)))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            slow = {f"p{n}": "127.0.0.1" for n in range(50)}
            others = [
                asyncio.create_task(scrape(session, slow, GAUGES, port, timeout=TIMEOUT, slots=slots)) for _ in range(3)
            ]
            await enough.wait()
            honest = {f"p{n}": "127.0.0.2" for n in range(20)}
            result = await scrape(session, honest, GAUGES, port, timeout=TIMEOUT, slots=slots)
            for other in others:
                other.cancel()
            await asyncio.wait(others)
        return result

    assert asyncio.run(go()) == ({f"p{n}": LOADS for n in range(20)}, {})


@pytest.mark.parametrize("value", ["x" * 200_000, " " * 200_000, "NaN" + "x" * 200_000, "NaN " + "x" * 200_000, ""])
def test_the_message_about_a_gauge_is_short_whatever_its_value(value: str) -> None:
    with pytest.raises(ScrapeError) as caught:
        parse(f"unmask_requests_waiting {value}\n", DEFAULT_TARGETS)
    assert len(str(caught.value)) < 150


def test_a_gauge_is_found_by_its_full_name_at_the_start_of_a_row_only() -> None:
    text = "x unmask_requests_waiting 9\nunmask_requests_waiting_total 9\n# unmask_requests_waiting 9\n"
    with pytest.raises(ScrapeError, match="lacks"):
        parse(text, DEFAULT_TARGETS)
    assert parse(text + "unmask_requests_waiting 3", DEFAULT_TARGETS) == {"queuedRequestsPerReplica": 3}
