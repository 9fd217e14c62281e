"""The kopf handlers of the operator.

A handler updates the cache and enqueues the resource. Workers of the work queue reconcile it. kopf exits when a watched
kind disappears. So it does not watch PodMonitors, whose CustomResourceDefinition is optional: `controller/resync.py`
lists them.
"""

from typing import Any

import kopf

from unmask_operator.controller.event_handler import EventHandler
from unmask_operator.kube.kinds import KINDS_BY_RESOURCE
from unmask_operator.kube.watch_login import WatchLogin
from unmask_operator.objects import GROUP, PLURAL, VERSION
from unmask_operator.settings import Settings, configure_kopf

LOGIN_RETRY_SECONDS = 5.0


def make_registry(events: EventHandler, login: WatchLogin, own: Settings) -> kopf.OperatorRegistry:
    """Returns the registry of handlers.

    Args:
        events: Receives the events of all watches.
        login: Opens the session of the watches.
        own: The operator's settings.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure_kopf(settings, own)

    @kopf.on.login(registry=registry, backoff=LOGIN_RETRY_SECONDS)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        server, session = await login.open()
        return kopf.AiohttpSession(server=server, aiohttp_session=session)

    @kopf.on.event(group=GROUP, version=VERSION, plural=PLURAL, registry=registry)
    @kopf.on.event(group="", version="v1", plural="pods", registry=registry)
    @kopf.on.event(group="", version="v1", plural="services", registry=registry)
    @kopf.on.event(group="", version="v1", plural="serviceaccounts", registry=registry)
    @kopf.on.event(group="", version="v1", plural="configmaps", registry=registry)
    @kopf.on.event(group="apps", version="v1", plural="deployments", registry=registry)
    @kopf.on.event(group="apps", version="v1", plural="controllerrevisions", registry=registry)
    @kopf.on.event(group="autoscaling", version="v2", plural="horizontalpodautoscalers", registry=registry)
    @kopf.on.event(group="networking.k8s.io", version="v1", plural="networkpolicies", registry=registry)
    @kopf.on.event(group="policy", version="v1", plural="poddisruptionbudgets", registry=registry)
    async def observe(event: kopf.RawEvent, resource: kopf.Resource, **_: Any) -> None:
        kind = KINDS_BY_RESOURCE[resource.group, resource.version, resource.plural]
        events.on_event(kind, event["type"], dict(event["object"]))

    return registry
