"""Scrapes the load of Ready pods from ``/metrics``."""

import asyncio
import math
import re
from collections.abc import Collection, Mapping

import aiohttp

from unmask_operator.api.autoscaling import EXTRA_GAUGES, GAUGES
from unmask_operator.autoscaler.history import Reading
from unmask_operator.pod_http import PODS_AT_ONCE, PODS_PER_SERVICE, TIMEOUT_SECONDS, PodRequestError, get_text
from unmask_operator.render.labels import PORT

LONGEST_VALUE = 64  # characters of a gauge's value
FINISHED = "finished"  # a target: the number of requests that the pod has finished
_FINISHED = re.compile(r"^unmask_requests_total\{[^}\n]{0,512}\} (\S{1,64})", re.MULTILINE)
LARGEST_LOAD = 1e12  # value of a gauge; the sum over all pods of a service stays finite


class ScrapeError(PodRequestError):
    """A gauge of ``/metrics`` is missing or has an invalid value."""


def parse(text: str, targets: Collection[str]) -> Reading:
    """Parses the required gauges from Prometheus text format, and no other metrics.

    Args:
        text: The body of ``/metrics``.
        targets: The targets whose gauges are required.

    Returns:
        The load by target, for each gauge in the text, and the number of finished requests if it is a target.

    Raises:
        ScrapeError: The gauge of a target is missing or has an invalid value.
    """
    text = "\n" + text
    reading = {FINISHED: float(sum(map(_number, _FINISHED.findall(text))))} if FINISHED in targets else {}
    for target, (gauge, unit) in {**GAUGES, **EXTRA_GAUGES}.items():
        try:
            reading[target] = _load(gauge, text) * unit
        except ScrapeError:
            if target in targets:
                raise
    return reading


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _load(gauge: str, text: str) -> float:
    start = text.find(f"\n{gauge} ")
    if start < 0:
        raise ScrapeError(f"/metrics lacks {gauge}")
    start += len(gauge) + 2
    value = text[start : start + LONGEST_VALUE].split("\n", 1)[0]
    try:
        load = float(value.split()[0])
    except (IndexError, ValueError):
        raise ScrapeError(f"{gauge} has no value") from None
    if not 0 <= load <= LARGEST_LOAD:  # NaN is not in the range either
        raise ScrapeError(f"{gauge} must be a finite number from 0 to {LARGEST_LOAD:g}, got {value}")
    return load


async def scrape(
    session: aiohttp.ClientSession,
    addresses: Mapping[str, str],
    targets: Collection[str],
    port: int = PORT,
    timeout: float = TIMEOUT_SECONDS,
    slots: asyncio.Semaphore | None = None,
) -> tuple[dict[str, Reading], dict[str, str]]:
    """Scrapes the pods of one resource.

    Args:
        session: From `pod_session`.
        addresses: IP addresses by pod.
        targets: The targets whose gauges are required.
        port: The pods' port.
        timeout: Seconds per pod, without the wait for a slot.
        slots: Limits the requests of all resources; None for a separate limit.

    Returns:
        Metrics by pod, and error messages by pod.
    """
    readings: dict[str, Reading] = {}
    failures: dict[str, str] = {}
    slots, own = slots or asyncio.Semaphore(PODS_AT_ONCE), asyncio.Semaphore(PODS_PER_SERVICE)

    async def read_pod(pod: str, address: str) -> None:
        try:
            async with own, slots:
                readings[pod] = parse(await get_text(session, address, "/metrics", port, timeout), targets)
        except PodRequestError as error:
            failures[pod] = str(error)

    async with asyncio.TaskGroup() as group:
        for pod, address in addresses.items():
            group.create_task(read_pod(pod, address))
    return readings, failures
