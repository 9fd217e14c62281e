"""A service under load: 20 clients in a pod of the cluster that never retry (cluster/go/pod/load.go)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from e2e.cluster import Kube
from e2e.cluster.kube import ApiError
from e2e.pods import pod

CLIENTS = 20
ENOUGH = 300  # requests over a change, to say that it fails none
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
        failures: the first hundred of the `failed` ones.
        latency: p50, p95, p99 and max of the whole answers, in seconds.
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


class Load:
    """The pod `called` of a namespace, while it runs."""

    def __init__(self, kube: Kube, namespace: str, called: str) -> None:
        self._kube = kube
        self._proxy = kube.path("v1", "Pod", namespace, f"{called}:8080", "proxy")

    def report(self) -> Report:
        """What has happened so far."""
        return self._read(self._kube.request("GET", f"{self._proxy}/"))

    def stop(self) -> Report:
        """Send no more requests, wait for those under way, and tell what happened in all."""
        return self._read(self._kube.request("POST", f"{self._proxy}/stop"))

    def wait_requests(self, more: int, *, timeout: float = 120) -> Report:
        """Wait until so many more requests have ended."""
        goal = self.report().requests + more

        def reached() -> Report | None:
            report = self.report()
            return report if report.requests >= goal else None

        return self._kube.wait(f"{more} more requests", reached, timeout=timeout)

    @staticmethod
    def _read(told: dict) -> Report:  # type: ignore[type-arg]
        return Report(**{**told, "failures": tuple(Failure(**one) for one in told["failures"])})


@contextlib.contextmanager
def load(
    kube: Kube,
    namespace: str,
    name: str = "demo",
    *,
    called: str = "load",
    clients: int = CLIENTS,
    pause: str = PAUSE,
) -> Iterator[Load]:
    """Put service `name` under load until the block ends; then print what happened. The block begins with answers."""
    url = f"http://{name}.{namespace}.svc/v1"
    made = kube.create(pod(namespace, called, "load", "-clients", str(clients), "-pause", pause, url, name))

    it = Load(kube, namespace, called)

    def answers() -> bool:
        try:
            return it.report().requests > 0
        except ApiError as error:
            if error.status not in (400, 503):  # no address yet, nobody listens yet
                raise
            return False

    try:
        kube.wait("the load's first answer", answers, timeout=180)
        yield it
    finally:
        with contextlib.suppress(ApiError):  # where it never ran there is nothing to tell
            print(f"{called}: {it.report()}")
        kube.delete(made)
