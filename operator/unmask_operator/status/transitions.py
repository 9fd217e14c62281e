"""Which changes of the status are worth an Event."""

from collections.abc import Iterator
from dataclasses import dataclass

from unmask_operator.objects import Obj

# Reasons that belong to a normal life: a condition that is False for one of them is no warning.
CALM = {"Pending", "Starting", "Loading", "Progressing", "NoReadyPods", "Waiting", "NoReplicas", "NotAccepted"}
# What is told when a condition comes to hold: its type -> the Event's reason.
GOOD = {
    "Accepted": "Accepted",
    "ModelLoaded": "ModelLoaded",
    "RolloutComplete": "RolloutComplete",
    "AdaptersLoaded": "AdaptersLoaded",
    "ScalingReady": "ScalingActive",
    "Ready": "Ready",
}
# What is False because somebody wants it so, and the condition that tells of it.
WANTED = {"Suspended": "Ready", "OperatorUpgraded": "UpToDate", "DeploymentPaused": "RolloutComplete"}
STEPS = ("ModelLoaded", "RolloutComplete")  # on the way to Ready


@dataclass(frozen=True)
class Event:
    type: str  # Normal or Warning
    reason: str
    message: str


def transitions(old: Obj, new: Obj) -> list[Event]:
    """The Events of a change of status, none for none. One obstacle that several conditions show is told once; of a
    service that comes up, Ready says it all."""
    told: dict[tuple[str, str], Event] = {}
    for event in _events(old, new):
        told.setdefault((event.type, event.reason), event)
    if ("Normal", "Ready") in told and _came_true("Available", old, new):
        for reason in STEPS:
            told.pop(("Normal", reason), None)
    return list(told.values())


def _came_true(kind: str, old: Obj, new: Obj) -> bool:
    was, now = ({c["type"]: c["status"] for c in one.get("conditions") or ()} for one in (old, new))
    return bool(now[kind] == "True" != was.get(kind))


def _events(old: Obj, new: Obj) -> Iterator[Event]:
    before = {c["type"]: c for c in old.get("conditions") or ()}
    for condition in new["conditions"]:
        was = before.get(condition["type"], {"status": "Unknown", "reason": ""})
        flipped, status, reason = was["status"] != condition["status"], condition["status"], condition["reason"]
        if status == "True" and flipped and condition["type"] in GOOD:
            yield Event("Normal", GOOD[condition["type"]], condition["message"])
        elif status != "True" and (flipped or was["reason"] != reason):
            if reason in WANTED:
                if condition["type"] == WANTED[reason]:
                    yield Event("Normal", reason, condition["message"])
            elif condition["type"] == "RolloutComplete" and reason == "Progressing" and was["status"] == "True":
                yield Event("Normal", "RolloutStarted", condition["message"])
            elif condition["type"] == "Available" and was["status"] == "True":
                yield Event("Warning", "Unavailable", f"{reason}: {condition['message']}")
            elif reason not in CALM:
                yield Event("Warning", reason, condition["message"])
    if "autoscaling" in new and new.get("lastScaleTime") != old.get("lastScaleTime"):
        wanted, wants = old.get("autoscaling", {}).get("desired"), new["autoscaling"]["desired"]
        start = "" if wanted is None else f"from {wanted} "
        yield Event("Normal", "Scaled", f"{start}to {wants} replicas: {new['autoscaling']['reason']}")
