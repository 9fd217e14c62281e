"""Rollout decision: which pod template runs after an edit. Only an edit of the engine or a restart replaces pods.

* If this operator renders the same template for an edited spec as for the stored one, the new revision has the stored
  template.
* If the edit changes the rendered template, or the restart annotation changes, the new revision has the newly rendered
  template.
* Scaling and suspending create no revision.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unmask_operator.api import DiffusionLMService, parse
from unmask_operator.api.service import without_nulls
from unmask_operator.api.spec import OUTSIDE_POD_TEMPLATE
from unmask_operator.objects import RESTARTED_AT, Obj
from unmask_operator.render.pod import render_pod
from unmask_operator.render.revision import Revision, recorded_spec
from unmask_operator.settings import Settings


def resolve_revision(
    obj: Obj, held: Revision | None, number: int, settings: Settings
) -> tuple[DiffusionLMService, Revision]:
    """Parses the resource and determines the revision of its pods.

    Args:
        obj: the resource.
        held: the current revision; None without one.
        number: number of a new revision.
        settings: the operator's settings.

    Returns:
        The parsed resource and its revision. This is `held` if no recorded section was edited. Otherwise it is a new
        revision, which reuses the template of `held` unless the edit or the restart annotation changes the template.

    Raises:
        SpecError: the spec is invalid. Sections that `held` covers are not validated again.
    """
    spec: Obj = obj["spec"] if isinstance(obj.get("spec"), dict) else {}
    annotated = (obj["metadata"].get("annotations") or {}).get(RESTARTED_AT)
    restarted_at = annotated or (held.restarted_at if held else "")  # removal of the annotation is no restart
    if (
        held
        and restarted_at == held.restarted_at
        and (held.spec is None or _pod_inputs(spec) == _pod_inputs(held.spec))
    ):
        unchanged = held.spec is None or held.spec == recorded_spec(spec)
        return parse(obj, pods_are_pinned=True), held if unchanged else _same_pods(held, number, spec)
    resource = parse(obj, runs=held is not None)
    fresh = render_pod(resource, settings, restarted_at)
    if held and held.rendered(obj["metadata"], settings) == fresh:
        return resource, _same_pods(held, number, spec)
    return resource, Revision(number, recorded_spec(spec), restarted_at, fresh)


def _same_pods(held: Revision, number: int, spec: Mapping[str, Any]) -> Revision:
    return replace(held, number=number, spec=recorded_spec(spec), stored=None)


def _pod_inputs(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in without_nulls(spec).items() if member not in OUTSIDE_POD_TEMPLATE}
