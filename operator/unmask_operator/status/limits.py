"""Limits of status fields and Events, and the functions that make foreign values conform to them.

Reasons, messages, images and phases originate from kubelets, virtual kubelets, webhooks, other controllers and
engines. If one violates the schema, the API server refuses the entire status. `tools/status.py` writes these limits
into the CustomResourceDefinition.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from unmask_operator.objects import Obj

REASON_PATTERN = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"  # of metav1.Condition
REASON_LENGTH = 1024  # characters of metav1.Condition.reason
MESSAGE_LENGTH = 32768  # characters of metav1.Condition.message
EVENT_REASON_LENGTH = 128  # bytes of events.k8s.io/v1 Event.reason, action and reportingInstance
EVENT_NOTE_LENGTH = 1024  # bytes of events.k8s.io/v1 Event.note
MINIMAL_MESSAGE_LENGTH = 256  # characters of a message in a minimal status

# Maximum number of characters of the strings of a status, by path.
TEXTS: Mapping[str, Any] = {
    "conditions": {
        "type": 316,
        "status": 7,
        "reason": REASON_LENGTH,
        "message": MESSAGE_LENGTH,
        "lastTransitionTime": 64,
    },
    "selector": 512,
    "url": 512,
    "addresses": {"url": 512},
    "modelName": 128,
    "model": {"revision": 128},
    "modelCache": {"claim": 253, "key": 16, "commit": 64, "completedAt": 64},
    "resolvedImage": 512,
    "currentRevision": 253,
    "modelLoad": {"phase": 64},
    "adapters": {"name": 253, "message": 512},
    "lastScaleTime": 64,
    "autoscaling": {"reason": 1024},
}
ENTRIES: Mapping[str, int] = {"conditions": 32, "addresses": 16, "adapters": 1024}  # maximum number of entries

_UNKNOWN = "Unknown"  # replaces a reason without any valid character
_MINIMAL = ("observedGeneration", "replicas", "readyReplicas", "updatedReplicas", "selector")


def valid_reason(text: str) -> str:
    """Returns a reason that is valid for a condition and an Event: `text` itself if it is valid.

    Otherwise the parts between invalid characters are joined in CamelCase: "OutOfnvidia.com/gpu" becomes
    "OutOfnvidiaComGpu".
    """
    if len(text) <= EVENT_REASON_LENGTH and re.fullmatch(REASON_PATTERN, text):
        return text
    parts = re.split(r"[^A-Za-z0-9_,:]+", text[: 8 * EVENT_REASON_LENGTH])
    joined = "".join(part[:1].upper() + part[1:] if i else part for i, part in enumerate(filter(None, parts)))
    joined = joined.lstrip("_,:")
    if joined[:1].isdigit():
        joined = f"Reason{joined}"
    return joined[:EVENT_REASON_LENGTH].rstrip(",:") or _UNKNOWN


def valid_text(text: str, characters: int) -> str:
    """Returns `text` cut to a number of characters. An ellipsis marks the cut; invalid surrogates are replaced."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def valid_bytes(text: str, limit: int) -> str:
    """Returns `text` cut to at most `limit` bytes of UTF-8, at the end of a character."""
    return text.encode("utf-8", "replace")[:limit].decode(errors="ignore")


def conform(status: Obj) -> Obj:
    """Returns the status with its strings, lists and reasons made valid for the schema."""
    conforming = _conform(status, TEXTS)
    assert isinstance(conforming, dict)
    for condition in conforming.get("conditions") or ():
        condition["reason"] = valid_reason(condition["reason"])
    return conforming


def _conform(value: Any, limits: Any, member: str = "") -> Any:
    if isinstance(value, str) and isinstance(limits, int):
        return valid_text(value, limits)
    if isinstance(value, dict) and isinstance(limits, Mapping):
        return {name: _conform(inner, limits.get(name), name) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_conform(entry, limits) for entry in value[: ENTRIES.get(member)]]
    return value


def minimal(status: Obj) -> Obj:
    """Returns the part of a status that every version of the schema accepts: counts, selector, shortened conditions.

    The operator writes it after a status was refused. The schema may be that of another operator version.
    """
    counts = {member: status[member] for member in _MINIMAL if member in status}
    conditions = []
    for condition in status.get("conditions") or ():
        reason = re.sub(r"[^A-Za-z0-9]", "", condition["reason"])
        message = "".join(char if char.isprintable() else " " for char in condition["message"])
        message = valid_text(message, MINIMAL_MESSAGE_LENGTH)
        conditions.append({**condition, "reason": valid_reason(reason), "message": message})
    return {**counts, "conditions": conditions}
