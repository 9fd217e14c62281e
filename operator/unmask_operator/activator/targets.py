"""Watches the DiffusionLMServices that scale to zero."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from runtime.config import BY_DEST
from unmask_operator.api.autoscaling import Zero
from unmask_operator.kinds import DLMS
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key, Obj, number, section
from unmask_operator.settings import INACTIVITY_SECONDS, WATCH_SECONDS, Backoffs, Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """A DiffusionLMService that scales to zero.

    Attributes:
        key: namespace and name.
        version: resource version, for a write of its replicas.
        port: on which its requests arrive.
        replicas: `spec.replicas`.
        zero: limits of held requests.
        models: ids that requests may name.
        needs_key: whether clients need an API key.
        requests_per_pod: number of requests that a pod runs at once.
    """

    key: Key
    version: str
    port: int
    replicas: int
    zero: Zero
    models: tuple[str, ...]
    needs_key: bool
    requests_per_pod: int

    @classmethod
    def read(cls, resource: Mapping[str, Any]) -> Target | None:
        """Parses a resource. None: it does not scale to zero, has no port yet, is suspended or is being deleted."""
        meta, spec = resource["metadata"], section(resource, "spec")
        port = number(section(resource, "status", "autoscaling"), "activatorPort")
        if not port or spec.get("suspend") is True or meta.get("deletionTimestamp"):
            return None
        try:
            zero = Zero.model_validate(section(spec, "autoscaling").get("zero"), extra="ignore")
        except ValidationError:
            return None
        listed = section(spec, "lora").get("adapters") or ()
        data = number(section(spec, "parallelism"), "data", 1)
        running = number(section(spec, "engine"), "maxNumReqs", BY_DEST["max_num_reqs"].default)
        key, replicas, has_auth = Key.of(resource), number(spec, "replicas", 1), bool(section(spec, "auth"))
        models = (section(spec, "model").get("name") or key.name, *(one["name"] for one in listed))
        return cls(key, meta["resourceVersion"], port, replicas, zero, models, has_auth, running * data)


class Targets:
    """Lists and watches the resources, and reports all targets after each change.

    Args:
        client: Requests to the API server.
        settings: Namespaces and selector of the resources.
        changed: Called with the targets of all namespaces.
    """

    def __init__(
        self, client: Client, settings: Settings, changed: Callable[[Mapping[Key, Target]], Awaitable[None]]
    ) -> None:
        self._client = client
        self._namespaces = settings.watch_namespaces or (None,)
        self._selector = ",".join(settings.watch_selector)
        self._changed = changed
        self._targets: dict[str | None, dict[Key, Target]] = {}
        self._tried: set[str | None] = set()

    @property
    def synced(self) -> bool:
        """Whether a list of every namespace was tried, and one succeeded. A namespace that is gone delays no other."""
        return bool(self._targets) and self._tried.issuperset(self._namespaces)

    async def run(self) -> None:
        """Runs until cancelled. An API server that fails changes no target."""
        async with asyncio.TaskGroup() as group:
            for namespace in self._namespaces:
                group.create_task(self._repeat(namespace))

    async def _repeat(self, namespace: str | None) -> None:
        pauses = iter(Backoffs())
        while True:
            try:
                version = await self._list(namespace)
                pauses = iter(Backoffs())
                while True:
                    version = await self._watch(namespace, version)
            except (ApiError, ValueError, KeyError, TypeError) as error:  # an answer of a proxy may be no change
                expired = isinstance(error, ApiError) and error.status == 410
                if not expired:
                    log.warning("cannot watch diffusionlmservices: %s", error)
                self._tried.add(namespace)
                await asyncio.sleep(0 if expired else next(pauses))

    async def _list(self, namespace: str | None) -> int:
        found: dict[Key, Target] = {}

        def read(resource: Obj) -> Obj:
            if target := Target.read(resource):
                found[target.key] = target
            return {}  # the list keeps no other resource in memory

        _, version = await self._client.list(DLMS, namespace, self._selector, transform=read)
        self._targets[namespace] = found
        self._tried.add(namespace)
        await self._report()
        return version

    async def _watch(self, namespace: str | None, version: int) -> int:
        """Follows changes until the watch ends. Returns the version of the last one."""
        changes = self._client.watch(DLMS, namespace, self._selector, version, WATCH_SECONDS, INACTIVITY_SECONDS)
        async for change, resource in changes:
            version = int(resource["metadata"]["resourceVersion"])
            if change == "BOOKMARK":
                continue
            known = self._targets[namespace]
            known.pop(Key.of(resource), None)
            if change != "DELETED" and (target := Target.read(resource)):
                known[target.key] = target
            await self._report()
        return version

    async def _report(self) -> None:
        await self._changed({key: target for known in self._targets.values() for key, target in known.items()})
