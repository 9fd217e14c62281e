"""Explains pods by their Events: volumes or sandboxes that cannot be set up, probes that end a container."""

import itertools
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from unmask_operator.objects import Obj, section
from unmask_operator.plan.observed import PodEvent
from unmask_operator.render.labels import MAIN
from unmask_operator.status.condition import Condition, false
from unmask_operator.status.pods.pod_status import NORMAL_WAITING_REASONS, containers, is_live, is_scheduled, name
from unmask_operator.status.pods.terminations import container_path

PATIENCE = timedelta(seconds=20)  # time to prepare a pod before its Events are read
ON_REQUEST = (0, 137, 143)  # exit codes after SIGTERM or SIGKILL
ONE_AT_A_TIME = (
    "another pod uses the claim, whose access mode allows one pod at a time: set maxSurge 0, maxUnavailable 1 in "
    "spec.rolloutStrategy, or use a ReadWriteMany claim, which more than one replica needs anyway"
)
_PREPARED = ("Pulling", "Pulled", "Created")  # volumes and sandbox are set up
_REASON = re.compile(r"[A-Za-z]{1,128}")  # a subset of valid reasons
_KILLED = re.compile(r"Container (\S+) failed (startup|liveness) probe")


def is_silent(pod: Obj, now: datetime) -> bool:
    """Returns whether the pod's status may not explain it: nothing starts, or a container ended without an error."""
    if not is_live(pod) or not is_scheduled(pod):
        return False
    if _ended(pod):
        return True
    begun = pod["status"].get("startTime")
    return _untouched(pod) and begun is not None and now - datetime.fromisoformat(begun) > PATIENCE


def trouble(pod: Obj, events: Sequence[PodEvent]) -> Condition | None:
    """Returns the condition that the Events, oldest first, give for a silent pod, or None."""
    if ended := _ended(pod):
        return _probe(pod, ended, events)
    # Warnings before the setup was complete are outdated: the image pull may take minutes.
    since = list(itertools.takewhile(lambda one: one.reason not in _PREPARED, reversed(events)))
    warnings = [one for one in since if one.warning]
    if not warnings or not _untouched(pod):
        return None
    # Reported once, and followed by the kubelet's timeouts every two minutes.
    attached = next((one for one in warnings if "Multi-Attach error" in one.note), None)
    one = attached or warnings[0]
    return false(
        one.reason if _REASON.fullmatch(one.reason) else "NotPrepared",
        f"the node cannot prepare pod {name(pod)}: {one.note}{f'; {ONE_AT_A_TIME}' if attached else ''}",
    )


def _untouched(pod: Obj) -> bool:
    """Returns whether all containers wait for their first start without a reason."""
    states = [section(container, "state").get("waiting") for container in containers(pod)]
    waits = all(state is not None and state.get("reason", "") in NORMAL_WAITING_REASONS for state in states)
    return waits and not any(container.get("lastState") for container in containers(pod))


def _probe(pod: Obj, container: Obj, events: Sequence[PodEvent]) -> Condition | None:
    """Returns the condition for the probe that made the kubelet end a container, or None."""
    own = [event for event in events if event.container in ("", container["name"])]
    kills = (found for event in reversed(own) if (found := _KILLED.search(event.note)))
    killed = next((found[2] for found in kills if found[1] == container["name"]), None)
    if killed is None:
        return None
    start = f"{killed.capitalize()} probe failed"
    message = next((event.note for event in reversed(own) if event.note.startswith(start)), start)
    member = f"{killed}Probe"
    field = f"spec.{member}" if container["name"] == MAIN else f"{container_path(pod, container['name'])}.{member}"
    return false(
        f"{killed.capitalize()}ProbeFailed",
        f"the kubelet ended container {container['name']} because of its {killed} probe ({field}): {message}",
    )


def _ended(pod: Obj) -> Obj | None:
    """Returns the status of a container that was ended and has not started again, or None."""
    for container in containers(pod):
        end = section(container, "state", "terminated") or section(container, "lastState", "terminated")
        by_memory = end.get("reason") == "OOMKilled"
        if end.get("exitCode") in ON_REQUEST and not by_memory and not container.get("started"):
            return container
    return None
