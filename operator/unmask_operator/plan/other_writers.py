"""Detects others that write what the operator writes to a resource: releases its status, and scalers and manifests its
replicas.

The managedFields of the resource tell who writes `spec.replicas` beside the autoscaler. Scalers write through the scale
subresource. A manifest writes the resource itself: it sets a number, or it has lost the field, and the API server sets
the default of the schema.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from unmask_operator.objects import FIELD_MANAGER, Obj, number, section
from unmask_operator.plan.observed import Observed
from unmask_operator.render.revision import Revision

DEFAULT = 1  # of spec.replicas in the schema
HPA_MANAGER = "kube-controller-manager"
KEDA_MANAGER = "keda"  # the first part of its user agent; a build of another name starts with it
WINDOW = timedelta(hours=1)
RECENT = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(minutes=10)
CONTESTED = 3  # writes of replicas by a manifest within WINDOW


def kept_replicas(observed: Observed) -> int | None:
    """Returns the replicas of a Deployment that autoscaling keeps although `spec.replicas` fell to the default.

    A manifest that gets `autoscaling` leaves out `replicas`. Without the field in any manifest, the resource has the
    default, and pods that serve would end. None: there is nothing to keep.
    """
    spec, live = observed.resource.get("spec") or {}, observed.deployment
    scaling = spec.get("autoscaling")
    if not isinstance(scaling, dict) or spec.get("replicas") != DEFAULT or spec.get("suspend") is True:
        return None
    low, high = (number(scaling, member, DEFAULT) for member in ("minReplicas", "maxReplicas"))
    kept = min(number(live.get("spec"), "replicas", DEFAULT), high)
    return kept if kept > max(DEFAULT, low) and _is_lost(observed, scaling) else None


def _is_lost(observed: Observed, scaling: Obj) -> bool:
    """Returns whether no scaler wrote the default of `spec.replicas`."""
    resource = observed.resource
    newest = next(iter(observed.template_revisions), None)
    if isinstance(newest, Revision) and newest.spec is not None and not newest.spec.get("autoscaling"):
        return True  # autoscaling is new
    if writers := list(owners(resource)):
        return not any(owner.get("subresource") == "scale" for owner in writers)
    if scaling.get("provider", "Builtin") != "Builtin":
        return False  # the API server does not record writes of the scale if nobody owned the field before
    last = number(section(resource, "status", "autoscaling"), "desired", DEFAULT)
    return (observed.decision.desired if observed.decision else last) > DEFAULT


def other_scaler(observed: Observed) -> str:
    """Returns the field manager of a scaler, other than the one of `spec.autoscaling`, that wrote within `WINDOW`.

    "": none. `kubectl scale` is a person's. A write before the last edit may be that of the previous provider.
    """
    resource, now = observed.resource, observed.now
    edits = [o["metadata"] for ref, o in observed.children.items() if ref.kind == "ControllerRevision"]
    edited = max((str(meta.get("creationTimestamp") or "") for meta in edits), default="")
    provider = section(resource, "spec", "autoscaling").get("provider", "Builtin")
    own = (FIELD_MANAGER, HPA_MANAGER) if provider in ("HPA", "KEDA") else (FIELD_MANAGER,)
    for owner in owners(resource):
        manager, at = str(owner.get("manager") or ""), str(owner.get("time") or now.isoformat())
        is_person = manager == "kubectl" or manager.startswith("kubectl-")
        is_own = manager in own or (provider == "KEDA" and manager.startswith(KEDA_MANAGER))
        wrote = datetime.fromisoformat(at)
        recent = now - wrote < WINDOW and not (edited and wrote < datetime.fromisoformat(edited))
        if owner.get("subresource") == "scale" and not is_own and not is_person and recent:
            return manager
    return ""


def owners(resource: Obj) -> Iterator[Obj]:
    """Yields the entries of managedFields that own `spec.replicas`. The others in the cache are those of statuses."""
    for entry in resource["metadata"].get("managedFields") or ():
        if entry.get("subresource") != "status":
            yield entry


@dataclass
class _Contest:
    other: str
    pause: timedelta
    until: datetime


@dataclass
class OtherOperators:
    """Detects another release that writes the status of a resource too. In memory, per leader.

    Both releases stop writing the status. Each tries again after a minute, and then after twice the previous pause.

    Attributes:
        own: Field manager of this release for statuses.
    """

    own: str
    _contest: _Contest | None = None

    def observe(self, resource: Obj, now: datetime) -> str:
        """Returns the field manager of the other release while its status and ours replace each other, or "".

        A single write by another release is no contest: labels that select an operator may have changed.
        """
        contest = self._contest
        if contest and now < contest.until:
            return contest.other
        times = dict(_status_writers(resource))
        ours = times.pop(self.own, None)
        other = max(times, key=lambda name: times[name], default="")
        if ours is None or not other or now - ours > RECENT or times[other] < ours:
            if contest and now - contest.until > 2 * RECENT:
                self._contest = None
            return ""
        pause = min(2 * contest.pause, LONGEST_PAUSE) if contest else RECENT
        self._contest = _Contest(other, pause, now + pause)
        return other

    def next_check(self, now: datetime) -> float | None:
        """Returns seconds until the next try to write the status, or None without a contest."""
        contest = self._contest
        return (contest.until - now).total_seconds() if contest and now < contest.until else None


def _status_writers(resource: Obj) -> Iterator[tuple[str, datetime]]:
    for entry in resource["metadata"].get("managedFields") or ():
        manager, at = str(entry.get("manager")), entry.get("time")
        if entry.get("subresource") == "status" and manager.startswith(f"{FIELD_MANAGER}/") and at:
            yield manager, datetime.fromisoformat(str(at))


@dataclass
class ManifestWrites:
    """Counts the writes of a resource's replicas by manifests, which the autoscaler undoes. In memory, per leader."""

    _times: list[tuple[str, str, datetime]] = field(default_factory=list)  # manager, its time, now

    def observe(self, resource: Obj, now: datetime) -> str:
        """Returns the field manager that has overwritten the autoscaler `CONTESTED` times within `WINDOW`, or ""."""
        if not section(resource, "spec").get("autoscaling"):
            self._times = []
            return ""
        times = [one for one in self._times if now - one[2] < WINDOW]
        for owner in owners(resource):
            manager, at = str(owner.get("manager") or ""), str(owner.get("time") or "")
            is_new = (manager, at) not in [one[:2] for one in times]
            if not owner.get("subresource") and manager != FIELD_MANAGER and is_new:
                times.append((manager, at, now))
        self._times = times[-CONTESTED:]
        return times[-1][0] if len(times) >= CONTESTED else ""
