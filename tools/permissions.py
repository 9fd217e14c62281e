"""Permissions that the operator needs. Tests compare the chart's roles with this list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unmask_operator.kinds import (
    CHILDREN,
    CLAIMS,
    DLMS,
    ENDPOINT_SLICES,
    EVENTS,
    GRANTED,
    JOBS,
    LEADER_WORKER_SETS,
    LEASES,
    NODES,
    OPTIONAL,
    PODS,
)
from unmask_operator.objects import GROUP, PLURAL


@dataclass(frozen=True)
class Rule:
    """Required verbs of a resource.

    Attributes:
        scope: "watched" (the cluster, or each watched namespace), "own" (the operator's namespace) or
            "cluster" (a cluster-scoped resource).
        why: purpose, for the administrator that grants it.
    """

    group: str
    resource: str
    verbs: frozenset[str]
    why: str
    scope: str = "watched"


def _rule(group: str, resource: str, verbs: str, why: str, scope: str = "watched") -> Rule:
    return Rule(group, resource, frozenset(verbs.split()), why, scope)


# Kinds that may be absent are listed periodically instead of watched.
_WATCH = {k.kind: "" if k in OPTIONAL else " watch" for k in CHILDREN}
# The operator never deletes these kinds: garbage collection removes them with the resource.
_KEPT = ("Deployment", "LeaderWorkerSet", "Service", "ServiceAccount")
_DELETE = {k.kind: "" if k.kind in _KEPT else " delete" for k in CHILDREN}
_CHILD_RULES = {
    kind: _rule(
        kind.group,
        kind.plural,
        f"get list{_WATCH[kind.kind]} create patch{_DELETE[kind.kind]}",
        f"a resource's {kind.kind}",
    )
    for kind in CHILDREN
}

RULES: tuple[Rule, ...] = (
    _rule(DLMS.group, DLMS.plural, "list watch", "the resources to reconcile"),
    _rule(GROUP, f"{PLURAL}/status", "patch", "conditions, replicas and the URL"),
    _rule(
        GROUP, f"{PLURAL}/scale", "patch", "the Builtin autoscaler writes spec.replicas through the scale subresource"
    ),
    _rule(GROUP, f"{PLURAL}/finalizers", "update", "owner references of children set blockOwnerDeletion"),
    *(rule for kind, rule in _CHILD_RULES.items() if kind not in GRANTED),
    _rule(
        "apps",
        "deployments/scale",
        "patch",
        "replicas of a Deployment whose update the API server rejects: an invalid edit, a webhook, a quota",
    ),
    _rule(PODS.group, PODS.plural, "list watch", "conditions report the state of the engine's pods"),
    _rule(
        PODS.group, "pods/status", "patch", "an annotation makes the kubelet update a changed adapter list immediately"
    ),
    _rule(
        EVENTS.group,
        EVENTS.plural,
        "create list",
        "creates Events when conditions change; reads those of a pod that fails to start if its status shows no cause",
    ),
    _rule(LEASES.group, LEASES.plural, "create get update", "leader election of the operator's pods", scope="own"),
    _rule(
        "apps",
        "deployments",
        "get",
        "the operator's Deployment owns the Lease, so that both are deleted together",
        scope="own",
    ),
)

# Granted only with rbac.adoption of the chart. The admission plugin OwnerReferencesPermissionEnforcement requires the
# right to delete an object for a change of its owners. The operator has that right for all other kinds.
ADOPTION_RULES = tuple(
    _rule(kind.group, kind.plural, "delete", f"to set the owner of a {kind.kind} that a resource adopts")
    for kind in CHILDREN
    if not _DELETE[kind.kind] and kind not in GRANTED
)
# Granted only with both lws.enabled and rbac.adoption.
LWS_ADOPTION_RULE = _rule(
    LEADER_WORKER_SETS.group, LEADER_WORKER_SETS.plural, "delete", "to set the owner of one that a resource adopts"
)

# Granted only with these values of the chart, which are also fields of Settings.
VALUE_RULES: Mapping[str, tuple[Rule, ...]] = {
    **{
        value: tuple(_CHILD_RULES[kind] for kind, granted_by in GRANTED.items() if granted_by == value)
        for value in GRANTED.values()
    },
    "lws": (
        _CHILD_RULES[LEADER_WORKER_SETS],
        _rule(
            LEADER_WORKER_SETS.group, f"{LEADER_WORKER_SETS.plural}/scale", "patch", "replicas of one that is refused"
        ),
    ),
    "activator": (
        _CHILD_RULES[ENDPOINT_SLICES],
        _rule(
            ENDPOINT_SLICES.group,
            "endpointslices/restricted",
            "create",
            "OpenShift refuses the addresses of pods in an EndpointSlice without it",
        ),
        _rule(
            ENDPOINT_SLICES.group, ENDPOINT_SLICES.plural, "list", "the addresses of the activator's pods", scope="own"
        ),
    ),
}

# Permissions of the activator's own service account.
ACTIVATOR_RULES = (
    _rule(DLMS.group, DLMS.plural, "list watch", "the services that scale to zero, and their ports"),
    _rule(GROUP, f"{PLURAL}/scale", "patch", "adds the first replica when a request arrives"),
    _rule(ENDPOINT_SLICES.group, ENDPOINT_SLICES.plural, "list", "the pods that take the held requests"),
)

# Granted only with modelCache.enabled of the chart (settings.model_cache).
MODEL_CACHE_RULES = (
    _rule(JOBS.group, JOBS.plural, "get list watch create patch delete", "downloads of models to claims"),
    _rule(CLAIMS.group, CLAIMS.plural, "get list watch create patch", "claims with models"),
)
# Granted only with both modelCache.enabled and rbac.adoption.
CLAIM_ADOPTION_RULE = _rule(CLAIMS.group, CLAIMS.plural, "delete", "to set the owner of a claim that a resource adopts")

# Granted only with rbac.readNodes of the chart (settings.read_nodes).
NODE_RULE = _rule(
    NODES.group,
    NODES.plural,
    "list",
    "distinguishes a pod that fits no node from one that waits for resources",
    "cluster",
)


def missing(granted: Iterable[Mapping[str, list[str]]], rules: Iterable[Rule] = RULES) -> list[str]:
    """Returns the permissions in `rules` that a Role or ClusterRole lacks, as "group/resource verb"."""
    have = _flat(granted)
    return sorted(
        f"{r.group}/{r.resource} {verb}" for r in rules for verb in r.verbs - have.get((r.group, r.resource), set())
    )


def unused(granted: Iterable[Mapping[str, list[str]]], rules: Iterable[Rule] = RULES) -> list[str]:
    """Returns the permissions of a Role or ClusterRole that `rules` lacks, as "group/resource verb"."""
    need: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        need.setdefault((rule.group, rule.resource), set()).update(rule.verbs)
    have = _flat(granted)
    return sorted(f"{g}/{r} {verb}" for (g, r), verbs in have.items() for verb in verbs - need.get((g, r), set()))


def _flat(granted: Iterable[Mapping[str, list[str]]]) -> dict[tuple[str, str], set[str]]:
    flat: dict[tuple[str, str], set[str]] = {}
    for rule in granted:
        for group in rule.get("apiGroups", ()):
            for resource in rule.get("resources", ()):
                flat.setdefault((group, resource), set()).update(rule.get("verbs", ()))
    return flat
