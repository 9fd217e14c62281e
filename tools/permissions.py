"""What the operator asks of the API server: the list that the chart's roles are tested against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unmask_operator.kube.kinds import CHILDREN, DLMS, EVENTS, LEASES, NODES, OPTIONAL, PODS
from unmask_operator.objects import GROUP, PLURAL


@dataclass(frozen=True)
class Rule:
    """One resource of one API group and what is done with it.

    Attributes:
        scope: "watched" (the cluster, or each namespace that is watched), "own" (the operator's own namespace) or
            "cluster" (a cluster-scoped resource).
        why: for whoever grants it.
    """

    group: str
    resource: str
    verbs: frozenset[str]
    why: str
    scope: str = "watched"


def _rule(group: str, resource: str, verbs: str, why: str, scope: str = "watched") -> Rule:
    return Rule(group, resource, frozenset(verbs.split()), why, scope)


# A kind that may be absent is listed by the clock and not watched.
_WATCH = {k.kind: "" if k in OPTIONAL else " watch" for k in CHILDREN}
# Every resource has these three until it is deleted, and then they go with it: the operator deletes none.
_DELETE = {k.kind: "" if k.kind in ("Deployment", "Service", "ServiceAccount") else " delete" for k in CHILDREN}

RULES: tuple[Rule, ...] = (
    _rule(DLMS.group, DLMS.plural, "list watch", "the resources it reconciles"),
    _rule(GROUP, f"{PLURAL}/status", "patch", "conditions, replicas and the URL"),
    _rule(GROUP, f"{PLURAL}/scale", "patch", "the Builtin autoscaler writes spec.replicas as kubectl scale does"),
    _rule(GROUP, f"{PLURAL}/finalizers", "update", "children name their owner as one whose deletion waits for them"),
    *(
        _rule(
            kind.group,
            kind.plural,
            f"get list{_WATCH[kind.kind]} create patch{_DELETE[kind.kind]}",
            f"a resource's {kind.kind}",
        )
        for kind in CHILDREN
    ),
    _rule(
        "apps",
        "deployments/scale",
        "patch",
        "replicas of a Deployment whose other fields the API server does not take: an invalid edit, a webhook, a quota",
    ),
    _rule(PODS.group, PODS.plural, "list watch", "what the engine's pods say goes into the conditions"),
    _rule(PODS.group, "pods/status", "patch", "an annotation has a kubelet bring a changed list of adapters at once"),
    _rule(
        EVENTS.group,
        EVENTS.plural,
        "create list",
        "an Event when a condition changes; those of a pod that does not come up and whose status does not say why",
    ),
    _rule(LEASES.group, LEASES.plural, "create get update", "who of the operator's pods leads", scope="own"),
    _rule("apps", "deployments", "get", "its own Deployment owns the Lease, which goes with it", scope="own"),
)

# Only where the chart grants it (rbac.adoption): the admission plugin OwnerReferencesPermissionEnforcement lets only
# those change an object's owners that may delete it. Of the other kinds the operator has that right.
ADOPTION_RULES = tuple(
    _rule(kind.group, kind.plural, "delete", f"to set the owner of a {kind.kind} that a resource adopts")
    for kind in CHILDREN
    if not _DELETE[kind.kind]
)

# Only where the chart grants it (settings.read_nodes).
NODE_RULE = _rule(NODES.group, NODES.plural, "list", "to tell a pod that fits no node from one that waits", "cluster")


def missing(granted: Iterable[Mapping[str, list[str]]], rules: Iterable[Rule] = RULES) -> list[str]:
    """What of `rules` the rules of a Role or ClusterRole do not grant, as "group/resource verb"."""
    have = _flat(granted)
    return sorted(
        f"{r.group}/{r.resource} {verb}" for r in rules for verb in r.verbs - have.get((r.group, r.resource), set())
    )


def unused(granted: Iterable[Mapping[str, list[str]]], rules: Iterable[Rule] = RULES) -> list[str]:
    """What a Role or ClusterRole grants beyond `rules`, as "group/resource verb"."""
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
