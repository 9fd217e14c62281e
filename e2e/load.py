"""Load on a service from 20 clients that never retry. They run in a pod of the cluster (cluster/go/pod/load.go)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from e2e.cluster import Kube
from e2e.cluster.kube import ApiError
from e2e.pods import pod
from e2e.services import POD_TIMEOUT

CLIENTS = 20
ENOUGH = 300  # number of requests during a change that is enough to conclude that none fails
REQUEST_SECONDS = 120  # a client's timeout per request
LOAD_TIMEOUT = 1200.0  # seconds until requests have ended: a busy machine may take most of REQUEST_SECONDS for each
PAUSE = "1s"  # 20 clients then send 10 to 18 requests per second: the pod is busy, but another pod can still start


@dataclass(frozen=True)
class Failure:
    """A request without a complete response. `started` and `ended` are seconds since the start of the load."""

    started: float
    ended: float
    keep_alive: bool
    reused: bool
    streamed: bool
    cause: str


@dataclass(frozen=True)
class Report:
    """Statistics of the load.

    Attributes:
        seconds: time since the start of the load.
        requests: number of requests that have ended, whether or not they failed. `streamed` and `keep_alive` count
            those that streamed and those that used keep-alive.
        connections: number of connections that the requests used.
        failures: all `failed` requests.
        latency: p50, p95, p99 and maximum of the complete responses, in seconds.
        fewest: number of responses of the client that received the fewest.
    """

    seconds: float
    requests: int
    in_flight: int
    streamed: int
    keep_alive: int
    connections: int
    failed: int
    failures: tuple[Failure, ...]
    latency: dict[str, float]
    fewest: int


class Load:
    """Controls the running load pod named `called`."""

    def __init__(self, kube: Kube, namespace: str, called: str) -> None:
        self._kube = kube
        self._proxy = kube.path("v1", "Pod", namespace, f"{called}:8080", "proxy")

    def report(self) -> Report:
        """Returns the statistics so far."""
        return self._kube.wait("the load's report", self.found)

    def found(self) -> Report | None:
        """Returns the statistics so far; None if the pod cannot be reached, for example while it starts."""
        return self._ask("GET", "/")

    def stop(self) -> Report:
        """Stops sending requests, waits for those in flight, and returns the final statistics."""
        return self._kube.wait("the load's last report", lambda: self._ask("POST", "/stop"))

    def served(self, at_least: int = 0) -> None:
        """Stops after `at_least` requests and asserts that none failed: each got its answer within REQUEST_SECONDS.

        Every client has had at least one complete response and one stream by then, since it requests them alternately.
        """
        self.wait_requests(at_least - self.report().requests)

        def each_served() -> bool:
            report = self.found()
            return report is not None and (report.fewest >= 2 or report.failed > 0)

        self._kube.wait("two answers for every client", each_served, timeout=LOAD_TIMEOUT)
        report = self.stop()
        assert not report.failed, report.failures

    def wait_requests(self, more: int, *, timeout: float = LOAD_TIMEOUT) -> Report:
        """Waits until this number of further requests has ended."""
        goal = self.report().requests + more

        def reached() -> Report | None:
            report = self.found()
            return report if report and report.requests >= goal else None

        return self._kube.wait(f"{more} more requests", reached, timeout=timeout)

    def _ask(self, method: str, path: str) -> Report | None:
        try:
            report = self._kube.request(method, self._proxy + path)
        except ApiError as error:
            if error.status not in (400, 502, 503):  # no address yet, no listener yet, or unreachable
                raise
            return None
        report = Report(**{**report, "failures": tuple(Failure(**one) for one in report["failures"])})
        assert report.failed == len(report.failures), "the report does not list all failures"
        return report


@contextlib.contextmanager
def load(
    kube: Kube,
    namespace: str,
    name: str = "demo",
    *,
    called: str = "load",
    at: str = "",
    clients: int = CLIENTS,
    pause: str = PAUSE,
) -> Iterator[Load]:
    """Puts service `name` under load until the block ends, then prints the statistics.

    The block begins after the first response. The clients send requests to the Service of that name, or to the one
    that `at` (`name` or `name:port`) gives, in the same namespace.
    """
    host, _, port = (at or name).partition(":")
    url = f"http://{host}.{namespace}.svc:{port or 80}/v1"
    options = ("-clients", str(clients), "-pause", pause, "-timeout", f"{REQUEST_SECONDS}s", "-wait")
    made = kube.create(pod(namespace, called, "load", *options, url, name))

    it = Load(kube, namespace, called)

    def answers() -> bool:
        report = it.found()
        return report is not None and report.requests > 0

    try:
        kube.wait("the load's first answer", answers, timeout=POD_TIMEOUT)
        yield it
    finally:
        with contextlib.suppress(ApiError):  # there are no statistics if the pod never ran
            print(f"{called}: {it.found()}")
        kube.delete(made)
