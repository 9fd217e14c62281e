"""The kopf handlers of the operator.

A handler updates the cache and enqueues the resource. Workers of the work queue reconcile it. kopf exits when a watched
kind disappears. So it does not watch PodMonitors, whose CustomResourceDefinition is optional: `controller/resync.py`
lists them.
"""

from typing import Any

import kopf

from unmask_operator.controller.resync import EventHandler
from unmask_operator.kinds import CACHED, CLAIMS, JOBS, OPTIONAL
from unmask_operator.kube.watch_login import WatchLogin
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

    async def observe(event: kopf.RawEvent, param: Any = None, **_: Any) -> None:
        events.on_event(param, event["type"], dict(event["object"]))

    for kind in (*CACHED, *((JOBS, CLAIMS) if own.model_cache else ())):
        if kind not in OPTIONAL:
            kopf.on.event(*kind.resource, param=kind, registry=registry)(observe)
    return registry
