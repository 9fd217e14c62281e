"""Events as the API server takes them (events.k8s.io/v1)."""

import uuid
from datetime import datetime

from unmask_operator.client.kinds import EVENTS
from unmask_operator.objects import API_VERSION, FIELD_MANAGER, KIND, Obj
from unmask_operator.status.transitions import Event

LONGEST_NOTE = 1024  # bytes, the API's own limit


def event(service: Obj, transition: Event, instance: str, now: datetime) -> Obj:
    """The Event of a transition, about the resource, reported by the pod `instance`."""
    meta = service["metadata"]
    note = transition.message.encode()[:LONGEST_NOTE].decode(errors="ignore")
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": meta["namespace"], "name": f"{meta['name']}.{uuid.uuid4().hex[:16]}"},
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "type": transition.type,
        "reason": transition.reason,
        "note": note,
        "action": "Reconcile",
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": FIELD_MANAGER,
        "reportingInstance": instance,
    }
