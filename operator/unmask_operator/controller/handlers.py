"""kopf's watches: every event goes into the store, and what is news onto the queue. kopf writes nothing anywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import kopf

from unmask_operator.client.kinds import SERVICES, ApiKind
from unmask_operator.client.login import login
from unmask_operator.client.store import Store
from unmask_operator.objects import SERVICE_LABEL, Key, Obj

STREAM_SECONDS = 600  # how long one watch request lasts; a new one costs a request
SILENCE_SECONDS = 180.0  # a stream without even a bookmark (one a minute) for so long is dead

News = Callable[[ApiKind, Key, Obj], None]  # the resource concerned, and the object that changed

log = logging.getLogger(__name__)


class Backoffs:
    """Pauses between kopf's tries of a request, without an end: an API server that is away is no reason to stop."""

    def __iter__(self) -> Iterator[float]:
        pause = 1.0
        while True:
            yield pause
            pause = min(pause * 2, 30.0)


def settings(kinds: Iterable[ApiKind], selector: str) -> kopf.OperatorSettings:
    """kopf as a supplier of watches alone: no peering, no Events, no scanning for new kinds and namespaces.

    Args:
        selector: of the resources' labels, "" for all.
    """
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.peering.standalone = True
    made.scanning.disabled = True
    made.networking.error_backoffs = Backoffs()
    made.networking.request_timeout = 60.0
    made.watching.server_timeout = STREAM_SECONDS
    made.watching.inactivity_timeout = SILENCE_SECONDS
    made.queueing.exit_timeout = 0.5
    made.process.ultimate_exiting_timeout = None
    for kind in kinds:
        wanted = selector if kind is SERVICES else SERVICE_LABEL
        if wanted:
            made.watching.label_selectors[kind.group, kind.version, kind.plural] = wanted
    return made


def registry(kinds: Iterable[ApiKind], store: Store, news: News) -> kopf.OperatorRegistry:
    """A handler for each kind. `news` hears of what was not known yet."""
    made = kopf.OperatorRegistry()
    kopf.on.login(registry=made, id="login", errors=kopf.ErrorsMode.PERMANENT)(login)
    for kind in kinds:
        _watch(made, kind, store, news)
    return made


def _watch(made: kopf.OperatorRegistry, kind: ApiKind, store: Store, news: News) -> None:
    # Only `on.event` is used: every other kind of handler would make kopf annotate the object or hold its deletion.
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=made, id=f"watch-{kind.plural}")
    async def on_event(event: Any, **_: Any) -> None:
        change, obj = event["type"], event["object"]  # no kind: from the list that comes before a watch
        if change == "DELETED":
            key = store.delete(kind, obj)
        else:
            key = store.put(kind, obj, answered=change is None)
        if key is not None:
            news(kind, key, obj)
