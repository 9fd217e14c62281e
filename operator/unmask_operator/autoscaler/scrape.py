"""Reads the gauges of load (``/metrics`` of Ready pods), all pods at once; those that targets name have to be there."""

import asyncio
import math
from collections.abc import Collection, Mapping

import aiohttp

from unmask_operator.api.autoscaling import BESIDES, GAUGES
from unmask_operator.autoscaler.history import Reading
from unmask_operator.render.names import PORT, pod_url

TIMEOUT_SECONDS = 2.0
LARGEST_ANSWER = 4 << 20  # bytes; more is no runtime's


class ScrapeError(Exception):
    """Why a pod's load is unknown, as one short clause."""


def parse(text: str, targets: Collection[str]) -> Reading:
    """The loads that Prometheus' text format tells. ScrapeError names a target's gauge that is missing or no figure."""
    found = {name: value for name, _, value in (line.partition(" ") for line in text.splitlines())}
    reading = {}
    for target, (gauge, unit) in {**GAUGES, **BESIDES}.items():
        try:
            reading[target] = _load(gauge, found) * unit
        except ScrapeError:
            if target in targets:
                raise
    return reading


def _load(gauge: str, found: Mapping[str, str]) -> float:
    if gauge not in found:
        raise ScrapeError(f"/metrics lacks {gauge}")
    try:
        load = float(found[gauge].split()[0])
    except (IndexError, ValueError):
        raise ScrapeError(f"{gauge} has no value") from None
    if not (math.isfinite(load) and load >= 0):
        raise ScrapeError(f"{gauge} is no load: {found[gauge]}")
    return load


async def read(
    session: aiohttp.ClientSession, address: str, path: str, port: int, timeout: float, statuses: Collection[int]
) -> str:
    """What a pod answers with one of these statuses. ScrapeError says why there is none."""
    try:
        async with session.get(
            pod_url(address, path, port),
            timeout=aiohttp.ClientTimeout(total=timeout),
            allow_redirects=False,
            headers={"Connection": "close"},  # a poll's pause is as long as a server keeps idle connections
        ) as answer:
            if answer.status not in statuses:
                raise ScrapeError(f"{path} answered {answer.status}")
            body = await answer.content.read(LARGEST_ANSWER)
            while not answer.content.at_eof() and len(body) < LARGEST_ANSWER:
                body += await answer.content.read(LARGEST_ANSWER - len(body))
            return body.decode(errors="replace")
    except TimeoutError:
        raise ScrapeError(f"{path} took longer than {timeout:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise ScrapeError(f"{path}: {type(error).__name__}") from error


async def scrape(
    session: aiohttp.ClientSession,
    addresses: Mapping[str, str],
    targets: Collection[str],
    port: int = PORT,
    timeout: float = TIMEOUT_SECONDS,
) -> tuple[dict[str, Reading], dict[str, str]]:
    """Readings and failures by pod, from the pods' IP addresses by pod. It takes no longer than `timeout` seconds."""
    readings: dict[str, Reading] = {}
    failures: dict[str, str] = {}

    async def one(pod: str, address: str) -> None:
        try:
            readings[pod] = parse(await read(session, address, "/metrics", port, timeout, (200,)), targets)
        except ScrapeError as error:
            failures[pod] = str(error)

    await asyncio.gather(*(one(pod, address) for pod, address in addresses.items()))
    return readings, failures
