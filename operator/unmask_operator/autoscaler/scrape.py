"""Reads the three gauges that the runtime promises (``/metrics`` of Ready pods), all pods at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

import aiohttp

from unmask_operator.autoscaler.history import Reading
from unmask_operator.render.names import PORT, pod_url

TIMEOUT_SECONDS = 2.0
LARGEST_ANSWER = 4 << 20  # bytes; more is no runtime's
_GAUGES = {
    "unmask_requests_waiting": 1.0,
    "unmask_requests_running": 1.0,
    "unmask_kv_usage_ratio": 100.0,  # the spec counts per cent
}


class ScrapeError(Exception):
    """Why a pod's load is unknown, as one short clause."""


def parse(text: str) -> Reading:
    """The gauges in Prometheus' text format. ScrapeError names one that is missing or no figure."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in _GAUGES:
            try:
                found[name] = float(value.split()[0]) * _GAUGES[name]
            except (IndexError, ValueError):
                raise ScrapeError(f"{name} has no value") from None
            if not (math.isfinite(found[name]) and found[name] >= 0):
                raise ScrapeError(f"{name} is no load: {value}")
    for name in _GAUGES:
        if name not in found:
            raise ScrapeError(f"/metrics lacks {name}")
    return Reading(*(found[name] for name in _GAUGES))


async def _read(session: aiohttp.ClientSession, address: str, port: int, timeout: float) -> Reading:
    try:
        async with session.get(
            pod_url(address, "/metrics", port),
            timeout=aiohttp.ClientTimeout(total=timeout),
            allow_redirects=False,
            headers={"Connection": "close"},  # a poll's pause is as long as a server keeps idle connections
        ) as answer:
            if answer.status != 200:
                raise ScrapeError(f"/metrics answered {answer.status}")
            body = await answer.content.read(LARGEST_ANSWER)
            while not answer.content.at_eof() and len(body) < LARGEST_ANSWER:
                body += await answer.content.read(LARGEST_ANSWER - len(body))
            return parse(body.decode(errors="replace"))
    except TimeoutError:
        raise ScrapeError(f"/metrics took longer than {timeout:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ScrapeError(f"/metrics: {type(error).__name__}") from error


async def scrape(
    session: aiohttp.ClientSession, addresses: Mapping[str, str], port: int = PORT, timeout: float = TIMEOUT_SECONDS
) -> tuple[dict[str, Reading], dict[str, str]]:
    """Readings and failures by pod, from the pods' IP addresses by pod. It takes no longer than `timeout` seconds."""

    async def one(pod: str, address: str) -> tuple[str, Reading | str]:
        try:
            return pod, await _read(session, address, port, timeout)
        except ScrapeError as error:
            return pod, str(error)

    answers = await asyncio.gather(*(one(pod, address) for pod, address in addresses.items()))
    readings = {pod: answer for pod, answer in answers if isinstance(answer, Reading)}
    return readings, {pod: answer for pod, answer in answers if isinstance(answer, str)}
