"""RouteReady: Gateways accept the HTTPRoute and the InferencePool.

The condition is present with `spec.route` or `spec.inferencePool`. It is not part of Ready: the Service serves.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from unmask_operator.api import SpecError, parse
from unmask_operator.api.network import GATEWAY_GROUP
from unmask_operator.kinds import HTTP_ROUTES, INFERENCE_POOLS
from unmask_operator.objects import Obj, condition, number, section
from unmask_operator.status.condition import Condition, false, true, unknown
from unmask_operator.status.status_input import StatusInput

TYPE = "RouteReady"
WAITING = "Waiting"  # reason: a Gateway has not reported yet
# What to do about the reasons that the Gateway API and the Inference Extension define.
_FIXES = {
    "NotAllowedByListeners": "allow routes of this namespace in allowedRoutes of the Gateway's listener",
    "NoMatchingListenerHostname": "change spec.route.hostnames, or the hostname of the Gateway's listener",
    "NoMatchingParent": "correct sectionName or port in spec.route.parentRefs",
    "BackendNotFound": "correct service or port in spec.route.backends",
    "InvalidKind": "use a Gateway that supports InferencePools, or remove spec.inferencePool",
    "EndpointPickerRefMissing": "set spec.inferencePool.endpointPickerRef",
    "InvalidExtensionRef": "correct spec.inferencePool.endpointPickerRef",
}


class Report(NamedTuple):
    """What a Gateway says about an object: the status, reason and message of a condition."""

    parent: str
    kind: str  # of the object
    status: str
    reason: str
    message: str


def evaluate(inputs: StatusInput) -> Condition | None:
    has_route = isinstance(inputs.spec.get("route"), dict)
    if inputs.never_created or not (has_route or isinstance(inputs.spec.get("inferencePool"), dict)):
        return None
    if unread := inputs.plan.unread.get("route"):
        return unknown("UnknownValue", f"spec.route has a value that this operator does not know: {unread}")
    name, own = inputs.observed.name, inputs.observed.own
    route = own(HTTP_ROUTES, name)
    pool = own(INFERENCE_POOLS, name)
    if has_route and not route:
        return unknown(WAITING, f"HTTPRoute {name} does not exist yet")
    reports = [*_reports(route), *_reports(pool)]
    for report in reports:
        if report.status == "False":
            fix = f"; {_FIXES[report.reason]}" if report.reason in _FIXES else ""
            words = report.message or report.reason
            return false(report.reason, f"{report.parent} refuses {report.kind} {name}: {words}{fix}")
    if waiting := dict.fromkeys(report.parent for report in reports if report.status != "True"):
        return unknown("Waiting, Gateway", route=name, parents=", ".join(waiting))
    accepted = f"accepted by {', '.join(dict.fromkeys(one.parent for one in reports))}" if reports else "created"
    return true("Accepted", "; ".join((accepted, *_hints(inputs))))


def _reports(live: Obj) -> Iterator[Report]:
    """Yields what each parent says about an object; status Unknown where a condition is missing or outdated.

    The parents of an InferencePool are those that report. A pool without a route need not have any.
    """
    statuses = section(live, "status").get("parents") or ()
    parents = section(live, "spec").get("parentRefs")
    for parent in parents or [section(one, "parentRef") for one in statuses]:
        own = _identity(parent, live)
        found = [one for one in statuses if _identity(section(one, "parentRef"), live) == own]
        for status, kind in product(found or [{}], ("Accepted", "ResolvedRefs")):
            report = _report(parent, status, kind, live)
            if parents or report.status != "Unknown":
                yield report


def _report(parent: Obj, status: Obj, kind: str, live: Obj) -> Report:
    found = condition({"status": status}, kind)
    current = number(found, "observedGeneration") >= number(live["metadata"], "generation")
    state = str(found.get("status")) if found and current else "Unknown"
    reason, message = str(found.get("reason") or kind), str(found.get("message") or "")
    part = parent.get("sectionName") or parent.get("port")
    at = parent.get("namespace") or live["metadata"]["namespace"]
    described = f"{parent.get('kind', 'Gateway')} {at}/{parent.get('name')}{f' ({part})' if part else ''}"
    return Report(described, live["kind"], state, reason, message)


def _identity(parent: Obj, live: Obj) -> tuple[object, ...]:
    """Returns the members of a parentRef, with the defaults of the Gateway API."""
    group, kind = parent.get("group", GATEWAY_GROUP), parent.get("kind", "Gateway")
    at = parent.get("namespace") or live["metadata"]["namespace"]
    return group, kind, at, parent.get("name"), parent.get("sectionName"), parent.get("port")


def _hints(inputs: StatusInput) -> Iterator[str]:
    try:
        spec = parse(inputs.observed.resource).spec
    except SpecError:  # the objects are those of an earlier spec
        return
    if spec.route and "/" in spec.route.paths:
        yield "the path / also publishes /metrics, /health and /startup; list prefixes in spec.route.paths instead"
    peers = spec.network_policy.from_ if spec.network_policy else ()
    if peers and not any(peer.namespace_selector or peer.ip_block for peer in peers):
        yield "spec.networkPolicy.from names no other namespace; if the Gateway runs in one, add it"
