"""A service under load: 20 clients in a pod of the cluster that never retry (cluster/go/pod/load.go)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from e2e.cluster import Kube
from e2e.cluster.kube import ApiError
from e2e.pods import pod
from e2e.services import POD_TIMEOUT

CLIENTS = 20
ENOUGH = 300  # requests over a change, to say that it fails none
REQUEST_SECONDS = 120  # that a client waits for an answer
LOAD_TIMEOUT = 1200.0  # seconds until requests have ended: a busy machine may take most of REQUEST_SECONDS for each
PAUSE = "1s"  # 20 clients with it send 10 to 18 requests a second: a busy pod with room for another to start


@dataclass(frozen=True)
class Failure:
    """A request that brought no whole answer. `started` and `ended` count seconds from the start of the load."""

    started: float
    ended: float
    keep_alive: bool
    reused: bool
    streamed: bool
    cause: str


@dataclass(frozen=True)
class Report:
    """
    Attributes:
        seconds: since the start of the load.
        requests: that ended, well or not; `streamed`, `keep_alive`: how many of them.
        connections: they took.
        failures: all of the `failed` ones.
        latency: p50, p95, p99 and max of the whole answers, in seconds.
        fewest: answers that one client had, the one with the fewest.
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
    """The pod `called` of a namespace, while it runs."""

    def __init__(self, kube: Kube, namespace: str, called: str) -> None:
        self._kube = kube
        self._proxy = kube.path("v1", "Pod", namespace, f"{called}:8080", "proxy")

    def report(self) -> Report:
        """What has happened so far."""
        return self._kube.wait("the load's report", self.found)

    def found(self) -> Report | None:
        """What has happened so far; None when the pod is not reached, because it starts or for a moment."""
        return self._ask("GET", "/")

    def stop(self) -> Report:
        """Send no more requests, wait for those under way, and tell what happened in all."""
        return self._kube.wait("the load's last report", lambda: self._ask("POST", "/stop"))

    def served(self, at_least: int = 0) -> None:
        """Stops after `at_least` requests and asserts that none failed: each got its answer within REQUEST_SECONDS.

        Every client has had at least one whole response and one stream by then, since it requests them alternately.
        """
        self.wait_requests(at_least - self.report().requests)

        def each_served() -> bool:
            report = self.found()
            return report is not None and (report.fewest >= 2 or report.failed > 0)

        self._kube.wait("two answers for every client", each_served, timeout=LOAD_TIMEOUT)
        report = self.stop()
        assert not report.failed, report.failures

    def wait_requests(self, more: int, *, timeout: float = LOAD_TIMEOUT) -> Report:
        """Wait until so many more requests have ended."""
        goal = self.report().requests + more

        def reached() -> Report | None:
            report = self.found()
            return report if report and report.requests >= goal else None

        return self._kube.wait(f"{more} more requests", reached, timeout=timeout)

    def _ask(self, method: str, path: str) -> Report | None:
        try:
            report = self._kube.request(method, self._proxy + path)
        except ApiError as error:
            if error.status not in (400, 502, 503):  # no address yet, nobody listens yet, or not reached
                raise
            return None
        report = Report(**{**report, "failures": tuple(Failure(**one) for one in report["failures"])})
        assert report.failed == len(report.failures), "more failures than it lists"
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
    """Put service `name` under load until the block ends; then print what happened. The block begins with answers.

    The clients ask the Service of that name, or that of `at` (`name` or `name:port`) in the same namespace.
    """
    host, _, port = (at or name).partition(":")
    url = f"http://{host}.{namespace}.svc:{port or 80}/v1"
    options = ("-clients", str(clients), "-pause", pause, "-timeout", f"{REQUEST_SECONDS}s")
    made = kube.create(pod(namespace, called, "load", *options, url, name))

    it = Load(kube, namespace, called)

    def answers() -> bool:
        report = it.found()
        return report is not None and report.requests > 0

    try:
        kube.wait("the load's first answer", answers, timeout=POD_TIMEOUT)
        yield it
    finally:
        with contextlib.suppress(ApiError):  # where it never ran there is nothing to tell
            print(f"{called}: {it.found()}")
        kube.delete(made)
