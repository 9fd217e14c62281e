"""Knows the activator's pods, and the port on which they accept the requests of each resource."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from unmask_operator.api.autoscaling import ACTIVATOR_PORTS
from unmask_operator.autoscaler.idle import Routing
from unmask_operator.kinds import ENDPOINT_SLICES
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key, Obj, Ref, number, section
from unmask_operator.plan.observed import Activator
from unmask_operator.render.autoscaling import SERVICE_OF_SLICE
from unmask_operator.render.labels import is_own
from unmask_operator.settings import Settings

PATIENCE_SECONDS = 15.0  # without a pod of the activator, before resources that sleep are woken
NOT_INSTALLED = "spec.autoscaling.zero needs the activator: set activator.enabled of the operator's chart"
NOT_READY = "no pod of the activator is Ready, so the service keeps a replica: check the pods of Service {}"

log = logging.getLogger(__name__)


@dataclass
class Activators:
    """The activator's Ready pods, listed while a resource scales to zero, and the ports of these resources."""

    client: Client
    settings: Settings
    resources: Callable[[], Iterable[tuple[Key, Obj]]]  # all cached resources
    children: Callable[[Key], Mapping[Ref, Obj]]  # cached children of a resource
    changed: Callable[[Key], None]  # called with each resource that scales to zero when the pods have changed
    clock: Callable[[], float] = time.monotonic
    _addresses: Mapping[str, str] | None = None  # None: never listed
    _ready_at: float | None = None
    _ports: dict[Key, int] = field(default_factory=dict)

    async def poll(self) -> None:
        """Lists the pods if a resource needs them."""
        keys = [key for key, resource in self.resources() if scales_to_zero(resource)]
        self._ports = {key: port for key, port in self._ports.items() if key in keys}
        if not keys or not self.settings.activator:
            return
        before = self._addresses
        try:
            await self._list()
        except ApiError as error:
            log.warning("cannot list the activator's addresses: %s", error)
        if self._addresses != before:
            for key in keys:
                self.changed(key)

    async def observe(self, key: Key, resource: Obj) -> Activator | None:
        """Returns what a resource needs to know; None if it does not scale to zero, or there is no activator.

        Raises:
            ApiError: the pods were never listed, and the API server as a whole does not answer.
        """
        if not self.settings.activator or not scales_to_zero(resource):
            return None
        if self._addresses is None:
            try:
                await self._list()
            except ApiError as error:
                if error.general:
                    raise
                log.warning("cannot list the activator's addresses: %s", error)  # such as without the permission
                self._addresses, self._ready_at = {}, self.clock()
        return Activator(self._port(key, resource), self._addresses or {})

    def routing(self, key: Key) -> Routing:
        """Returns the state of the activator for the autoscaler."""
        if not self.settings.activator:
            return Routing(NOT_INSTALLED)
        if self._ready_at is not None and not self._addresses and self.clock() - self._ready_at > PATIENCE_SECONDS:
            return Routing(NOT_READY.format(self.settings.activator))
        return Routing(exists=any(ref.kind == "EndpointSlice" and is_own(ref, key.name) for ref in self.children(key)))

    async def _list(self) -> None:
        selector = f"{SERVICE_OF_SLICE}={self.settings.activator}"
        listed, _ = await self.client.list(ENDPOINT_SLICES, self.settings.namespace, selector)
        endpoints = [endpoint for one in listed for endpoint in one.get("endpoints") or ()]
        ready = [one for one in endpoints if section(one, "conditions").get("ready") is not False]
        self._addresses = {address: one.get("nodeName") or "" for one in ready for address in one["addresses"]}
        if self._addresses or self._ready_at is None:
            self._ready_at = self.clock()

    def _port(self, key: Key, resource: Obj) -> int:
        """Returns the resource's port: that of its status, unless another resource has it."""
        if key not in self._ports:
            taken = {*self._ports.values(), *(port_of(one) for other, one in self.resources() if other != key)}
            own = port_of(resource)
            is_free = own in ACTIVATOR_PORTS and own not in self._ports.values()
            self._ports[key] = own if is_free else next(port for port in ACTIVATOR_PORTS if port not in taken)
        return self._ports[key]


def scales_to_zero(resource: Obj) -> bool:
    return isinstance(section(resource, "spec", "autoscaling").get("zero"), dict)


def port_of(resource: Obj) -> int:
    """Returns the port in the status; 0 without one."""
    return number(section(resource, "status", "autoscaling"), "activatorPort")
