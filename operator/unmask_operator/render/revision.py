"""Revisions of the pod template, stored as ControllerRevisions.

The newest revision contains its spec, the resolved image and the pod template. Pods use the stored template, not the
one that this operator version would render. Older revisions document earlier templates for a manual rollback.

Only an edit of the engine or a restart replaces pods:

* If this operator renders the same template for an edited spec as for the stored one, the new revision has the stored
  template.
* If the edit changes the rendered template, or the restart annotation changes, the new revision has the newly rendered
  template.
* Scaling and suspending create no revision.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask_operator.api import DiffusionLMService, SpecError, parse
from unmask_operator.api.service import without_nulls
from unmask_operator.api.spec import OUTSIDE_POD_TEMPLATE, SCALE
from unmask_operator.kinds import REVISIONS
from unmask_operator.objects import RESTARTED_AT, Obj, controller_uid, section
from unmask_operator.render.labels import child, main_container, revision_name
from unmask_operator.render.model_cache import commit_in
from unmask_operator.render.pod import RenderedPod, render_pod
from unmask_operator.settings import Settings

FORMAT = 1  # of a revision's data
REVISION_HISTORY_LIMIT = 3  # templates


@dataclass(frozen=True)
class Revision:
    """A ControllerRevision. Its content was accepted before and is not validated again.

    Attributes:
        number: sequence number per resource; the highest one is current.
        spec: the spec without `replicas` and `suspend`. None: the revision represents the running pods, because their
            stored revision cannot be read.
        restarted_at: last value of the restart annotation; "" without one.
        rendered_pod: image and template.
        stored: the immutable data in the cluster; None for a new revision.
    """

    number: int
    spec: Mapping[str, Any] | None
    restarted_at: str
    rendered_pod: RenderedPod
    stored: Obj | None = None

    def rendered(self, metadata: Mapping[str, Any], settings: Settings) -> RenderedPod | None:
        """Renders the revision's spec with this operator version; None if this version rejects the spec."""
        try:
            resource = parse({"metadata": metadata, "spec": self.spec}, runs=True)
            resource = replace(resource, commit=commit_in(self.rendered_pod.template))
            return render_pod(resource, settings, self.restarted_at)
        except SpecError:
            return None


@dataclass(frozen=True)
class UnsupportedRevision:
    """A revision that another operator version wrote in a format that this version does not support."""

    number: int
    format: object


def recorded_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a spec that a revision records: all except null fields, `replicas` and `suspend`."""
    return {member: value for member, value in without_nulls(spec).items() if member not in SCALE}


def controlled_revisions(children: Iterable[Obj], uid: str) -> list[Revision | UnsupportedRevision]:
    """Returns the revisions that the resource with this uid controls, newest first."""
    own = (c for c in children if c["kind"] == "ControllerRevision" and controller_uid(c) == uid)
    return sorted((_read(c) for c in own), key=lambda revision: -revision.number)


def _read(obj: Obj) -> Revision | UnsupportedRevision:
    data = obj.get("data") or {}
    known = data.get("format", FORMAT)  # the first version wrote no format
    if known != FORMAT or not {"spec", "restartedAt", "image", "template"} <= data.keys():
        return UnsupportedRevision(obj["revision"], known)
    rendered = RenderedPod(data["image"], data["template"], data.get("workerTemplate"))
    return Revision(obj["revision"], recorded_spec(data["spec"]), data["restartedAt"], rendered, stored=data)


def running_revision(number: int, template: Obj, worker: Obj | None = None) -> Revision:
    """Returns the revision of running pods, without a spec."""
    image = str(main_container(template["spec"]).get("image") or "")
    restarted_at = section(template["metadata"], "annotations").get(RESTARTED_AT, "")
    return Revision(number, None, restarted_at, RenderedPod(image, template, worker))


def resolve_revision(
    obj: Obj, held: Revision | None, number: int, settings: Settings, cached: Callable[[DiffusionLMService, str], str]
) -> tuple[DiffusionLMService, Revision]:
    """Parses the resource and determines the revision of its pods.

    Args:
        obj: the resource.
        held: the current revision; None without one.
        number: number of a new revision.
        settings: the operator's settings.
        cached: returns the commit of the model in its claim, by resource and restart; "" if it is not there yet.

    Returns:
        The parsed resource and its revision. This is `held` if no recorded section was edited. Otherwise it is a new
        revision, which reuses the template of `held` unless the edit or the restart annotation changes the template.

    Raises:
        SpecError: the spec is invalid. Sections that `held` covers are not validated again.
    """
    spec, annotated = section(obj, "spec"), section(obj, "metadata", "annotations").get(RESTARTED_AT)
    restarted_at = annotated or (held.restarted_at if held else "")  # removal of the annotation is no restart
    same = held is not None and (held.spec is None or _pod_inputs(spec) == _pod_inputs(held.spec))
    if held and same and restarted_at == held.restarted_at:
        unchanged = held.spec is None or held.spec == recorded_spec(spec)
        return parse(obj, pods_are_pinned=True), held if unchanged else _same_pods(held, number, spec)
    resource = parse(obj, runs=held is not None)
    if resource.spec.model_cache.pvc is not None:
        if not settings.model_cache:
            fix = "set modelCache.enabled of the chart to true, or use emptyDir"
            raise SpecError("spec.modelCache.pvc", f"the operator may not create Jobs and claims; {fix}")
        resource = replace(resource, commit=cached(resource, restarted_at))
    fresh = render_pod(resource, settings, restarted_at)
    if held and held.rendered(obj["metadata"], settings) == fresh:
        return resource, _same_pods(held, number, spec)
    return resource, Revision(number, recorded_spec(spec), restarted_at, fresh)


def _same_pods(held: Revision, number: int, spec: Mapping[str, Any]) -> Revision:
    return replace(held, number=number, spec=recorded_spec(spec), stored=None)


def _pod_inputs(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in without_nulls(spec).items() if member not in OUTSIDE_POD_TEMPLATE}


def revisions_to_keep(newest_first: Sequence[Revision | UnsupportedRevision]) -> set[int]:
    """Returns the numbers of the revisions to retain.

    These are the newest revision of each of the newest `REVISION_HISTORY_LIMIT` templates, and all unsupported ones.
    """
    templates: list[Obj] = []
    numbers = set()
    for revision in newest_first:
        if isinstance(revision, UnsupportedRevision):
            numbers.add(revision.number)
        elif revision.rendered_pod.template not in templates and len(templates) < REVISION_HISTORY_LIMIT:
            templates.append(revision.rendered_pod.template)
            numbers.add(revision.number)
    return numbers


def controller_revision(resource: DiffusionLMService, revision: Revision) -> Obj | None:
    """Renders the ControllerRevision of `revision`; None if it represents an unreadable one."""
    if revision.spec is None:
        return None
    data = revision.stored or {
        "format": FORMAT,
        "spec": revision.spec,
        "restartedAt": revision.restarted_at,
        "image": revision.rendered_pod.image,
        "template": revision.rendered_pod.template,
        **({"workerTemplate": revision.rendered_pod.worker} if revision.rendered_pod.worker else {}),
    }
    name = revision_name(resource.name, revision.number)
    return child(resource, REVISIONS, name, revision=revision.number, data=data)
