"""ControllerRevisions pin what pods are made of, so that nothing restarts an engine but what changes it.

The newest one holds the spec it was made from, the resolved image and the whole pod template. Pods are made from it and
not from what this operator would render. An edit that this operator renders to the same template makes a pin with the
old template; only one that changes the template, and the restart annotation, adopt this operator's form. Scaling and
suspending are no edits. The pins of older templates that are kept show what ran before, for a rollback by hand.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask_operator.api import DiffusionLMService, SpecError, parse
from unmask_operator.api.nulls import without_nulls
from unmask_operator.api.spec import OUTSIDE_POD_TEMPLATE, SCALE
from unmask_operator.objects import RESTARTED_AT, Obj, controller_uid
from unmask_operator.render.labels import child, revision_name
from unmask_operator.render.pod import RenderedPod, render_pod
from unmask_operator.settings import Settings

FORMAT = 1  # of a pin's data
REVISION_HISTORY_LIMIT = 3  # templates


@dataclass(frozen=True)
class Revision:
    """One ControllerRevision. What it holds has been accepted once, and is not checked again."""

    number: int  # counts the pins of a resource; the highest is the current one
    # What it was made for, without `replicas` and `suspend`; None: it stands for pods that run as they are, since the
    # pin they are of cannot be read.
    spec: Mapping[str, Any] | None
    restarted_at: str  # the restart annotation's last value, "" without
    rendered_pod: RenderedPod
    stored: Obj | None = None  # the data as in the cluster, where they can never change; None for a pin to be made

    def rendered(self, metadata: Mapping[str, Any], settings: Settings) -> RenderedPod | None:
        """The form that this operator gives pods of the pin's spec; None where it refuses that spec today."""
        try:
            resource = parse({"metadata": metadata, "spec": self.spec}, runs=True)
            return render_pod(resource, settings, self.restarted_at)
        except SpecError:
            return None


@dataclass(frozen=True)
class UnsupportedRevision:
    """A pin in a format that this operator does not know, since another version wrote it."""

    number: int
    format: object


def controlled_revisions(children: Iterable[Obj], uid: str) -> list[Revision | UnsupportedRevision]:
    """The pins that the resource with this uid controls, newest first."""
    own = (c for c in children if c["kind"] == "ControllerRevision" and controller_uid(c) == uid)
    return sorted((_read(c) for c in own), key=lambda revision: -revision.number)


def _read(obj: Obj) -> Revision | UnsupportedRevision:
    data = obj.get("data") or {}
    known = data.get("format", FORMAT)  # the first pins said none
    if known != FORMAT or not {"spec", "restartedAt", "image", "template"} <= data.keys():
        return UnsupportedRevision(obj["revision"], known)
    rendered = RenderedPod(data["image"], data["template"])
    return Revision(obj["revision"], _inputs(data["spec"]), data["restartedAt"], rendered, stored=data)


def resolve_revision(
    obj: Obj, held: Revision | None, number: int, settings: Settings
) -> tuple[DiffusionLMService, Revision]:
    """The resource and the pin that its pods are made of: `held` while nothing is edited that a pin keeps, else the
    pin `number`, with the form of `held` unless the edit changes it or a restart is asked for.

    SpecError: this operator refuses what the resource asks for. Of what `held` covers nothing is refused: it runs.
    """
    spec: Obj = obj["spec"] if isinstance(obj.get("spec"), dict) else {}
    annotated = (obj["metadata"].get("annotations") or {}).get(RESTARTED_AT)
    restarted_at = annotated or (held.restarted_at if held else "")  # removing the annotation restarts nothing
    if (
        held
        and restarted_at == held.restarted_at
        and (held.spec is None or _pod_inputs(spec) == _pod_inputs(held.spec))
    ):
        unchanged = held.spec is None or held.spec == _inputs(spec)
        return parse(obj, pods_are_pinned=True), held if unchanged else _same_pods(held, number, spec)
    resource = parse(obj, runs=held is not None)
    fresh = render_pod(resource, settings, restarted_at)
    if held and held.rendered(obj["metadata"], settings) == fresh:
        return resource, _same_pods(held, number, spec)
    return resource, Revision(number, _inputs(spec), restarted_at, fresh)


def _same_pods(held: Revision, number: int, spec: Mapping[str, Any]) -> Revision:
    return replace(held, number=number, spec=_inputs(spec), stored=None)


def first_revision(obj: Mapping[str, Any], restarted_at: str, found: RenderedPod) -> Revision:
    """The first pin of a resource, for pods that run in the form `found`."""
    spec = obj["spec"] if isinstance(obj.get("spec"), dict) else {}
    return Revision(1, _inputs(spec), restarted_at, found)


def revisions_to_keep(newest_first: Sequence[Revision | UnsupportedRevision]) -> set[int]:
    """The numbers of the pins that stay: the last one of each of the newest few templates, and those not understood."""
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
    """The ControllerRevision of `revision`; None for one that stands for what cannot be read."""
    if revision.spec is None:
        return None
    data = revision.stored or {
        "format": FORMAT,
        "spec": revision.spec,
        "restartedAt": revision.restarted_at,
        "image": revision.rendered_pod.image,
        "template": revision.rendered_pod.template,
    }
    name = revision_name(resource.name, revision.number)
    return child(resource, "apps/v1", "ControllerRevision", name, revision=revision.number, data=data)


def _inputs(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in without_nulls(spec).items() if member not in SCALE}


def _pod_inputs(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in without_nulls(spec).items() if member not in OUTSIDE_POD_TEMPLATE}
