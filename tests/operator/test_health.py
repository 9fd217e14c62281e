"""Tests of the probes and metrics of the operator's pod."""

import asyncio
import errno
import os
import socket

import aiohttp
import pytest

from tests.networks import needs_ipv6
from tests.operator.samples import seen
from unmask_operator import health
from unmask_operator.kinds import DLMS
from unmask_operator.kube.cache import Cache
from unmask_operator.metrics import Metrics
from unmask_operator.render.labels import pod_url


def ask(*paths, silence=0.0, up=True, cache=None, address="127.0.0.1"):
    """Returns the statuses and texts of answers."""

    async def scene():
        metrics = Metrics(cache or Cache(), lambda: 3)
        runner = await health.serve(health.application(metrics.registry, lambda: silence, lambda: up), 0)
        ((_, port, *_),) = runner.addresses  # both families have the same port
        answers = []
        async with aiohttp.ClientSession() as session:
            for path in paths:
                async with session.get(pod_url(address, path, port)) as answer:
                    answers.append((answer.status, await answer.text()))
        await runner.cleanup()
        return answers

    return asyncio.run(scene())


@pytest.mark.parametrize(("silence", "up", "ready"), [(1, True, 200), (60, True, 503), (1, False, 503)])
def test_ready_while_it_runs_and_the_api_server_answers_and_healthy_all_the_time(silence, up, ready):
    (healthz, _), (readyz, text) = ask("/healthz", "/readyz", silence=silence, up=up)
    assert (healthz, readyz) == (200, ready)
    if silence == 60:
        assert "has not answered for 60 s" in text


def service(name, **conditions):
    found = [{"type": kind, "status": status, "reason": reason} for kind, (status, reason) in conditions.items()]
    return seen(1, name, status={"conditions": found})


def test_metrics_have_leadership_queue_watches_and_each_service_until_it_is_gone():
    cache = Cache()
    services = (
        service("good", Ready=("True", "Serving"), Available=("True", "Serving")),
        service("bad", Ready=("False", "Loading"), Available=("False", "CrashLoopBackOff")),
        service("idle", Ready=("True", "Serving"), Available=("False", "Suspended")),
    )
    for one in services:
        cache.put(DLMS, one)
    ((status, text),) = ask("/metrics", cache=cache)
    assert status == 200
    lines = [
        "leader 0.0", "queue_length 3.0", "services 3.0",
        'service_conditions{reason="Serving",status="True",type="Ready"} 2.0',
        'service_conditions{reason="Loading",status="False",type="Ready"} 1.0', 'reconciles_total{result="error"} 0.0',
        'watch_age_seconds{kind="DiffusionLMService"}',
    ]  # fmt: skip
    for name, holds, stopped in (("good", 1, 0), ("bad", 0, 0), ("idle", 0, 1)):
        lines.append(f'service_condition{{name="{name}",namespace="ns",type="Available"}} {holds}.0')
        lines.append(f'service_stopped{{name="{name}",namespace="ns"}} {stopped}.0')
    for line in lines:
        assert f"\nunmask_operator_{line}" in text
    for one in services:
        cache.delete(DLMS, one)
    ((_, text),) = ask("/metrics", cache=cache)
    assert 'namespace="ns"' not in text


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_probes_are_answered_at_addresses_of_both_families(address):
    assert ask("/healthz", address=address) == [(200, "ok\n")]


@pytest.mark.parametrize("lacks", ["dual stack", errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_the_probes_are_answered_on_a_host_without_ipv6(monkeypatch, lacks):
    create = socket.create_server

    def refuse(address, **options):
        if options.get("family") == socket.AF_INET6:
            raise OSError(lacks, os.strerror(lacks))
        return create(address, **options)

    if lacks == "dual stack":
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    else:
        monkeypatch.setattr(socket, "create_server", refuse)
    assert ask("/healthz") == [(200, "ok\n")]


def test_a_port_in_use_is_an_error_of_the_operator():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        health.open_listener(other.getsockname()[1])
