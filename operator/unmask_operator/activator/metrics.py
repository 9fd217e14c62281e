"""The activator's metrics, served under ``/metrics``."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SERVICE = ("namespace", "name")
_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """The metrics of one process of the activator, in a registry of their own."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.held = Gauge("unmask_activator_held_requests", "Requests that wait for a pod.", _SERVICE, registry=own)
        self.woken = Counter("unmask_activator_wakes", "Wake-ups of services.", _SERVICE, registry=own)
        text = "Requests answered with an error: full, timeout, no_key, asleep, stopped, invalid or busy."
        self.refused = Counter("unmask_activator_refused", text, (*_SERVICE, "reason"), registry=own)
        text, name = "Time for which requests waited for a pod that took them.", "unmask_activator_hold_seconds"
        self.hold_seconds = Histogram(name, text, _SERVICE, registry=own, buckets=_SECONDS)
        self.services = Gauge("unmask_activator_services", "Services whose requests are accepted.", registry=own)
