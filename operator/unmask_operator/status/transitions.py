"""Selects the changes of the status that are reported as Events."""

from collections.abc import Iterator
from dataclasses import dataclass

from unmask_operator.objects import Obj, seconds

# Reasons of normal operation: a condition that is False for one of them causes no Warning.
EXPECTED_REASONS = {
    *("Pending", "Starting", "Loading", "Progressing", "NoReadyPods", "Waiting", "NoReplicas", "NotAccepted"),
    *("Waking", "Downloading", "WaitingForQueue"),
}
# Reasons of the Events for conditions that become True, by condition type.
_NAMED_LIKE_THE_CONDITION = ("Accepted", "ModelCached", "ModelLoaded", "RolloutComplete", "AdaptersLoaded", "Ready")
EVENT_REASONS = {
    **{kind: kind for kind in _NAMED_LIKE_THE_CONDITION},
    "ScalingReady": "ScalingActive",
    "RouteReady": "RouteAccepted",
}
# Reasons of conditions that are False by intent, and the only condition whose Event reports each.
INTENDED_REASONS = {
    "Suspended": "Ready",
    "Waking": "Ready",
    "Deleting": "Ready",
    "OperatorUpgraded": "UpToDate",
    "DeploymentPaused": "RolloutComplete",
}
# Reasons of ModelCached, whose Event reports them.
FETCH_FAILURES = ("AccessDenied", "NotEnoughSpace", "NotWritable", "FetchFailed")
STEPS = ("ModelLoaded", "RolloutComplete")  # conditions that become True before Ready


@dataclass(frozen=True)
class Event:
    type: str  # Normal or Warning
    reason: str
    message: str


def transitions(old: Obj, new: Obj) -> list[Event]:
    """Returns the Events of a change of status.

    Conditions with the same reason cause one Event. When a resource becomes Ready and Available together, or wakes, the
    Events of `STEPS` are omitted.
    """
    events: dict[tuple[str, str], Event] = {}
    for event in _events(old, new):
        events.setdefault((event.type, event.reason), event)
    if unavailable := events.get(("Warning", "Unavailable")):  # it has the reason and message of another condition
        events = {name: e for name, e in events.items() if f"{e.reason}: {e.message}" != unavailable.message}
    slept = _reason("Ready", old) in ("Asleep", "Waking")
    if slept or (("Normal", "Ready") in events and _became_true("Available", old, new)):
        for reason in STEPS:
            events.pop(("Normal", reason), None)
    return list(events.values())


def _event_of_success(was: Obj, condition: Obj) -> Event:
    """Returns the Event of a condition that became True. For Ready after a wake-up it has the seconds since then."""
    if condition["type"] != "Ready" or was["reason"] != "Waking":
        return Event("Normal", EVENT_REASONS[condition["type"]], condition["message"])
    slept = seconds(was["lastTransitionTime"], condition["lastTransitionTime"])
    return Event("Normal", "Woken", f"a pod is Ready {slept:.0f} s after a request arrived")


def _reason(kind: str, status: Obj) -> str:
    return next((str(c["reason"]) for c in status.get("conditions") or () if c["type"] == kind), "")


def _became_true(kind: str, old: Obj, new: Obj) -> bool:
    was, now = ({c["type"]: c["status"] for c in one.get("conditions") or ()} for one in (old, new))
    return bool(now[kind] == "True" != was.get(kind))


def _events(old: Obj, new: Obj) -> Iterator[Event]:
    before = {c["type"]: c for c in old.get("conditions") or ()}
    for condition in new["conditions"]:
        was = before.get(condition["type"], {"status": "Unknown", "reason": ""})
        flipped, status, reason = was["status"] != condition["status"], condition["status"], condition["reason"]
        if (condition["type"], reason) == ("Ready", "Asleep") and was["reason"] != reason:
            yield Event("Normal", reason, condition["message"])
            continue
        if status == "True" and flipped and condition["type"] in EVENT_REASONS:
            yield _event_of_success(was, condition)
        elif status != "True" and (flipped or was["reason"] != reason):
            if reason in INTENDED_REASONS:
                if condition["type"] == INTENDED_REASONS[reason]:
                    yield Event("Normal", reason, condition["message"])
            elif condition["type"] == "ModelCached" and reason == "Downloading":
                yield Event("Normal", "FetchStarted", condition["message"])
            elif condition["type"] == "ModelCached" and reason in FETCH_FAILURES:
                yield Event("Warning", "FetchFailed", f"{reason}: {condition['message']}")
            elif reason in FETCH_FAILURES:
                continue
            elif condition["type"] == "RolloutComplete" and reason == "Progressing" and was["status"] == "True":
                yield Event("Normal", "RolloutStarted", condition["message"])
            elif condition["type"] == "Available" and was["status"] == "True":
                yield Event("Warning", "Unavailable", f"{reason}: {condition['message']}")
            elif condition["type"] == "RouteReady" and reason not in EXPECTED_REASONS:
                yield Event("Warning", "RouteRefused", f"{reason}: {condition['message']}")
            elif reason not in EXPECTED_REASONS:
                yield Event("Warning", reason, condition["message"])
    if "autoscaling" in new and new.get("lastScaleTime") != old.get("lastScaleTime"):
        before_scaling, desired = old.get("autoscaling", {}).get("desired"), new["autoscaling"]["desired"]
        start = "" if before_scaling in (None, desired) else f"from {before_scaling} "
        yield Event("Normal", "Scaled", f"{start}to {desired} replicas: {new['autoscaling']['reason']}")
