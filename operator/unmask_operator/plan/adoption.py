"""Adoption of orphaned children: the resource becomes their controller again.

`kubectl delete --cascade=orphan` and backups leave children without owner references. Only an annotation on the
resource enables adoption, since a name and labels do not prove that the objects belong to the resource.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask_operator.objects import (
    ADOPT,
    API_VERSION,
    FIELD_MANAGER,
    KIND,
    SERVICE_LABEL,
    Obj,
    Ref,
    controller_uid,
    section,
)
from unmask_operator.plan.observed import Observed
from unmask_operator.render.labels import is_own, template_digest
from unmask_operator.render.revision import Revision, recorded_spec, running_revision
from unmask_operator.settings import Settings

_MANAGED_BY = "app.kubernetes.io/managed-by"


def asks_for_adoption(resource: Mapping[str, Any]) -> bool:
    """Returns whether the resource has the annotation with the value "true"."""
    return bool((resource["metadata"].get("annotations") or {}).get(ADOPT) == "true")


def is_orphan(child: Mapping[str, Any], name: str) -> bool:
    """Returns whether the resource `name` can adopt an object, by its kind, name, labels and owners."""
    meta = child["metadata"]
    labels = meta.get("labels") or {}
    return (
        controller_uid(child) is None
        and "deletionTimestamp" not in meta
        and (labels.get(_MANAGED_BY), labels.get(SERVICE_LABEL)) == (FIELD_MANAGER, name)
        and is_own(Ref.of(child), name)
    )


def orphans(observed: Observed) -> list[Obj]:
    """Returns the objects to adopt, sorted by kind and name; none without the annotation."""
    if not asks_for_adoption(observed.resource):
        return []
    return [child for _, child in sorted(observed.children.items()) if is_orphan(child, observed.name)]


def owner_reference(name: str, uid: str) -> Obj:
    """Returns the owner reference that makes the resource the controller of an object."""
    owner: Obj = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid}
    return owner | {"controller": True, "blockOwnerDeletion": True}


def adopted_revision(observed: Observed, settings: Settings) -> Revision | None:
    """Returns a revision for an adopted Deployment without ControllerRevisions; None if there is none.

    It has the live template, so adoption replaces no pod. If this operator renders the same template, it has the
    rendered one, without the defaults that the API server added.
    """
    resource, live = observed.resource, observed.deployment
    if not asks_for_adoption(resource) or not live:
        return None
    template = live["spec"]["template"]
    metadata = {member: value for member, value in template["metadata"].items() if value is not None}
    revision = running_revision(1, {**template, "metadata": metadata}, live["spec"].get("workerTemplate"))
    revision = replace(revision, spec=recorded_spec(section(resource, "spec")))
    fresh = revision.rendered(resource["metadata"], settings)
    same = fresh is not None and template_digest(fresh.template) == template_digest(template)
    return replace(revision, rendered_pod=fresh) if same and fresh else revision
